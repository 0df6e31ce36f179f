"""What Python and libraries note of classes, and where they look it up by type: a change of it must be seen."""

from __future__ import annotations

import abc
import copy
import copyreg
import dataclasses
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import distributions
from torch.distributions.kl import _KL_REGISTRY, register_kl
from torch.utils import _pytree

from tests.property.programs import World
from tests.unit.test_runtime_guards import _holder_world, check, is_refused

pytestmark = pytest.mark.usefixtures("without_gradients")


def _pair() -> Any:
    @dataclasses.dataclass
    class Pair:
        one: float = 2.0
        other: float = 3.0

    return Pair()


def _abstract() -> Any:
    class Abstract(abc.ABC):
        @abc.abstractmethod
        def method(self) -> None: ...

    return Abstract


def _plain() -> Any:
    class Plain:
        scale = 2.0

    return Plain()


def _matched(pair: Any) -> float:
    kind = type(pair)
    match pair:
        case kind(one, other):
            return float(one + 10 * other)
    return 0.0


def _made(cls: Any) -> float:
    try:
        cls()
    except TypeError:
        return 2.0
    return 3.0


def _reduced(holder: Any) -> Any:
    return types.SimpleNamespace, (), {"scale": 3.0}


def _forget_a_field(pair: Any) -> None:
    del type(pair).__dataclass_fields__["other"]


NOTES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "order of matched attributes": (_pair, _matched, lambda h: setattr(type(h), "__match_args__", ("other", "one"))),
    "fields": (_pair, lambda h: sum(getattr(h, f.name) for f in dataclasses.fields(h)), _forget_a_field),
    "abstract methods": (_abstract, _made, lambda h: setattr(h, "__abstractmethods__", frozenset())),
    "how it is copied": (_plain, lambda h: copy.copy(h).scale, lambda h: copyreg.pickle(type(h), _reduced)),
}


@pytest.fixture(autouse=True)
def _tables_stay() -> Iterator[None]:
    tables: list[dict[Any, Any]] = [copyreg.dispatch_table, _pytree.SUPPORTED_NODES, _KL_REGISTRY]
    before = [dict(table) for table in tables]
    yield
    for table, then in zip(tables, before, strict=True):
        table.clear()
        table.update(then)
    distributions.kl._KL_MEMOIZE.clear()


@pytest.mark.parametrize("note", NOTES)
def test_a_note_of_a_class(note: str) -> None:
    make, read, change = NOTES[note]
    check(_holder_world(make, read), lambda w: change(w.holder))


hints: Callable[[Any], Any] = typing.get_type_hints


@pytest.mark.parametrize("read", [lambda h: typing.get_type_hints(h), lambda h: hints(h)])
def test_annotations_are_looked_at_by_nobody(read: Callable[[Any], Any]) -> None:
    make = _holder_world(lambda: type("Noted", (), {"__annotations__": {"one": int}}), lambda h: float(len(read(h))))
    assert is_refused(make, lambda w: w.holder.__annotations__.update(other=int))


class Normal(distributions.Normal):
    pass


class Both:
    def __init__(self, one: Any) -> None:
        self.one = one


factors = {"one": 5.0}


def _divergence() -> World:
    def function(x: torch.Tensor) -> torch.Tensor:
        one = Normal(x, x.abs() + 1, validate_args=False)
        return distributions.kl_divergence(one, one) + x

    return World(function=function)


def _mapped() -> World:
    def function(x: torch.Tensor) -> Any:
        return _pytree.tree_map(lambda t: t * 2 if isinstance(t, torch.Tensor) else t.one, [x, Both(x)])[1].tanh() + 1

    return World(function=function)


def _register_divergence(world: World) -> None:
    register_kl(Normal, Normal)(lambda one, other: one.loc * factors["one"])


def _register_node(world: World) -> None:
    if Both not in _pytree.SUPPORTED_NODES:  # once for both worlds
        _pytree._private_register_pytree_node(
            Both, lambda both: ([both.one], None), lambda parts, _: next(iter(parts)) * factors["one"]
        )


REGISTERED = [(_divergence, _register_divergence), (_mapped, _register_node)]


@pytest.mark.parametrize(("build", "register"), REGISTERED)
def test_what_is_registered_by_type(build: Callable[[], World], register: Callable[[World], None]) -> None:
    check(build, register)


@pytest.mark.parametrize(("build", "register"), REGISTERED)
def test_what_a_registered_function_reads(
    build: Callable[[], World], register: Callable[[World], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    register(build())
    check(build, lambda world: monkeypatch.setitem(factors, "one", 7.0))
