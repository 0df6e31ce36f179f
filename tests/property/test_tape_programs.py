"""Random programs: what an eager call computes, a replay computes, bit for bit, on inputs that changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good
from hypothesis import given, settings
from hypothesis import strategies as st

from grape.runtime.backends.reference.backend import ReferenceBackend

SIZE = 4
"""All values are made square [4, 4] again after each instruction, so that any two fit together."""

Values = list[torch.Tensor]


def _square(value: torch.Tensor) -> torch.Tensor:
    return value.reshape(-1)[: SIZE * SIZE].reshape(SIZE, SIZE)


UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "neg": torch.neg,
    "tanh": torch.tanh,
    "gelu": torch.nn.functional.gelu,
    "softmax": lambda a: a.softmax(-1),
    "norm": lambda a: torch.nn.functional.layer_norm(a, (SIZE,)),
    "cumsum": lambda a: a.cumsum(0),
    "sort": lambda a: a.sort(1).values,
    "topk": lambda a: a.topk(SIZE, 0).values,
    "argsort": lambda a: a.argsort(-1).to(a.dtype),
    "round trip": lambda a: a.double().add(0.1).float(),
    "transpose": lambda a: a.t(),
    "flip": lambda a: a.flip(0),
    "roll": lambda a: a.roll(1, 1),
    "expand": lambda a: a[:1].expand(SIZE, SIZE),
    "diagonal": lambda a: a + a.diagonal(),
    "strided": lambda a: torch.cat([a, a])[::2],
    "chunks": lambda a: torch.cat(a.chunk(2, 1)[::-1], 1),
    "stack": lambda a: torch.stack(a.unbind(1)),
    "gather": lambda a: a.gather(0, a.argsort(0)),
    "one row": lambda a: a[torch.tensor([2, 0, 3, 3])],
    "select": lambda a: torch.where(a > 0, a, -0.5),
    "clamp": lambda a: a.clamp(-1, 1),
    "sum": lambda a: a.sum(1, keepdim=True) * 0.25 + a,
    "constant": lambda a: a * torch.tensor(1.25),
    "dropout": lambda a: torch.nn.functional.dropout(a, 0.5),
    "noise": lambda a: a + torch.randn_like(a),
    "same": lambda a: a,
    "contiguous": lambda a: a.contiguous(),
    "conv": lambda a: torch.nn.functional.conv1d(a[None], a[:, :, None] * 0.1)[0],
}

BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "sub": lambda a, b: torch.sub(a, b, alpha=2),
    "mul": torch.mul,
    "matmul": torch.matmul,
    "linear": lambda a, b: torch.nn.functional.linear(a[None].transpose(0, 1), b, b[0]),
    "bmm": lambda a, b: torch.bmm(a[None], b[None]),
    "addmm": lambda a, b: torch.addmm(a, a, b, beta=0.5),
    "einsum": lambda a, b: torch.einsum("ij,kj->ki", a, b),
    "maximum": torch.maximum,
    "cat": lambda a, b: torch.cat([a[:2], b[2:]]),
    "attention": lambda a, b: torch.nn.functional.scaled_dot_product_attention(
        a[None, None], b[None, None], a[None, None]
    ),
    "copysign": lambda a, b: torch.copysign(a, b[:, :1]),
    "out": lambda a, b: torch.add(a, b, out=torch.empty(0)),
}


def _fresh_row(a: torch.Tensor, b: torch.Tensor) -> None:
    a[1] = b[2].clone()


def _masked(a: torch.Tensor, b: torch.Tensor) -> None:
    a[b > 0] = 0.5


IN_PLACE: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "mul_": lambda a, b: a.mul_(0.5),
    "add_": lambda a, b: a.add_(b.clone()),
    "copy_": lambda a, b: a.copy_(b.clone()),
    "row": _fresh_row,
    "mask": _masked,
    "element": lambda a, b: a.__setitem__((0, 0), 2.0),
    "tail": lambda a, b: a[:, 1:].neg_(),
    "transposed": lambda a, b: a.t()[0].fill_(1.5),
    "index_add_": lambda a, b: a.index_add_(0, torch.tensor([1, 1]), b[:2].clone()),
    "scatter_": lambda a, b: a.scatter_(1, b.argsort(1), b.clone()),
    "index_put_": lambda a, b: a.index_put_((torch.tensor([0, 2]),), b[:2].clone(), accumulate=True),
    "bernoulli_": lambda a, b: a.bernoulli_(0.5),
    "foreach": lambda a, b: torch._foreach_mul_([a], 0.75),
}


@dataclass(frozen=True)
class Instruction:
    """Apply `name` of `table` to the values numbered `left` and `right`, counted back from the newest."""

    table: str
    name: str
    left: int
    right: int


def _run(program: list[Instruction], inputs: Values) -> Values:
    values = list(inputs)
    for step in program:
        left, right = values[-1 - step.left % len(values)], values[-1 - step.right % len(values)]
        if step.table == "unary":
            values.append(_square(UNARY[step.name](left)))
        elif step.table == "binary":
            values.append(_square(BINARY[step.name](left, right)))
        else:
            target = left if left.is_contiguous() or left.t().is_contiguous() else left.clone()
            IN_PLACE[step.name](target, right)
            values.append(target)
    return [*values[len(inputs) :], values[0]]


def _instructions() -> st.SearchStrategy[list[Instruction]]:
    index = st.integers(0, 5)
    one = st.one_of(
        *(
            st.builds(Instruction, st.just(table), st.sampled_from(sorted(names)), index, index)
            for table, names in (("unary", UNARY), ("binary", BINARY), ("in place", IN_PLACE))
        )
    )
    return st.lists(one, min_size=1, max_size=12)


def _inputs(seed: int) -> Values:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(SIZE, SIZE, generator=generator) for _ in range(2)]


def _bits(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous().view(torch.int32)


def _check(backend: ReferenceBackend, programs: list[list[Instruction]], kept: int, *, inference: bool) -> None:
    with torch.inference_mode(inference), torch.no_grad():
        graphs = []
        for program in programs:
            places = _inputs(0)
            graph, out = backend.capture(lambda program=program, places=places: _run(program, places))
            # Only some results survive: the memory of the others goes to the next graph.
            graphs.append((program, places, graph, {-1 - i: out[-1 - i] for i in range(min(kept, len(out)))}))
            del out
        for seed in (1, 2, 3):
            for program, places, graph, out in graphs:
                ours = _inputs(seed)
                backend.copy(places, ours)
                torch.manual_seed(seed)
                expected = _run(program, ours)
                after = torch.get_rng_state()
                torch.manual_seed(seed)
                graph.replay()
                assert torch.equal(torch.get_rng_state(), after)
                for index, value in out.items():
                    assert value.stride() == expected[index].stride()
                    assert torch.equal(_bits(value), _bits(expected[index])), f"value {index}"
                for place, own in zip(places, ours, strict=True):
                    assert torch.equal(_bits(place), _bits(own))


@settings(max_examples=max(200, settings.default.max_examples))
@given(program=_instructions(), inference=st.booleans())
def test_a_replay_equals_an_eager_call(program: list[Instruction], inference: bool) -> None:
    backend = ReferenceBackend(poison=True)
    _check(backend, [program], kept=99, inference=inference)
    backend.close()


@settings(max_examples=max(60, settings.default.max_examples // 2))
@given(programs=st.lists(_instructions(), min_size=2, max_size=4), kept=st.integers(1, 3))
def test_graphs_that_share_memory_equal_eager_calls(programs: list[list[Instruction]], kept: int) -> None:
    backend = ReferenceBackend(poison=True)
    _check(backend, programs, kept, inference=True)
    backend.close()
