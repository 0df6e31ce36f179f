"""Grape sets no attribute of a type of torch's that is written in C, or of one that a tensor's attributes come from.

CPython fills the slots of a type when a special method is set on it and does not empty them again: after
`torch.Tensor.__getitem__ = f; del torch.Tensor.__getitem__`, a tensor is a sequence for good.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import grape
from grape.runtime.accounts import policy
from grape.runtime.alias import predictor as predictor_module
from grape.runtime.alias.rules import CALLABLES
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.regions import replays

TYPES: list[type] = [
    torch.Tensor,
    torch._C.TensorBase,
    nn.Parameter,
    nn.Buffer,
    torch.UntypedStorage,
    torch.TypedStorage,
    torch._C.StorageBase,
    torch.Size,
    torch.Generator,
    torch.Stream,
    torch.Event,
    torch.cuda.Stream,
    torch.cuda.Event,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.autograd.Function,
    torch.autograd.graph.Node,
    torch._C._FunctionBase,
    int,
    float,
    list,
    dict,
    tuple,
    object,
]
ZERO, ROW = torch.tensor(3), torch.arange(3)


def _iterates(value: Any) -> list[Any]:
    return list(iter(value))


SLOTS: dict[str, Callable[[], Any]] = {
    "torch.tensor of a list of a tensor": lambda: torch.tensor([torch.tensor(3)]),
    "torch.tensor of a list of rows": lambda: torch.tensor([torch.arange(1), torch.arange(1)]),
    "torch.tensor of a dictionary": lambda: torch.tensor({}),
    "len of 0-d": lambda: len(ZERO),
    "len": lambda: len(ROW),
    "index of 0-d": lambda: operator.index(ZERO),
    "index": lambda: operator.index(ROW),
    "range": lambda: range(ZERO),  # type: ignore[call-overload]
    "list index": lambda: [1, 2, 3, 4][ZERO],
    "iteration of 0-d": lambda: _iterates(ZERO),
    "iteration": lambda: _iterates(ROW),
    "in": lambda: 2 in ROW,
    "in 0-d": lambda: 3 in ZERO,
    "reversed": lambda: list(reversed(ROW)),
    "sequence concat": lambda: operator.concat(ROW, ROW),
    "multiplied list": lambda: [1] * ZERO,
    "list plus tensor": lambda: operator.add([1, 2, 3], ROW),
    "unpacked": lambda: (lambda *given: given)(*ROW),
    "bool": lambda: (bool(ZERO), not ZERO),
    "bool of many": lambda: bool(ROW),
    "int, float, complex": lambda: (int(ZERO), float(ZERO), complex(ZERO)),
    "hash": lambda: hash(ZERO) == id(ZERO),
    "comparison": lambda: (ZERO == 3, ZERO != 3, ZERO < 4),
    "arithmetic": lambda: (ZERO + 1, 1 + ZERO, ZERO * 2, ZERO / 2, 7 % ZERO, -ZERO, ~ZERO, ZERO @ ROW),
    "in place": lambda: operator.iadd(torch.tensor(3), 1),
    "item assignment": lambda: operator.setitem(torch.arange(3), 0, 5),
    "item of 0-d": lambda: ZERO[0],
    "slice": lambda: ROW[1:],
    "item deletion": lambda: operator.delitem(ROW, 0),
    "text": lambda: (str(ZERO), repr(ROW), f"{ZERO:>4}"),
    "size of tensors": lambda: torch.Size([ZERO]),
    "zeros": lambda: torch.zeros(ZERO).shape,
    "storage": lambda: (len(ROW.untyped_storage()), list(torch.arange(2, dtype=torch.uint8).untyped_storage())),
    "storage item": lambda: ROW.untyped_storage()[0],
    "storage grows": lambda: torch.ones(2).untyped_storage().resize_(64).nbytes(),
    "tensor grows": lambda: torch.ones(2).resize_(3).shape,
    "size": lambda: (operator.add(torch.Size([1, 2]), (3,)), torch.Size([1, 2]).numel()),
}


def attributes() -> dict[str, Any]:
    """All attributes of the types, and of those that they inherit from, by identity."""
    known = {base for kind in TYPES for base in kind.__mro__}
    return {f"{kind.__module__}.{kind.__qualname__}": dict(vars(kind)) for kind in known}


def changes(before: dict[str, Any]) -> list[str]:
    after = attributes()
    found = []
    for kind in before:
        for name in before[kind].keys() | after[kind].keys():
            one, other = before[kind].get(name), after[kind].get(name)
            if one is not other and name != "__abstractmethods__":
                found.append(f"{kind}.{name}")
    return found


def behaviour() -> dict[str, str]:
    """What each slot does, as text, with the type of what it raises."""
    found = {}
    for name, act in SLOTS.items():
        try:
            found[name] = repr(act())
        except Exception as error:
            found[name] = f"{type(error).__name__}: {str(error)[:200]}"
    return found


@pytest.fixture
def predicts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(replays, "MIN_BYTES", 1)
    monkeypatch.setattr(predictor_module, "MIN_BYTES", 1)
    monkeypatch.setattr(policy, "FEW", 1)
    yield
    from grape.sessions import close_engine

    close_engine()


def test_nothing_is_predicted_by_an_attribute_of_a_type() -> None:
    assert not [name for owner, name, _ in CALLABLES if isinstance(owner, type)]


@pytest.mark.filterwarnings("ignore")
def test_types_are_as_before_during_and_after_a_session_with_predictions(predicts: None) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16)).eval()
    attributes_before, behaviour_before = attributes(), behaviour()
    differences: list[str] = []
    source, made = torch.randn(16, 16), []

    def step(x: Tensor) -> Tensor:
        differences.extend(changes(attributes_before))  # also within traced calls and captures
        return model(x)

    with torch.no_grad():
        with grape.session(profile=False) as session:
            for number in range(60):
                made.append(torch.cat([source, source * number])[:16] if number % 7 == 0 else torch.add(source, number))
                step(made[-1])
                differences += changes(attributes_before)
            during = behaviour()
        for number in range(10):
            made.append(torch.add(source, number))
            step(made[-1])
            differences += changes(attributes_before)
        afterwards = behaviour()
    report = session.report
    assert report is not None and any(one.replays for one in report.regions)
    from grape.sessions import close_engine

    close_engine()
    assert not set(differences)
    assert not changes(attributes_before)
    assert behaviour_before == during == afterwards == behaviour()


def test_types_are_as_before_while_a_tape_captures() -> None:
    attributes_before, found = attributes(), []

    def body() -> Tensor:
        found.extend(changes(attributes_before))
        return torch.ones(3) + 1

    backend = ReferenceBackend()
    backend.capture(body)
    assert not found and not changes(attributes_before)
    backend.close()
