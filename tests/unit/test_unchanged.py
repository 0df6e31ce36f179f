"""The comparisons of Grape's extension: each says no where anything is other than it was, and none says yes where the
one in Python says no (`native/src/process/unchanged.h`).
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
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
    assert places._lie() and not places._pictured() and not places.same(in_memory=True)


LOOKS: dict[str, Callable[[torch.Tensor], object]] = {
    "conjugated": lambda t: setattr(t, "data", t.data.conj()),
    "negated": lambda t: setattr(t, "data", torch._neg_view(t.data)),
    "class": lambda t: setattr(t, "__class__", torch.nn.Parameter),
    "requires_grad": lambda t: t.requires_grad_(),
}


@pytest.mark.parametrize("extension", [True, False])
@pytest.mark.parametrize("graded", [True, False])
@pytest.mark.parametrize("what", LOOKS)
def test_what_lies_where_it_lay_and_looks_otherwise(
    what: str, graded: bool, extension: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not extension:
        monkeypatch.setattr(native, "built", lambda: None)
    one = torch.ones(2, dtype=torch.complex64)
    with torch.set_grad_enabled(graded):
        places = Places([one])
        assert places.same(in_memory=True) and places.same_in_python()
        LOOKS[what](one)
        assert places.lie_there() and not places.same(in_memory=True)


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


class Bare:
    __slots__ = ()


def test_classes_of_objects() -> None:
    objects, bare = (First(), First(), Bare()), (None, None, None)
    asked = are_of(objects, (First, First, Bare), bare)
    assert asked()
    objects[1].__class__ = Second  # type: ignore[assignment]
    assert not asked()


def test_classes_of_objects_and_the_dicts_of_their_attributes() -> None:
    objects = (First(), First(), Bare())
    then = vars(objects[1])
    asked = are_of(objects, (First, First, Bare), (vars(objects[0]), then, None))
    assert asked()
    objects[1].__dict__ = dict(then)
    assert not asked()
    objects[1].__dict__ = then
    assert asked() and not are_of((Bare(),), (Bare,), (then,))()


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, 2)
        self.second = torch.nn.Parameter(torch.ones(2, 2))
        self.register_buffer("state", torch.ones(3, 2))
        self.scale = 2.0
        self.table: list[object] = [First(), First()]
        self.pair = (1, {"a": First(), "b": First()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        known = self.table, self.pair, self.state, self.second
        return torch.relu(self.first(x)) * self.scale + plain() + len(known)


class Other(Net): ...


def parameter() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.ones(2, 2))


def swapped(net: Net) -> None:
    net.first.weight, net.second = net.second, net.first.weight


def reborn(net: Net) -> None:
    """Objects that guards hold do not die: another one never stands at the address of one."""
    for _ in range(3):
        net.table[1] = None
        net.table[1] = First()


CHANGES: dict[str, Callable[[Net], object]] = {
    "an attribute": lambda net: setattr(net, "scale", 3.0),
    "a parameter": lambda net: setattr(net.first, "weight", torch.nn.Parameter(torch.ones(2, 2))),
    "the memory of a parameter": lambda net: setattr(net.first.weight, "data", torch.ones(2, 2)),
    "a module": lambda net: setattr(net, "first", torch.nn.Linear(2, 2)),
    "the class of a module": lambda net: setattr(net.first, "__class__", torch.nn.Bilinear),
    "a hook": lambda net: net.first.register_forward_hook(lambda *_: None),
    "a mode": lambda net: net.eval(),
    "the mode of a part": lambda net: net.first.eval(),
    "who needs a gradient": lambda net: net.first.weight.requires_grad_(False),
    "two parameters swapped": swapped,
    "a tensor and its looks swapped": lambda net: torch.utils.swap_tensors(net.first.weight, parameter()),
    "a storage resized": lambda net: net.state.untyped_storage().resize_(4096),
    "a storage emptied": lambda net: net.state.untyped_storage().resize_(0),
    "the form of a tensor": lambda net: net.state.t_(),
    "a hook on a tensor": lambda net: net.first.weight.register_hook(lambda gradient: None),
    "a hook on a gradient": lambda net: net.first.weight.register_post_accumulate_grad_hook(lambda leaf: None),
    "a mark on a tensor": lambda net: setattr(net.state, "mark", 1),
    "an item": lambda net: net.table.__setitem__(0, First()),
    "an item of a dict in a tuple": lambda net: net.pair[1].update(a=First()),
    "order": lambda net: net.pair[1].update(a=net.pair[1].pop("a")),
    "an object at the place of one that died": reborn,
    "attributes": lambda net: setattr(net, "__dict__", {**vars(net), "scale": 3.0}),
    "attributes of a part": lambda net: setattr(net.first, "__dict__", dict(vars(net.first))),
    "the class of the root": lambda net: setattr(net, "__class__", Other),
    "a method of the instance": lambda net: setattr(net.first, "forward", abs),
    "defaults of a function": lambda net: setattr(plain, "__defaults__", (5,)),
    "code of a function": lambda net: setattr(plain, "__code__", again.__code__),
    "a global name": lambda net: globals().update(plain=again),
    "what a tensor holds": lambda net: net.state.add_(1),
    "nothing": lambda net: None,
}
HARMLESS = {"nothing", "what a tensor holds"}


@pytest.fixture
def plain_again() -> Iterator[None]:
    function, code, defaults = plain, plain.__code__, plain.__defaults__
    yield
    globals()["plain"] = function
    function.__code__, function.__defaults__ = code, defaults


@pytest.mark.usefixtures("plain_again")
@pytest.mark.parametrize("extension", [True, False])
@pytest.mark.parametrize("graded", [True, False])
@pytest.mark.parametrize("what", CHANGES)
def test_guards_hold_as_without_the_extension(
    what: str, graded: bool, extension: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not extension:
        monkeypatch.setattr(native, "built", lambda: None)
    net = Net()
    with torch.set_grad_enabled(graded):
        guards = GuardSet(net)
        assert (guards._have is never) is not extension
        assert guards.in_memory() and guards.holds()
        with torch.no_grad():
            CHANGES[what](net)
        assert guards.holds() is (what in HARMLESS)


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
