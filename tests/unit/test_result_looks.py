"""Everything that Python can see of a replay's result is as eager code leaves it, or the region is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from grape.runtime import GraphedFunction
from grape.runtime.alias import predictor
from grape.runtime.backends.reference.backend import ReferenceBackend
from tests.property.programs import eager_to_graph
from tests.unit.test_alias_predictor import Bench

OUTSIDE = torch.arange(12.0).view(3, 4)


FROZEN = torch.nn.Parameter(torch.arange(12.0).view(3, 4), requires_grad=False)
FROZEN.grad = torch.ones(3, 4)


def hidden(x: Tensor) -> Tensor:
    return torch.tanh(x @ torch.ones(4, 4)) + 1


def _shrunk(x: Tensor) -> Tensor:
    made = hidden(x)
    made.resize_(2, 4)
    return made


def _graded(made: Tensor) -> Tensor:
    made.grad = made * 2
    return made


def _stored(x: Tensor) -> Tensor:
    big = hidden(x)
    return torch.empty(0).set_(big.untyped_storage(), 4, (2, 2), (2, 1))


def _half_filled(x: Tensor) -> Tensor:
    made = torch.zeros(9, 4)
    made[2:5] = hidden(x)
    return made[2:5]


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "itself": hidden,
    "changed in place": lambda x: hidden(x).add_(1).mul_(2),
    "a part": lambda x: hidden(x)[1:],
    "a column": lambda x: hidden(x)[:, 1],
    "a row and its base": lambda x: (lambda y: (y[1], y))(hidden(x)),
    "its base and rows": lambda x: (lambda y: (y, y[0], y[1:]))(hidden(x)),
    "two rows": lambda x: (lambda y: (y[0], y[2]))(hidden(x)),
    "chunks": lambda x: hidden(x).chunk(3),
    "unbound": lambda x: hidden(x).unbind(1),
    "changed through a view": lambda x: (lambda y: (y[1].zero_(), y))(hidden(x)),
    "transposed": lambda x: hidden(x).t(),
    "reshaped": lambda x: hidden(x).view(-1),
    "expanded": lambda x: hidden(x)[:1].expand(5, 4),
    "reversed strides": lambda x: hidden(x).as_strided((2, 2), (1, 3), 1),
    "linear of three dimensions": lambda x: torch.nn.functional.linear(x[None], torch.ones(4, 4), torch.ones(4)),
    "detached": lambda x: hidden(x).detach(),
    "a detached part": lambda x: hidden(x)[1:].detach(),
    "data of a part": lambda x: hidden(x)[1:].data,
    "detached too": lambda x: (lambda y: (y, y.detach()))(hidden(x)),
    "detached too and changed": lambda x: (lambda y: (y, y.detach().add_(1)))(hidden(x)),
    "data too": lambda x: (lambda y: (y, y.data))(hidden(x)),
    "data too and changed": lambda x: (lambda y: (y, y.data.add_(1)))(hidden(x)),
    "parts of two detached ones": lambda x: (lambda y: (y.detach()[0], y.detach()[1]))(hidden(x)),
    "resized": _shrunk,
    "over a storage": _stored,
    "a part of more": _half_filled,
    "empty": lambda x: hidden(x)[:0],
    "of no dimension": lambda x: hidden(x).sum(),
    "an item": lambda x: hidden(x)[1, 2],
    "real parts": lambda x: torch.view_as_real(torch.complex(hidden(x), hidden(x))),
    "other dtype": lambda x: hidden(x).view(torch.int32),
    "indices": lambda x: hidden(x).max(1),
    "an argument": lambda x: (hidden(x), x),
    "a part of an argument": lambda x: (hidden(x), x[1:]),
    "an argument detached": lambda x: (hidden(x), x.detach()),
    "a part of an argument detached": lambda x: (hidden(x), x[1:].detach()),
    "data of an argument": lambda x: (hidden(x), x.data),
    "an argument, changed": lambda x: (hidden(x), x.add_(1)),
    "a part of an argument, changed": lambda x: (hidden(x), x[1:].add_(1)),
    "from outside": lambda x: hidden(x) @ OUTSIDE.t() is None or OUTSIDE,
    "a part from outside": lambda x: (hidden(x) @ OUTSIDE.t(), OUTSIDE[1:]),
    "from outside, detached": lambda x: (hidden(x) @ OUTSIDE.t(), OUTSIDE.detach()),
    "data from outside": lambda x: (hidden(x) @ OUTSIDE.t(), OUTSIDE.data),
    "made for gradients": lambda x: hidden(x).requires_grad_(),
    "with a gradient": lambda x: _graded(hidden(x)),
    "of two, one with a gradient": lambda x: (lambda y: (y, _graded(y + 1)))(hidden(x)),
    "from outside, with a gradient from before": lambda x: hidden(x) @ FROZEN.t() is None or FROZEN,
    "channels last": lambda x: hidden(x).view(1, 3, 2, 2).to(memory_format=torch.channels_last),
    "gru, batch first": lambda x: torch.relu_(hidden(x)).unsqueeze(1).transpose(0, 1),
}
REFUSED = frozenset(
    {"made for gradients", "with a gradient", "of two, one with a gradient", "resized", "over a storage"}
)
"""What is not captured at all."""
REFUSED_OUTSIDE_INFERENCE = frozenset({"real parts", "parts of two detached ones", "data too and changed"})
"""Nor these, where torch knows of what a tensor is a view, and counts changes."""


def seen(result: Any, x: Tensor) -> list[Any]:
    """All that Python sees of the tensors in a result, and how they are related to each other and to the argument."""
    tensors = [result] if isinstance(result, Tensor) else list(result)
    known: dict[int, str] = {id(x): "the argument", id(OUTSIDE): "outside", id(x._base): "the argument's base"}
    known |= {id(tensor): f"result {number}" for number, tensor in enumerate(tensors)}

    def name(tensor: Tensor | None) -> str | None:
        return None if tensor is None else known.setdefault(id(tensor), f"base {len(known)}")

    storages: dict[int, int] = {}
    found = []
    for tensor in tensors:
        base = tensor._base
        storage = tensor.untyped_storage()
        version = None if tensor.is_inference() else tensor._version
        outside = (tensor is x, tensor is OUTSIDE, tensor is FROZEN, storage._cdata == OUTSIDE.untyped_storage()._cdata)
        if any(outside) or storage._cdata == x.untyped_storage()._cdata:
            version = None  # they go on with every call
        found.append(
            {
                "type": type(tensor),
                "layout": (tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()),
                "storage": (storage.nbytes(), storage.resizable(), storages.setdefault(storage._cdata, len(storages))),
                "flags": (tensor.is_leaf, tensor.requires_grad, tensor.grad_fn is None, tensor.is_inference()),
                "is a view": (tensor._is_view(), name(base)),
                "base": None if base is None else (base.shape, base.stride(), base.storage_offset(), base.tolist()),
                "version": version,
                "gradient": None if tensor.grad is None else tensor.grad.tolist(),
                "outside": outside,
                "all of its memory": bytes(storage),
            }
        )
    if not torch.is_inference_mode_enabled():
        for tensor in tensors:  # who sees a change of whom
            before = [one._version for one in tensors if not one.is_inference()]
            if tensor is not x and not tensor.is_inference() and tensor.untyped_storage().nbytes():
                torch.autograd.graph.increment_version(tensor)
            found.append([b - a for a, b in zip(before, [one._version for one in tensors], strict=False)])
    return found


@pytest.mark.parametrize("in_place", [False, True], ids=["copied", "in place"])
@pytest.mark.parametrize("inference", [False, True], ids=["no_grad", "inference"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_replays_result_looks_as_the_eager_one(name: str, inference: bool, in_place: bool) -> None:
    function = FUNCTIONS[name]
    graphed = GraphedFunction(function, backend=ReferenceBackend(), tolerance=0.0)
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode() if inference else torch.no_grad(), eager_to_graph(in_place=in_place):
        for number in range(24):
            given = torch.randn(4, 4, generator=generator)
            mine, theirs = given.clone()[1:], given.clone()[1:]
            expected, found = function(mine), graphed(theirs)
            assert seen(found, theirs) == seen(expected, mine), f"call {number}"
            del expected, found
    region: Any = graphed._region
    if name in REFUSED or (name in REFUSED_OUTSIDE_INFERENCE and not inference):
        assert region.refused is not None and not region.replays
    else:
        assert region.refused is None and region.replays > 3, region.refused
    graphed.release()


def test_a_result_that_was_predicted_was_never_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A predicted operator writes with `out=`, which counts as a change of what it writes."""
    monkeypatch.setattr(predictor, "MIN_BYTES", 1)
    bench = Bench()
    with torch.no_grad():
        bench.learn()
        made = bench.make()
        bench.predictor.forget()
    assert bench.in_slot(made) and made._version == 0 and made._base is None
