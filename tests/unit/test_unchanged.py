"""The comparisons of Grape's extension: each says no where anything is other than it was, and none says yes where the
one in Python says no (`native/src/process/unchanged.h`).
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from grape import native
from grape.runtime.guarding.guards import GuardSet
from grape.runtime.guarding.structure import HAS_NAMES
from grape.runtime.guarding.tensor_guards import Places, checked_gradients
from grape.runtime.state import ABSENT, are_of, have, never
from grape.runtime.state.checked import mean

pytestmark = pytest.mark.skipif(native.built() is None, reason="the extension is not built")


def tensor() -> torch.Tensor:
    return torch.arange(12.0).reshape(3, 4)


def cut(t: torch.Tensor) -> None:
    t.data = t.data[:2]


TENSORS: dict[str, Callable[[torch.Tensor], object]] = {
    "address": lambda t: t.set_(t.untyped_storage(), 1, (2, 4), (4, 1)).set_(t.clone().untyped_storage(), 0, (3, 4)),
    "size": cut,
    "stride": lambda t: t.set_(t.untyped_storage(), 0, (3, 4), (1, 3)),
    "dimensions": lambda t: t.set_(t.untyped_storage(), 0, (12,)),
    "dtype": lambda t: setattr(t, "data", t.data.view(torch.int32)),
    "requires_grad": lambda t: t.requires_grad_(),
    "class": lambda t: setattr(t, "__class__", torch.nn.Parameter),
}
"""What changes a tensor in place."""


@pytest.mark.parametrize("what", TENSORS)
def test_a_tensor_that_changed_is_noticed(what: str) -> None:
    tensors = [torch.ones(2), tensor(), torch.ones(3)]
    places = Places(tensors)
    assert places._pictured() and places._lie() and places.same(in_memory=True)
    TENSORS[what](tensors[1])
    assert not places._pictured()
    assert places._lie() is (what in ("size", "stride", "dimensions", "dtype", "requires_grad", "class"))


def test_dispatch_keys_are_compared() -> None:
    one = torch.ones(2, dtype=torch.complex64)
    places = Places([one])
    one.data = one.data.conj()
    assert places._lie() and not places._pictured()


@pytest.mark.skipif(not HAS_NAMES, reason="this version of torch names no dimensions")
def test_names_of_dimensions_are_left_to_python() -> None:
    places = Places([torch.ones(2, 3).refine_names("a", "b")])  # type: ignore[attr-defined]
    assert places._pictured is never and places.same_in_python()


def test_under_another_mode_of_gradients_python_decides() -> None:
    needs = torch.ones(2, requires_grad=True)
    places = Places([needs])
    with torch.no_grad():
        assert not places._pictured()
    assert places._pictured()


def test_more_or_fewer_tensors_are_others() -> None:
    extension: Any = native.built()
    one, two = torch.ones(2), torch.ones(3)
    both = extension.picture((one, two))
    for tensors in ((one,), (two, one), (one, two, two), ()):
        assert not extension.is_pictured(tensors, both)
        assert not extension.lie_at(
            tensors, one.data_ptr().to_bytes(8, "little") + two.data_ptr().to_bytes(8, "little")
        )


class Own(torch.Tensor): ...


ODD: dict[str, Callable[[], torch.Tensor]] = {
    "a class of the person's": lambda: torch.ones(2).as_subclass(Own),
    "sparse": lambda: torch.eye(2).to_sparse(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
}


@pytest.mark.parametrize("what", ODD)
def test_of_odd_tensors_only_python_knows(what: str) -> None:
    extension: Any = native.built()
    odd = ODD[what]()
    if type(odd) is torch.Tensor:
        assert extension.picture((torch.ones(2), odd)) == b""
    else:
        assert Places([odd])._pictured is never and Places([odd])._lie is never
        assert checked_gradients([odd], [False]) is never
    assert not extension.is_pictured((), b"")


@pytest.mark.parametrize("present", [True, False])
def test_gradients_that_come_and_go(present: bool) -> None:
    leaves = [torch.ones(2, requires_grad=True), torch.ones(2)]
    full, empty = torch.ones(2), None
    leaves[0].grad = full if present else empty
    asked = checked_gradients(leaves, [present, False])
    assert asked()
    leaves[0].grad = empty if present else full
    assert not asked()
    leaves[0].grad = full if present else empty
    leaves[1].grad = full
    assert not asked()


def plain(x: int = 1, *, y: int = 2) -> int:
    return x + y


def again(x: int = 1, *, y: int = 2) -> int:
    return x - y


def copied() -> types.FunctionType:
    made = types.FunctionType(plain.__code__, plain.__globals__, "plain", plain.__defaults__)
    made.__kwdefaults__ = plain.__kwdefaults__
    return made


@pytest.mark.parametrize("name", ["__code__", "__defaults__", "__kwdefaults__", "__qualname__"])
def test_attributes_of_functions(name: str) -> None:
    function = copied()
    asked = have([(plain, "__code__", plain.__code__), (function, name, getattr(function, name))])
    assert asked()
    setattr(
        function, name, {"__code__": again.__code__, "__defaults__": (3,), "__kwdefaults__": {"y": 3}}.get(name, "z")
    )
    assert not asked()
    if name.endswith("defaults__"):
        setattr(function, name, None)
        assert not asked() and have([(function, name, None)])()


def test_a_cell_that_was_emptied() -> None:
    def outer() -> Callable[[], object]:
        value = object()

        def inner() -> object:
            return value

        return inner

    [cell] = outer().__closure__ or ()
    asked = have([(cell, "cell_contents", cell.cell_contents)])
    assert asked()
    cell.cell_contents = object()
    assert not asked()
    del cell.cell_contents
    assert not asked()


def test_names_that_come_go_and_change() -> None:
    value, space = object(), {"a": VALUE, "c": 1}
    asked = mean([(space, "a", VALUE), (space, "b", ABSENT)], ABSENT)
    space["c"] = 2
    assert asked()
    space["b"] = value
    assert not asked()
    del space["b"]
    assert asked()
    space["a"] = value
    assert not asked()
    del space["a"]
    assert not asked()
    assert mean([(types.MappingProxyType(space), "a", VALUE)], ABSENT) is never


VALUE = object()


class First: ...


class Second: ...


def test_classes_of_objects() -> None:
    objects = (First(), First())
    asked = are_of(objects, (First, First))
    assert asked()
    objects[1].__class__ = Second  # type: ignore[assignment]
    assert not asked()


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, 2)
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.first(x)) * self.scale + plain()


CHANGES: dict[str, Callable[[Net], object]] = {
    "an attribute": lambda net: setattr(net, "scale", 3.0),
    "a parameter": lambda net: setattr(net.first, "weight", torch.nn.Parameter(torch.ones(2, 2))),
    "the memory of a parameter": lambda net: setattr(net.first.weight, "data", torch.ones(2, 2)),
    "a module": lambda net: setattr(net, "first", torch.nn.Linear(2, 2)),
    "the class of a module": lambda net: setattr(net.first, "__class__", torch.nn.Bilinear),
    "a hook": lambda net: net.first.register_forward_hook(lambda *_: None),
    "nothing": lambda net: None,
}


@pytest.mark.parametrize("extension", [True, False])
@pytest.mark.parametrize("what", CHANGES)
def test_guards_hold_as_without_the_extension(what: str, extension: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not extension:
        monkeypatch.setattr(native, "built", lambda: None)
    net = Net()
    guards = GuardSet(net)
    assert (guards._have is never) is not extension
    assert guards.in_memory() and guards.holds()
    CHANGES[what](net)
    assert guards.holds() is (what == "nothing")


def scaled(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * SCALE.by[0] + SCALE.more


class Scale:
    def __init__(self) -> None:
        self.by, self.more = [2.0], Net()


SCALE = Scale()


@pytest.mark.parametrize("extension", [True, False])
def test_what_guards_hold_is_counted(extension: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are let go of where nobody but guards refers to an object."""
    if not extension:
        monkeypatch.setattr(native, "built", lambda: None)
    values = (SCALE, SCALE.by, SCALE.more, SCALE.more.first, plain)
    before = list(map(sys.getrefcount, values))
    guards = GuardSet(scaled)
    now = list(map(sys.getrefcount, values))
    assert list(map(guards.references, values)) == [one - other for one, other in zip(now, before, strict=True)]
