"""What enters and leaves a region: structure, types, identities, shared memory, changes of containers."""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good
from torch import nn

from grape.runtime import GraphedFunction
from grape.runtime.backends.reference.backend import ReferenceBackend
from tests.property.programs import Twins, World

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


pytestmark = pytest.mark.usefixtures("without_gradients")


def draw(world: World, *shape: int) -> torch.Tensor:
    world.seed = getattr(world, "seed", 0) + 1
    return torch.randn(*(shape or (3, 4)), generator=torch.Generator().manual_seed(world.seed))


def one(world: World) -> Arguments:
    return (draw(world),), {}


def work(x: torch.Tensor) -> torch.Tensor:
    return (x * 2 + 1).tanh() * 0.5


class Point(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass
class Data:
    a: Any
    b: Any = 1


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: Any


class Output(collections.OrderedDict[str, Any]):
    """Like the outputs of transformers: items are attributes as well."""

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        super().__setattr__(name, value)


def _output(y: torch.Tensor) -> Output:
    made = Output()
    made["logits"] = y
    made["hidden"] = (y + 1, y)
    return made


RESULTS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "tensor": lambda x, y: y,
    "tuple": lambda x, y: (y, 1, None, "text", 2.5),
    "the same twice": lambda x, y: [y, y],
    "views of one": lambda x, y: (y, y[1:], y.t(), y[:, 1]),
    "overlapping views only": lambda x, y: (y[:2], y[1:]),
    "nested": lambda x, y: {"a": [y, {"b": (y + 1,)}], 3: y},
    "namedtuple": lambda x, y: Point(y, Point(1, x)),
    "dataclass": lambda x, y: Data(y, [x]),
    "frozen dataclass": lambda x, y: Frozen(y),
    "ordered": lambda x, y: collections.OrderedDict(b=y, a=x),
    "dict with attributes": lambda x, y: _output(y),
    "argument": lambda x, y: x,
    "view of the argument": lambda x, y: (x[1:], x.t(), y),
    "shape": lambda x, y: (y.shape, y),
    "maximum": lambda x, y: y.max(0),
    "sorted": lambda x, y: y.sort(),
    "expanded": lambda x, y: y[:, :1].expand(3, 7),
    "strided": lambda x, y: y[:, ::2],
    "scalar tensor": lambda x, y: y.sum(),
    "empty": lambda x, y: y[:0],
    "nothing": lambda x, y: None,
    "a new list each time": lambda x, y: [],
    "dtypes": lambda x, y: (y, y > 0, y.long(), y.double(), y.to(torch.bfloat16)),
    "complex": lambda x, y: torch.fft.fft(y),
    "a frozen set": lambda x, y: (y, frozenset([1, 2])),
    "enum": lambda x, y: (y, Color.RED),
}


@pytest.mark.parametrize("result", RESULTS)
def test_results(result: str) -> None:
    shape = RESULTS[result]
    twins = Twins(lambda: World(function=lambda x: shape(x, work(x))))
    twins.warm(one, limit=10)
    twins.calls_of(one, 3)


REFUSED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "set": lambda x, y: (y, {1, 2}),
    "defaultdict": lambda x, y: collections.defaultdict(list, a=y),
    "deque": lambda x, y: collections.deque([y]),
    "subclass of deque": lambda x, y: type("D", (collections.deque,), {})([y]),
    "parameter made here": lambda x, y: nn.Parameter(y, requires_grad=False),
    "gradient asked for": lambda x, y: y.detach().requires_grad_(),
    "attributes on a tensor": lambda x, y: _tagged(y),
    "iterator": lambda x, y: (y, iter([1])),
}


def _tagged(y: torch.Tensor) -> torch.Tensor:
    y.tag = 1  # type: ignore[attr-defined]
    return y


@pytest.mark.parametrize("result", REFUSED)
def test_results_that_cannot_be_rebuilt(result: str) -> None:
    shape = REFUSED[result]

    def function(x: torch.Tensor) -> Any:
        return shape(x, work(x))

    twins = Twins(lambda: World(function=function))
    for _ in range(14):
        mine, theirs = function(torch.ones(3, 4)), twins.graphed(torch.ones(3, 4))
        assert type(mine) is type(theirs) or result == "subclass of deque"
        if isinstance(mine, torch.Tensor):
            assert mine.requires_grad == theirs.requires_grad
            assert vars(mine) == vars(theirs)
    assert twins.replays == 0
    assert twins.refused.code == "GR405"


class Color(enum.IntEnum):
    RED = 1


class Animal(enum.IntEnum):
    CAT = 1


class Plain:
    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


class Other(Plain):
    pass


def told_apart(read: Callable[[Any], Any], *values: Callable[[torch.Tensor], Any]) -> Twins:
    """Calls with `values` in turn, each with its own graph or none, agree."""
    twins = Twins(lambda: World(function=lambda x, a: work(x) * read(a)))

    def call_with(value: Callable[[torch.Tensor], Any]) -> Callable[[World], Arguments]:
        return lambda world: ((draw(world), value(draw(world))), {})

    twins.calls_of(call_with(values[0]), 6)
    for _ in range(3):
        for value in values:
            twins.call(call_with(value))
    for value in values:
        twins.calls_of(call_with(value), 5)
    return twins


APART: dict[str, tuple[Callable[[Any], Any], list[Callable[[torch.Tensor], Any]]]] = {
    "1, True and 1.0": (lambda a: a if type(a) is not bool else 7, [lambda x: 1, lambda x: True, lambda x: 1.0]),
    "0.0 and -0.0": (lambda a: a, [lambda x: 0.0, lambda x: -0.0]),
    "nan": (lambda a: 1 if a == a else 2, [lambda x: float("nan"), lambda x: 2.0]),
    "equal enums": (
        lambda a: 2 if isinstance(a, Color) else 3,
        [lambda x: Color.RED, lambda x: Animal.CAT, lambda x: 1],
    ),
    "equal keys": (lambda a: 2 if type(next(iter(a))) is int else 3, [lambda x: {1: x}, lambda x: {True: x}]),
    "equal keys in tuples": (
        lambda a: 2 if type(next(iter(a))[0]) is int else 3,
        [lambda x: {(1,): x}, lambda x: {(True,): x}],
    ),
    "order of keys": (
        lambda a: next(iter(a.values())),
        [lambda x: {"a": x, "b": x + 1}, lambda x: {"b": x, "a": x + 1}],
    ),
    "class": (lambda a: 2 if type(a) is Plain else 3, [lambda x: Plain(h=x), lambda x: Other(h=x)]),
    "list and tuple": (lambda a: 2 if isinstance(a, list) else 3, [lambda x: [x], lambda x: (x,)]),
    "frozen sets": (
        lambda a: 2 if type(next(iter(a))) is int else 3,
        [lambda x: frozenset([1]), lambda x: frozenset([True])],
    ),
    "ranges": (lambda a: a.stop, [lambda x: range(0, 3, 2), lambda x: range(0, 4, 2)]),
    "slices": (lambda a: 2 if type(a.stop) is int else 3, [lambda x: slice(0, 1), lambda x: slice(0, True)]),
    "attribute or none": (lambda a: getattr(a, "k", 5), [lambda x: Plain(h=x), lambda x: Plain(h=x, k=2)]),
    "dtype": (lambda a: a.element_size(), [lambda x: x, lambda x: x.double()]),
    "dtype object": (lambda a: torch.ones(4, dtype=a).sum(), [lambda x: torch.float32, lambda x: torch.float64]),
    "stride": (lambda a: a.stride(0) + a, [lambda x: x, lambda x: x.t().contiguous().t()]),
    "requires grad": (lambda a: 2.0 if a.requires_grad else 3.0, [lambda x: x, lambda x: x.clone().requires_grad_()]),
    "parameter": (lambda a: 2.0 if type(a) is nn.Parameter else 3.0, [lambda x: x, lambda x: nn.Parameter(x, False)]),
    "number of dimensions": (lambda a: a.sum() * a.dim(), [lambda x: x, lambda x: x[0], lambda x: x[:0]]),
    "sparse": (lambda a: a.to_dense() if a.is_sparse else a, [lambda x: x, lambda x: x.to_sparse()]),
    "container twice": (lambda a: 2 if a[0] is a[1] else 3, [lambda x: [[x]] * 2, lambda x: [[x], [x]]]),
    "functions": (lambda a: a(torch.ones(4)), [lambda x: torch.sin, lambda x: torch.cos]),
    "alias": (
        lambda a: 2 if a[0].untyped_storage().data_ptr() == a[1].untyped_storage().data_ptr() else 3,
        [lambda x: (x, x), lambda x: (x, x[:]), lambda x: (x, x.clone())],
    ),
}


@pytest.mark.parametrize("name", APART)
def test_arguments_that_are_equal_but_not_the_same(name: str) -> None:
    read, values = APART[name]
    told_apart(read, *values)


WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "first": lambda a, b: a.add_(1),
    "second reads first": lambda a, b: b.copy_((a.mul_(2) + b).clone()),
    "part": lambda a, b: a[1:].zero_(),
}
PAIRS: dict[str, Callable[[World], tuple[torch.Tensor, torch.Tensor]]] = {
    "separate": lambda w: (draw(w), draw(w)),
    "same": lambda w: (lambda x: (x, x))(draw(w)),
    "two objects": lambda w: (lambda x: (x, x.view(3, 4)))(draw(w)),
    "overlapping": lambda w: (lambda x: (x[:3], x[1:4]))(draw(w, 5, 4)),
    "overlapping otherwise": lambda w: (lambda x: (x[1:4], x[:3]))(draw(w, 5, 4)),
    "disjoint in one storage": lambda w: (lambda x: (x[:3], x[3:]))(draw(w, 6, 4)),
    "transposed": lambda w: (draw(w, 4, 3).t(), draw(w)),
    "empty": lambda w: (draw(w, 0, 4), draw(w, 0, 4)),
    "columns": lambda w: (lambda x: (x[:, :4], x[:, 4:]))(draw(w, 3, 8)),
    "expanded, read only": lambda w: (draw(w), draw(w, 1, 4).expand(3, 4)),
    "buffer": lambda w: (w.buffer, draw(w)),
    "buffer second": lambda w: (draw(w), w.buffer),
}


@pytest.mark.parametrize("first", ["separate", "same", "overlapping", "buffer"])
@pytest.mark.parametrize("then", PAIRS)
@pytest.mark.parametrize("write", WRITES)
def test_written_arguments_that_share_memory(first: str, then: str, write: str) -> None:
    if "expanded" in then and write == "second reads first":
        pytest.skip("PyTorch refuses it")

    def build() -> World:
        buffer = torch.randn(3, 4)

        def function(a: torch.Tensor, b: torch.Tensor) -> Any:
            y = work(a) + b
            WRITES[write](a, b)
            buffer.mul_(0.5) if a.numel() else None
            return y + b + (buffer if a.numel() else 1), a, b

        return World(function=function, buffer=buffer)

    twins = Twins(build)
    twins.calls_of(lambda w: (PAIRS[first](w), {}), 7)
    assert twins.replays
    twins.calls_of(lambda w: (PAIRS[then](w), {}), 6)
    twins.calls_of(lambda w: (PAIRS[first](w), {}), 2)


def test_a_buffer_that_becomes_an_argument() -> None:
    """At capture the argument was other memory than the buffer that the region writes."""

    def build() -> World:
        buffer = torch.zeros(3, 4)

        def function(x: torch.Tensor) -> torch.Tensor:
            buffer.add_(1)
            return (x * 2 + buffer).tanh()

        return World(function=function, buffer=buffer)

    twins = Twins(build)
    twins.warm(one)
    twins.calls_of(lambda w: ((w.buffer,), {}), 3)


def test_a_written_argument_that_is_read_from_outside() -> None:
    def build() -> World:
        buffer = torch.zeros(3, 4)

        def function(x: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            return (x * 2 + buffer).tanh()

        return World(function=function, buffer=buffer)

    twins = Twins(build)
    twins.warm(one)
    twins.calls_of(lambda w: ((w.buffer,), {}), 3)


def test_state_written_through_another_view() -> None:
    """The first tensor that is found on a storage may be a small view of what is written."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.big = torch.zeros(4, 4)
            self.small = self.big[:1]
            self.last = self.big[3]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.big.add_(x.mean())
            return (x + self.small).tanh() * self.last

    twins = Twins(lambda: World(function=Net()))
    twins.warm(one)
    twins.calls_of(one, 3)


OUTSIDE: dict[str, Callable[[nn.Module, torch.Tensor], Any]] = {
    "buffer": lambda m, y: (y, m.mean),
    "buffer, not read": lambda m, y: (y, m.unread),
    "parameter": lambda m, y: [m.weight, y],
    "view of a buffer": lambda m, y: (y, m.mean[1:]),
    "frozen parameter": lambda m, y: (m.frozen, y),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_results_that_are_state(name: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4))
            self.frozen = nn.Parameter(torch.randn(4), requires_grad=False)
            self.register_buffer("mean", torch.randn(4))
            self.register_buffer("unread", torch.randn(4))

        def forward(self, x: torch.Tensor) -> Any:
            return OUTSIDE[name](self, work(x + self.weight) - self.mean + self.frozen)

    twins = Twins(lambda: World(function=Net()))
    twins.warm(one)
    twins.calls_of(one, 2)


CONTAINERS: dict[str, tuple[Callable[[World], Any], Callable[[Any, torch.Tensor], Any]]] = {
    "dict item": (lambda w: {"h": draw(w)}, lambda c, y: c.update(h=y)),
    "dict item swapped": (lambda w: {"h": draw(w), "k": draw(w)}, lambda c, y: c.update(h=c["k"], k=c["h"])),
    "dict key moved": (lambda w: {"h": draw(w), "k": 1}, lambda c, y: c.update(h=c.pop("h"))),
    "dict key removed": (lambda w: {"h": draw(w), "k": 1}, lambda c, y: c.pop("k")),
    "list append": (lambda w: [draw(w)], lambda c, y: c.append(y)),
    "list cleared": (lambda w: [draw(w)], lambda c, y: c.clear()),
    "attribute": (lambda w: Plain(h=draw(w)), lambda c, y: setattr(c, "h", y)),
    "attribute added": (lambda w: Plain(h=draw(w)), lambda c, y: setattr(c, "k", (y, 1))),
    "attribute deleted": (lambda w: Plain(h=draw(w), k=1), lambda c, y: delattr(c, "k")),
    "attribute and item": (lambda w: _output(draw(w)), lambda c, y: c.__setitem__("logits", y)),
    "attribute of a dict removed": (lambda w: _output(draw(w)), lambda c, y: vars(c).pop("hidden")),
    "number": (lambda w: Plain(n=1), lambda c, y: setattr(c, "n", c.n + 1)),
    "minus zero": (lambda w: Plain(n=0.0), lambda c, y: setattr(c, "n", -c.n)),
    "one for true": (lambda w: Plain(n=1), lambda c, y: setattr(c, "n", True)),
    "nested": (lambda w: {"a": [Data(draw(w))]}, lambda c, y: c["a"].append(Data(c["a"][0]))),
    "set": (lambda w: {1}, lambda c, y: c.add(2)),
    "set of an object": (lambda w: Plain(s=set(), h=draw(w)), lambda c, y: c.s.add(2)),
    "ordered moved": (
        lambda w: collections.OrderedDict(a=draw(w), b=draw(w)),
        lambda c, y: c.move_to_end("a"),
    ),
    "counter": (lambda w: collections.Counter(a=1), lambda c, y: c.update(["a"])),
    "defaultdict": (lambda w: collections.defaultdict(list), lambda c, y: c["k"].append(y)),
    "deque": (lambda w: collections.deque([draw(w)], maxlen=2), lambda c, y: c.append(y)),
    "shape of an argument": (draw, lambda c, y: c.t_()),
    "flag of an argument": (draw, lambda c, y: c.requires_grad_()),
    "memory of an argument": (draw, lambda c, y: c.set_(y.clone())),
    "attribute of an argument": (draw, lambda c, y: setattr(c, "tag", 1)),
    "cycle": (lambda w: _cycle(draw(w)), lambda c, y: c.append(y)),
}


def _cycle(x: torch.Tensor) -> list[Any]:
    made: list[Any] = [x]
    made.append(made)
    return made


@pytest.mark.parametrize("name", CONTAINERS)
def test_changes_of_arguments(name: str) -> None:
    make, change = CONTAINERS[name]

    def function(x: torch.Tensor, c: Any) -> torch.Tensor:
        y = work(x)
        change(c, y)
        return y * 2

    twins = Twins(lambda: World(function=function))
    twins.calls_of(lambda w: ((draw(w), make(w)), {}), 10)


def test_a_container_that_lives_on() -> None:
    """A cache that grows by concatenation, reordered and cut between calls."""

    def build() -> World:
        def function(x: torch.Tensor, cache: Plain) -> torch.Tensor:
            cache.keys = torch.cat([cache.keys, x])
            return (cache.keys * 2).tanh().sum(0)

        return World(function=function, cache=Plain(keys=torch.zeros(1, 4)))

    twins = Twins(build)
    for length in range(30):
        twins.call(lambda w: ((draw(w, 1, 4), w.cache), {}))
        if length % 5 == 4:
            twins.both(lambda w: setattr(w.cache, "keys", w.cache.keys[:1].clone()))
    assert twins.replays >= 8


def test_a_method_of_an_argument() -> None:
    class Cache(Plain):
        def update(self, y: torch.Tensor) -> None:
            self.h = self.h + y

    def function(x: torch.Tensor, update: Callable[[torch.Tensor], None]) -> torch.Tensor:
        y = work(x)
        update(y)
        return y + 1

    def build() -> World:
        return World(function=function, cache=Cache(h=torch.zeros(3, 4)))

    twins = Twins(build)
    twins.calls_of(lambda w: ((draw(w), w.cache.update), {}), 10)


def test_a_method_of_a_list() -> None:
    def function(x: torch.Tensor, put: Callable[[torch.Tensor], None]) -> torch.Tensor:
        y = work(x)
        put(y)
        return y + 1

    twins = Twins(lambda: World(function=function, found=[]))
    twins.calls_of(lambda w: ((draw(w), w.found.append), {}), 10)


def test_an_object_that_counts_its_instances() -> None:
    """Neither capture nor replay calls `__new__` or `__init__` of the person's classes for arguments."""

    def build() -> World:
        class Counted:
            made = 0

            def __new__(cls, *args: Any) -> Any:
                cls.made += 1
                return super().__new__(cls)

            def __init__(self, h: torch.Tensor) -> None:
                self.h = h

        return World(function=lambda x, c: work(x) + c.h, cls=Counted)

    twins = Twins(build)
    for _ in range(8):
        twins.call(lambda w: ((draw(w), w.cls(draw(w))), {}))
        assert twins.eager.cls.made == twins.world.cls.made


def test_versions_of_written_tensors_count_up() -> None:
    """Autograd notices that a value it has saved was written by a replay."""
    state = torch.zeros(3, 4)
    twins = Twins(lambda: World(function=lambda x: (x.add_(1) + state.add_(1)).tanh()))
    for _ in range(16):
        twins.graphed(torch.zeros(3, 4))
    assert twins.replays
    x, before = torch.zeros(3, 4), state._version
    with torch.enable_grad():
        w = torch.ones(3, 4, requires_grad=True)
        loss = (w * x).sum() + (w * state).sum()
    twins.graphed(x)
    assert state._version > before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_keyword_arguments_in_any_order() -> None:
    def function(x: torch.Tensor, *, a: torch.Tensor, b: float = 2.0) -> torch.Tensor:
        return work(x) * b - a

    twins = Twins(lambda: World(function=function))
    twins.warm(lambda w: ((draw(w),), {"a": draw(w), "b": 3.0}))
    twins.call(lambda w: ((draw(w),), {"b": 3.0, "a": draw(w)}))
    twins.call(lambda w: ((draw(w),), {"a": draw(w)}))
    twins.call(lambda w: ((draw(w),), {"a": draw(w), "b": 3.0}))


class Computed:
    """Its attributes are computed, and cannot be now."""

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        raise ConnectionError("no server")


def _deep(x: torch.Tensor) -> list[Any]:
    found: list[Any] = [x * 2]
    for _ in range(5000):
        found = [found]
    return found


@pytest.mark.parametrize(
    "result", [_deep, lambda x: (x * 2, Computed())], ids=["nested deeply", "attributes that cannot be read"]
)
def test_results_that_cannot_be_looked_into(result: Callable[[torch.Tensor], Any]) -> None:
    """The person gets them, and no error of ours."""
    graphed = GraphedFunction(result, backend=ReferenceBackend(), tolerance=0.0)
    x = torch.ones(3)
    with torch.no_grad():
        for _ in range(30):
            found = graphed(x)
            while not isinstance(found, torch.Tensor):
                found = found[0]
            assert torch.equal(found, x * 2)
    evidence = graphed.evidence()
    assert evidence is not None and not evidence.replays
    graphed.release()


def test_an_argument_that_cannot_be_looked_into() -> None:
    graphed = GraphedFunction(lambda x, other: x * 2, backend=ReferenceBackend(), tolerance=0.0)
    with torch.no_grad():
        for _ in range(12):
            assert torch.equal(graphed(torch.ones(3), Computed()), torch.full((3,), 2.0))
    evidence = graphed.evidence()
    assert evidence is not None and evidence.refused is not None
    assert "ConnectionError: no server" in evidence.refused.why
    graphed.release()
