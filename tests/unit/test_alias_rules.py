"""Every rule of alias prediction against the callable that it speaks for, over many forms of arguments.

A rule may always decline. Where it does not, what it writes must be what the call returns: shape, strides, dtype, bits.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from grape.runtime.alias.predictor import _NOTHING, Predictor
from grape.runtime.alias.rules import CALLABLES, Plan
from grape.tracing import PositionFinder

CPU = torch.device("cpu")
Form = tuple[tuple[Any, ...], dict[str, Any]]


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def _tensors() -> dict[str, Tensor]:
    special = torch.tensor([[0.0, -0.0, float("nan"), float("inf")]] * 3)
    return {
        "matrix": _random(3, 4),
        "another": _random(2, 3, 4)[1] * 2,
        "cube": _random(2, 3, 4),
        "vector": _random(4),
        "scalar": _random(1)[0].clone(),
        "one": _random(1, 1),
        "special": special,
        "transposed": _random(4, 3).t(),
        "expanded": _random(1, 4).expand(3, 4),
        "offset": _random(5, 4)[1:4],
        "empty": _random(0, 4),
        "empty inside": _random(2, 0, 3),
        "double": _random(3, 4).double(),
        "half": _random(3, 4).half(),
        "bfloat16": _random(3, 4).bfloat16(),
        "int64": torch.arange(12).view(3, 4),
        "int32": torch.arange(12, dtype=torch.int32).view(3, 4),
        "uint8": torch.arange(12, dtype=torch.uint8).view(3, 4),
        "bool": torch.arange(12).view(3, 4) % 3 == 0,
        "complex": torch.complex(_random(3, 4), _random(3, 4)),
        "parameter": nn.Parameter(_random(3, 4), requires_grad=False),
        "one row of a wide one": torch.empty_strided((1, 4), (77, 1)).fill_(1.5),
        "heads of one token": _random(2, 1, 3, 4).transpose(1, 2),
        "channels last": _random(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "channels last of one": torch.empty_strided((2, 1, 4, 4), (16, 1, 4, 1)).fill_(0.5),
    }


def _indices() -> list[Any]:
    one = torch.tensor([1, 0, 1])
    return [
        one,
        one.int(),
        one.bool(),
        one.new_empty(0),
        torch.tensor(1),
        torch.tensor([[1, 0], [0, 0]]),
        torch.tensor([[1, 0], [0, 1]]).t(),
        torch.tensor([-1, 0]),
        torch.tensor([7]),
        torch.zeros(3, 4, dtype=torch.int64),
        torch.zeros(3, 4, dtype=torch.bool),
        torch.zeros(2, 3, 4, dtype=torch.int64),
        torch.zeros(1, 4, dtype=torch.int64).expand(2, 4),
        [1, 0],
        (1, 0),
        slice(1, None),
        None,
        ...,
        1,
        True,
    ]


DIMS = (-4, -3, -2, -1, 0, 1, 2, None, True, 1.0)


def _dim_forms(many: list[Any]) -> Iterator[Form]:
    for tensor, dim, other in itertools.product(_tensors().values(), DIMS, many):
        yield (tensor, dim, other), {}
    tensor, other = _tensors()["matrix"], many[0]
    yield (tensor,), {"dim": 0, "index": other}
    yield (tensor, 0), {"index": other}
    yield (tensor, 0, other, other), {}
    yield (tensor,), {}
    yield ([1.0, 2.0], 0, other), {}


def _sequence_forms() -> Iterator[Form]:
    named = _tensors()
    every = list(named.values())
    parts: list[Any] = [[one, other] for one, other in itertools.product(every, every)]
    parts += [[one] for one in every] + [(one, one, one) for one in every] + [[], named["cube"], [1.0], iter(every[:2])]
    parts += [[named["matrix"], torch.empty(0)], [named["matrix"], _random(5, 4)], [_random(3, 1), named["matrix"]]]
    for sequence, dim in itertools.product(parts, (-3, -1, 0, 1, 2, True, None)):
        yield (sequence, dim), {}
    for sequence in parts[::7]:
        yield (sequence,), {}
        yield (sequence,), {"dim": 1}
        yield (sequence,), {"axis": 0}
        yield (), {"tensors": sequence}
        yield (sequence,), {"dim": 0, "out": torch.empty(0)}


def _where_forms() -> Iterator[Form]:
    named = _tensors()
    few = ["matrix", "another", "special", "transposed", "expanded", "double", "bool", "scalar", "vector", "empty"]
    odd = ["one row of a wide one", "heads of one token", "channels last", "channels last of one"]
    for condition, one, other in itertools.product(few, few, few):
        yield (named[condition], named[one], named[other]), {}
        yield (named[condition] != 0, named[one], named[other]), {}
    for name in [*named]:
        yield (named[name] != 0, named[name], named[name]), {}
    for name in odd:
        yield (named[name] > 0, named[name], named[name] * 2), {}
    yield (named["bool"],), {}
    yield (named["bool"], named["matrix"], 0.0), {}
    yield (named["bool"], 1.0, named["matrix"]), {}
    yield (named["bool"], named["matrix"]), {"other": named["another"]}


def _binary_forms() -> Iterator[Form]:
    every = list(_tensors().values())
    others = [*every, 2, -3, 0, 0.5, True, 2 + 1j, None, "a", [1.0], 2**70, float("nan")]
    for one, other in itertools.product(every, others):
        yield (one, other), {}
    for one in every[:3]:
        yield (one, one), {"alpha": 2}
        yield (one, one), {"rounding_mode": "floor"}
        yield (one, one), {"out": torch.empty_like(one)}
        yield (one,), {"other": one}
        yield (1.0, one), {}


def _argmax_forms() -> Iterator[Form]:
    for tensor, dim in itertools.product(_tensors().values(), DIMS):
        yield (tensor, dim), {}
        yield (tensor,), {"dim": dim}
        for keep in (True, False, 1):
            yield (tensor, dim), {"keepdim": keep}
            yield (tensor, dim, keep), {}
        yield (tensor,), {"dim": dim, "keepdim": True}
    yield (_tensors()["matrix"], 0), {"dim": 1}


def _lone_forms() -> Iterator[Form]:
    for tensor in _tensors().values():
        yield (tensor,), {}
        yield (tensor,), {"memory_format": torch.preserve_format}
        yield (tensor,), {"memory_format": torch.contiguous_format}
        yield (tensor, torch.contiguous_format), {}


def forms(attribute: str) -> Iterator[Form]:
    """Argument lists of a callable, right and wrong ones."""
    if attribute in ("index_select", "gather"):
        return _dim_forms(_indices())
    if attribute in ("cat", "concat", "concatenate", "stack"):
        return _sequence_forms()
    if attribute in ("add", "sub", "mul", "div"):
        return _binary_forms()
    others: dict[str, Callable[[], Iterator[Form]]] = {
        "where": _where_forms,
        "argmax": _argmax_forms,
    }
    return others.get(attribute, _lone_forms)()


def plan_of(predictor: Predictor, rule: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan | None:
    """As the predictor asks for it."""
    try:
        plan: Plan | None = rule(args, kwargs)
    except _NOTHING:
        return None
    return plan if plan is not None and predictor._harmless(plan) else None


def dirty(plan: Plan) -> Tensor:
    """Memory for what the plan writes, full of something else."""
    nbytes = math.prod(plan.shape) * plan.dtype.itemsize
    return torch.full((nbytes,), 0xA5, dtype=torch.uint8).view(plan.dtype).view(plan.shape)


def outcome(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", "An output with one or more elements was resized")
        try:
            return call(), None
        except Exception as error:
            return None, error


def facts(tensor: Any) -> tuple[Any, ...]:
    assert type(tensor) is Tensor
    where = tensor.device, tensor.requires_grad, tensor.is_inference(), tensor.is_conj()
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.layout, *where


def bits(tensor: Tensor) -> list[int]:
    return tensor.contiguous().view(-1).view(torch.uint8).tolist() if tensor.numel() else []


NAMED = [pytest.param(owner, name, rule, id=f"{owner.__name__}.{name}") for owner, name, rule in CALLABLES]


@pytest.mark.parametrize("inference", [False, True], ids=["no_grad", "inference"])
@pytest.mark.parametrize(("owner", "name", "rule"), NAMED)
def test_what_a_rule_writes_is_what_the_call_returns(owner: Any, name: str, rule: Any, inference: bool) -> None:
    original, predictor = getattr(owner, name), Predictor(CPU, PositionFinder())
    planned = declined = 0
    with torch.inference_mode() if inference else torch.no_grad():
        for args, kwargs in forms(name):
            plan = plan_of(predictor, rule, args, kwargs)
            if plan is None:
                declined += 1
                continue
            planned += 1
            out = dirty(plan)
            address = out.data_ptr()
            expected, error = outcome(lambda call=args, more=kwargs: original(*call, **more))
            _, written = outcome(lambda plan=plan, out=out: plan.write(out))
            text = f"{name}({args}, {kwargs})"
            if error is not None:
                assert written is not None, f"{text} raises {error!r}, and its rule does not"
                continue
            assert written is None, f"{text} returns, and its rule raises {written!r}"
            assert facts(out) == facts(expected), text
            assert out.data_ptr() == address, text
            assert bits(out) == bits(expected), text
    assert declined
    assert planned


HARMFUL: dict[str, Callable[[], Tensor]] = {
    "autograd follows it": lambda: _random(3, 4).requires_grad_(),
    "a subclass": lambda: _random(3, 4).as_subclass(type("Mine", (Tensor,), {})),
    "on another device": lambda: _random(3, 4).to("meta"),
    "conjugated": lambda: torch.complex(_random(3, 4), _random(3, 4)).conj(),
    "negated": lambda: torch.complex(_random(3, 4), _random(3, 4)).conj().imag,
}


@pytest.mark.parametrize("name", HARMFUL)
def test_inputs_that_no_prediction_is_made_for(name: str) -> None:
    predictor, tensor = Predictor(CPU, PositionFinder()), HARMFUL[name]()
    clone = next(rule for _, attribute, rule in CALLABLES if attribute == "clone")
    assert plan_of(predictor, clone, (tensor,), {}) is None
    plan = Plan(tuple(tensor.shape), tensor.dtype, (tensor,), lambda out: None)
    assert not predictor._harmless(plan)
    with torch.no_grad():
        assert predictor._harmless(plan) is (name == "autograd follows it")
