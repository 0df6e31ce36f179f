"""Regions are strict: what they can reach is compared, or known not to be read, or the region is refused."""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import functools
import io
import math
import os
import queue
import random
import sys
import threading
import time
import types
import typing
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from grape.runtime.guarding.guards import GuardSet
from grape.runtime.guarding.structure import Unsupported, flatten
from grape.runtime.state.names import TooLarge

net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.GELU()).eval()


def made(source: str, **names: Any) -> types.FunctionType:
    """A function of the person's with globals of its own."""
    space: dict[str, Any] = {"__builtins__": __builtins__, "torch": torch, "F": F, "net": net, **names}
    exec(source, space)
    function = space["f"]
    assert isinstance(function, types.FunctionType)
    return function


class Scale:
    k = 1.5

    def __init__(self) -> None:
        self.k = 1.5


class Words(str):
    k: float


class Named(typing.NamedTuple):
    k: float = 1.5

    def scale(self) -> float:
        return self.k


@dataclasses.dataclass(frozen=True)
class Frozen:
    k: float = 1.5


class Mode(enum.StrEnum):
    FAST = "fast"


class Items(list[float]):
    def scale(self) -> float:
        return self[0]


class Watching:
    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"{name} was read")


class Pretending:
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise AssertionError("__class__ was read")


class Ending:
    def __del__(self) -> None: ...


def watched() -> Scale:
    scale = Scale()
    _kept.append(weakref.ref(scale))
    return scale


_kept: list[Any] = []

OPAQUE: dict[str, Callable[[], Any]] = {
    "text in memory": io.StringIO,
    "lock": threading.Lock,
    "event": threading.Event,
    "queue": queue.Queue,
    "generator": lambda: (number for number in range(9)),
    "iterator": lambda: iter([1.5]),
    "random numbers": lambda: random.Random(0),
    "cache": lambda: functools.lru_cache(lambda: {"k": 1.5}),
    "weak reference": lambda: weakref.ref(_kept.append),
    "mock": mock.MagicMock,
    "a string with attributes": lambda: Words("a"),
    "reads that are seen": Watching,
    "another class than it says": Pretending,
    "an end that is seen": Ending,
    "an end that somebody waits for": watched,
    "in a list": lambda: [{"a": threading.Lock()}],
    "a module in a list": lambda: [sys.modules[__name__]],
}


@pytest.mark.parametrize("name", OPAQUE)
def test_what_nobody_can_compare_is_refused(name: str) -> None:
    with pytest.raises(TooLarge, match="c"):
        GuardSet(made("def f(x): return net(x) * (1 if c is None else 2)", c=OPAQUE[name]()))


def test_numpys_generators_are_refused() -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(TooLarge, match=r"^`rng` is a `Generator`, which every call changes$"):
        GuardSet(made("def f(x): return net(x) * rng.random()", rng=numpy.random.default_rng(0)))


NAMED: dict[str, tuple[str, Any]] = {
    "time": ("c.time()", time),
    "function of time": ("c()", time.perf_counter),
    "environment": ("float(c.getenv('HS', 1))", os),
    "function of the environment": ("float(c('HS', 1))", os.getenv),
    "frames": ("c._getframe(1).f_lineno", sys),
    "random": ("c.random()", random),
    "threads": ("c.active_count()", threading),
    "seeds": ("c.initial_seed()", torch),
    "documentation": ("float(c.__doc__ or 1)", Scale),
    "annotations": ("len(c.__annotations__)", Scale),
    "what it wraps": ("c.__wrapped__()", functools.wraps(math.sqrt)(lambda: 1.5)),
    "identity": ("id(c)", Scale),
    "local names": ("len(locals()) * c", 2),
}


@pytest.mark.parametrize("name", NAMED)
def test_what_reads_more_than_its_arguments_is_refused(name: str) -> None:
    expression, value = NAMED[name]
    with pytest.raises(TooLarge):
        GuardSet(made(f"def f(x): return net(x) * {expression}", c=value))


def _set(name: str, value: Any) -> Callable[[Any], Any]:
    return lambda c: setattr(c, name, value)


CHANGES: dict[str, tuple[Callable[[], Any], str, Callable[[Any], Any]]] = {
    "attribute": (Scale, "c.k", _set("k", 2.5)),
    "attribute that comes": (Scale, "getattr(c, 'other', 1.5)", lambda c: setattr(type(c), "other", 2.5)),
    "method of a named tuple": (Named, "c.scale()", lambda c: setattr(Named, "scale", lambda self: 2.5)),
    "frozen": (Frozen, "c.k", lambda c: object.__setattr__(c, "k", 2.5)),
    "member of an enumeration": (lambda: Mode.FAST, "c.value", lambda c: setattr(c, "more", 2.5)),
    "method of a list": (lambda: Items([1.5]), "c.scale()", lambda c: setattr(Items, "scale", lambda self: 2.5)),
    "attribute of a list": (lambda: Items([1.5]), "len(c)", _set("k", 2.5)),
    "order of a set": (lambda: {0, 8}, "next(iter(c))", lambda c: (c.clear(), c.add(8), c.add(0))),
    "sign of zero in a set": (lambda: {0.0}, "next(iter(c))", lambda c: (c.clear(), c.add(-0.0))),
    "deque": (
        lambda: collections.deque([torch.tensor(2)]),
        "c[0]",
        lambda c: c.__setitem__(0, torch.tensor(2.0)),
    ),
    "namespace": (lambda: types.SimpleNamespace(k=1.5), "c.k", _set("k", 2.5)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for cls, method in ((Named, "scale"), (Items, "scale")):
        monkeypatch.setattr(cls, method, vars(cls)[method])  # put back afterwards
    make, expression, change = CHANGES[name]
    value = make()
    guards = GuardSet(made(f"def f(x): return net(x) * {expression}", c=value))
    assert guards.holds()
    change(value)
    assert not guards.holds()
    for cls, attribute in ((Scale, "other"),):
        if attribute in vars(cls):
            delattr(cls, attribute)


def test_names_of_builtins_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    monkeypatch.setattr(builtins, "HALF", 0.5, raising=False)
    guards = GuardSet(made("def f(x): return net(x) * HALF"))
    monkeypatch.setattr(builtins, "HALF", 0.25)
    assert not guards.holds()


def test_names_imported_inside_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = types.ModuleType("settings_of_a_test")
    settings.__file__ = os.path.join(os.path.dirname(__file__), "settings_of_a_test.py")
    settings.SCALE = 1.5  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "settings_of_a_test", settings)
    guards = GuardSet(made("def f(x):\n from settings_of_a_test import SCALE\n return net(x) * SCALE"))
    assert guards.holds()
    settings.SCALE = 2.5  # type: ignore[attr-defined]
    assert not guards.holds()


def test_classes_that_are_registered_later_are_seen() -> None:
    class Abstract(abc.ABC):  # noqa: B024
        pass

    guards = GuardSet(made("def f(x): return net(x) * isinstance(q, A)", A=Abstract, q=Scale()))
    Abstract.register(Scale)
    assert not guards.holds()


def test_other_bases_are_seen() -> None:
    class One(Scale): ...

    class Other(Scale): ...

    class Child(One): ...

    guards = GuardSet(made("def f(x): return net(x) * q.k", q=Child()))
    Child.__bases__ = (Other,)
    assert not guards.holds()


LIBRARY: dict[str, tuple[Any, str, Any]] = {
    "a function that a module calls": (F, "linear", lambda *args: torch.zeros(())),
    "the call of all modules": (nn.Module, "__call__", lambda self, *args: args[0]),
    "a method of a library's class": (nn.Linear, "extra", 1),
    "an operator": (torch.Tensor, "__matmul__", lambda self, other: self),
}


@pytest.mark.parametrize("name", LIBRARY)
def test_what_is_replaced_in_a_library_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, value = LIBRARY[name]
    if attribute == "extra":
        monkeypatch.setattr(owner, attribute, 0, raising=False)
    guards = GuardSet(made("def f(x): return net(x) @ x"))
    assert guards.holds()
    with monkeypatch.context() as patch:
        patch.setattr(owner, attribute, value)
        assert not guards.holds()
    assert guards.holds()


def test_what_no_name_leads_to_is_not_read() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.model, self.lock, self.log = net, threading.Lock(), open(os.devnull)  # noqa: SIM115

        def save(self) -> None:
            print(time.time(), file=self.log)

        def step(self, x: torch.Tensor) -> Any:
            return self.model(x)

    trainer = Trainer()
    function = made("def f(x): return trainer.step(x)", trainer=trainer)
    guards = GuardSet(function)
    assert guards.holds()
    trainer.model = nn.Linear(4, 4)  # type: ignore[assignment]
    assert not guards.holds()
    trainer.log.close()
    with pytest.raises(TooLarge, match="lock"):
        GuardSet(made("def f(x): return trainer.step(x) * trainer.lock.locked()", trainer=trainer))


def test_a_hook_that_was_put_into_the_dict_is_seen_by_the_next_cell() -> None:
    model = nn.Linear(4, 4)
    guards = GuardSet(made("def f(x): return model(x)", model=model))
    model._forward_hooks[77] = lambda module, args, result: result * 2
    guards.begin_run()
    assert not guards.holds()


@pytest.mark.parametrize(
    "value", [Watching, Pretending, mock.MagicMock, threading.Event, lambda: sys.modules[__name__]]
)
def test_arguments_that_are_not_what_they_seem(value: Callable[[], Any]) -> None:
    with pytest.raises(Unsupported):
        flatten((value(),), "args")


def test_an_address_chooses_kernels() -> None:
    base = torch.zeros(4096)
    keys = {offset: flatten(base[offset : offset + 64], "x").key for offset in (0, 1, 2, 8, 9, 16)}
    assert keys[0] == keys[16]  # 64 bytes on, as any allocation
    assert len({keys[offset] for offset in (0, 1, 2, 8)}) == 4
    assert keys[1] == keys[9]
