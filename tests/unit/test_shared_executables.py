"""Regions whose shapes share executables: steady state, switches, budgets, refusals, memory that runs out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good

import grape
from grape.errors import UsageError
from grape.runtime import GraphedFunction, Region, account
from grape.runtime.accounts.memory import apply_budget
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.backends.reference.executable import ReferenceExecutable
from grape.runtime.compression import ExecutableStore, StoredGraph
from grape.runtime.compression.members import ExecutableGroup
from grape.runtime.compression.residency import Limits
from tests.property.programs import eager_to_graph

from .plain_store import PlainStore, PlainUser

NODE_BYTES = 1000


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad(), eager_to_graph():
        yield


def work(x: torch.Tensor) -> torch.Tensor:
    """Four nodes whatever the length; another for lengths of ten."""
    y = torch.tanh(x * 2) + x.shape[0]
    return (y.exp() if len(x) % 10 == 0 else y) * 0.5


class Graphed:
    """`work` under Grape on a tape that pretends to need memory; every call is compared with eager."""

    def __init__(self, budget: int | None = None, function: Callable[..., Any] = work, **backend: Any) -> None:
        self.backend = ReferenceBackend(poison=True, node_bytes=NODE_BYTES, **backend)
        self.function = function
        self.graphed = GraphedFunction(function, backend=self.backend, tolerance=0.0, memory_budget=budget)
        self.turn = 0

    def call(self, *lengths: int, times: int = 1) -> None:
        for length in lengths * times:
            self.turn += 1
            x = torch.linspace(-1, 1, length) * self.turn
            assert torch.equal(self.graphed(x), self.function(x))

    def warm(self) -> Graphed:
        """Until it is known which results may leave in place: graphs from before are of another topology."""
        self.call(2, 3, times=16)
        self.region.release()
        return self

    @property
    def region(self) -> Region:
        region = self.graphed._region
        assert region is not None
        return region

    @property
    def store(self) -> ExecutableStore:
        store = self.region.context.executables
        assert store is not None
        return store

    def graph(self, length: int) -> StoredGraph:
        shape = next(s for s in self.region.shapes.values() if s.shapes[0][1] == (length,))
        graph = shape.entries[0].graph
        assert isinstance(graph, StoredGraph)
        return graph


def test_many_shapes_share_one_executable() -> None:
    world = Graphed().warm()
    world.call(*range(2, 10), times=8)
    held = account(world.region.context)
    assert held is not None and (held.graphs, held.classes, held.alone) == (8, 1, 0), held
    assert held.executables <= 8 and held.switches >= 8
    assert held.per_graph_bytes >= 8 * 4 * NODE_BYTES
    assert world.region.replays > 20
    world.graphed.release()
    assert world.backend.memory().executable_bytes == 0


def test_a_replay_of_the_same_shape_is_the_executables_own(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Graphed()
    world.call(4, 5, times=8)
    world.call(4)
    graph = world.graph(4)
    replay: Any = graph.replay
    assert isinstance(replay.__self__, ReferenceExecutable)

    def untouched(*_: Any) -> None:
        raise AssertionError("the store was asked")

    with monkeypatch.context() as patch:
        patch.setattr(ExecutableStore, "replay", untouched)
        world.call(4, times=3)
    launches = world.store.account().launches
    assert launches == sum(entry.replays for entry in world.region.entries)


def test_a_shape_that_lost_its_executable_asks_again() -> None:
    world = Graphed().warm()
    world.call(4, 5, times=8)
    world.store.limits = Limits(executables=1, nbytes=None)
    world.store.apply_limits()
    world.call(4)
    one, other = world.graph(4), world.graph(5)
    executable: Any = one.replay
    assert other.nbytes == 0 and one.nbytes == 4 * NODE_BYTES
    replays = world.region.replays
    world.call(5, 4, 5, 4)
    assert world.region.replays == replays + 4
    again: Any = one.replay
    assert again.__self__ is executable.__self__
    one.release()
    with pytest.raises(RuntimeError, match="released"):
        one.replay()


def test_two_graphs_of_one_shape_are_two_members() -> None:
    """A recurrence goes back and forth between two sides: two graphs, which read what the other wrote."""

    def step(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x + state) * 0.5

    graphed = GraphedFunction(step, backend=ReferenceBackend(poison=True), tolerance=0.0)
    state, wanted = torch.zeros(4), torch.zeros(4)
    for turn in range(40):
        x = torch.full((4,), float(turn))
        state, wanted = graphed(x, state), step(x, wanted)
        assert torch.equal(state, wanted)
    region = graphed._region
    assert region is not None and len(region.entries) == 2 and region.replays > 20
    assert region.context.executables is not None
    found = region.context.executables.account()
    assert (found.shapes, found.classes) == (2, 1)
    graphed.release()


class Frames:
    """An argument that is an object: its class is guarded with the region's own state."""

    scale = 2.0

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


class Halves(Frames):
    scale = 0.5


def scaled(frames: Frames) -> torch.Tensor:
    return torch.tanh(frames.x * type(frames).scale) + 1


def test_graphs_of_one_kind_of_argument_share_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a thousand shapes would keep a thousand times on the host."""
    graphed = GraphedFunction(scaled, backend=ReferenceBackend(poison=True), tolerance=0.0)

    def call(kind: type[Frames], length: int) -> None:
        x = torch.linspace(-1, 1, length)
        assert torch.equal(graphed(kind(x)), scaled(kind(x)))

    for length in (4, 5, 6) * 6:
        call(Frames, length)
        call(Halves, length)
    region = graphed._region
    assert region is not None and len(region.entries) == 6 and region.replays > 10
    assert len({id(entry.guards) for entry in region.entries}) == 2
    monkeypatch.setattr(Halves, "scale", 0.25)
    for length in (4, 5, 6) * 4:
        call(Frames, length)
        call(Halves, length)
    graphed.release()


def test_a_budget_evicts_and_goes_on_replaying() -> None:
    """Room for one executable beside pool and slots: two topologies take turns."""
    world = Graphed()
    world.call(4, 10, times=8)
    held = account(world.region.context)
    assert held is not None and (held.classes, held.executables) == (2, 2)
    beside = held.pool_bytes + held.placeholder_bytes
    tight = Graphed(budget=beside + 5 * NODE_BYTES)
    tight.call(4, 10, times=20)
    found = tight.store.account()
    assert tight.region.refused is None and tight.region.replays > 20
    assert found.executables == 1 and found.evictions > 2
    assert tight.backend.memory().executable_bytes <= 5 * NODE_BYTES


def test_below_one_executable_the_region_stays_eager_and_says_so() -> None:
    world = Graphed(budget=3 * NODE_BYTES)
    world.call(4, times=10)
    refused = world.region.refused
    assert refused is not None and refused.code == "GR405" and world.region.replays == 0
    assert "no executable fits into the memory budget of 2.93 KB" in refused.why
    assert world.backend.memory().pool_bytes == 0 and world.region.context.store.nbytes == 0
    world.region.context.memory_budget = None
    world.region.begin_run()
    world.call(4, times=10)
    assert world.region.refused is None and world.region.replays > 0


def test_a_budget_below_the_pool_lets_no_executable_stay() -> None:
    """Also where executables need no memory, as on the tape that notebooks run on."""
    backend = ReferenceBackend()
    graphed = GraphedFunction(work, backend=backend, tolerance=0.0)
    for turn in range(10):
        graphed(torch.full((400,), float(turn)))
    region = graphed._region
    assert region is not None and region.replays and region.context.executables is not None
    region.context.memory_budget = 1000
    apply_budget(region.context)
    assert region.context.executables.account().executables == 0
    x = torch.linspace(-1, 1, 400)
    assert torch.equal(graphed(x), work(x))
    assert region.refused is not None and "the memory budget of 1000 B" in region.refused.why


def test_a_shape_without_room_stays_eager_and_others_replay() -> None:
    """Five nodes do not fit where four do."""
    world = Graphed(capacity_bytes=4 * NODE_BYTES)
    world.call(4, times=8)
    world.call(10, 4, times=8)
    shapes = {shape.shapes[0][1]: shape for shape in world.region.shapes.values()}
    assert shapes[(4,)].entries and not shapes[(10,)].entries and shapes[(10,)].closed
    assert world.region.refused is None
    decision = shapes[(10,)].decision
    assert decision is not None and decision.why == "the device has no memory left for an executable of its graphs"


def test_an_executable_that_cannot_be_had_again_costs_the_graph_and_not_the_call() -> None:
    world = Graphed()
    world.call(4, 10, times=8)
    world.backend._capacity_bytes = 4 * NODE_BYTES  # another program took the rest
    world.store.limits = Limits(executables=0, nbytes=None)
    world.store.apply_limits()
    world.store.limits = Limits(executables=32, nbytes=None)
    replays = world.region.replays
    world.call(10, 4, 10, 4)
    assert world.region.replays == replays + 2
    world.backend._capacity_bytes = 0
    world.store.limits = Limits(executables=0, nbytes=None)
    world.store.apply_limits()
    world.store.limits = Limits(executables=32, nbytes=None)
    world.call(4, 10, 4, 10)
    assert world.region.refused is not None and "no memory left" in world.region.refused.why


def test_a_refused_update_is_counted_and_the_shape_gets_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExecutableGroup, "prefers_nodes", lambda group, changes: False)  # so the graph is kept
    world = Graphed().warm()
    world.call(4, 5, times=8)
    world.store.limits = Limits(executables=1, nbytes=None)
    world.store.apply_limits()
    world.call(4)
    monkeypatch.setattr(ReferenceExecutable, "update_from", lambda self, graph: False)
    monkeypatch.setattr(ReferenceExecutable, "update_prepared", lambda self, sets, attachment: False)
    world.store.limits = Limits(executables=4, nbytes=None)
    replays = world.region.replays
    world.call(5, 4, 5, 4)
    found = world.store.account()
    assert (found.refused, found.alone) == (1, 1) and world.region.replays == replays + 4


def test_a_refused_update_without_the_graph_is_captured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Graphed().warm()
    world.call(4, 5, times=8)
    world.store.graph_budget_bytes = 0
    world.store.limits = Limits(executables=1, nbytes=None)
    world.store.apply_limits()
    world.call(4)
    with monkeypatch.context() as patch:
        patch.setattr(ReferenceExecutable, "update_prepared", lambda self, sets, attachment: False)
        patch.setattr(ReferenceExecutable, "update_from", lambda self, graph: False)
        world.call(5)
    assert world.store.account().refused == 1 and world.store.account().shapes == 1
    world.call(5, times=6)
    assert world.graph(5).nbytes > 0


def test_an_update_that_raises_costs_the_graph_and_not_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Graphed().warm()
    world.call(4, 5, times=8)
    world.store.limits = Limits(executables=1, nbytes=None)
    world.store.apply_limits()
    world.call(4)

    def broken(*_: Any) -> bool:
        raise RuntimeError("the device does not accept again the parameters that an executable had")

    with monkeypatch.context() as patch:
        patch.setattr(ReferenceExecutable, "update_prepared", broken)
        patch.setattr(ReferenceExecutable, "update_from", broken)
        world.call(5)
    assert world.store.account().shapes == 1 and world.region.refused is None
    replays = world.region.replays
    world.call(4, 5, times=6)
    assert world.region.replays > replays + 6


_needed = 0
_worlds: list[Graphed] = []


def _full() -> bool:
    held = 0
    if _worlds and _worlds[-1].graphed._region is not None:
        world = _worlds[-1]
        held = world.backend.memory().pool_bytes + world.region.context.store.nbytes
    return bool(_needed) and _needed + held > 1000


_full.__code__ = _full.__code__.replace(co_filename=torch.cuda.__file__)  # as the driver would, and not the person
_library: dict[str, Any] = {"__name__": "torch.cuda.full", "device": SimpleNamespace(full=_full)}
exec(compile("def is_full():\n    return device.full()\n", torch.cuda.__file__, "exec"), _library)
is_full: Callable[[], bool] = _library["is_full"]
"""Whether the device is: a function of a library, and what it asks no guard can read, as on a real one."""


def hungry(x: torch.Tensor) -> torch.Tensor:
    """Needs `_needed` bytes of a device of 1,000, which the graphs of the last world share."""
    if is_full():
        raise torch.OutOfMemoryError("CUDA out of memory")
    return work(x)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[Graphed]:
    made = Graphed(function=hungry)
    made.call(6, times=6)
    assert made.region.entries
    _worlds.append(made)
    yield made
    _worlds.clear()
    monkeypatch.undo()
    made.graphed.release()


def test_graphs_give_way_to_the_persons_own_memory(world: Graphed, monkeypatch: pytest.MonkeyPatch) -> None:
    """An eager call of a captured shape that runs out of memory beside the graphs is made again without them."""
    monkeypatch.setattr(sys.modules[__name__], "_needed", 900)
    world.region.context.apply = False  # no graph can serve these calls
    x = torch.linspace(-1, 1, 6)
    assert torch.equal(world.graphed(x), work(x)) and torch.equal(world.graphed(x), work(x))
    assert world.region.refused is not None and "ran out of memory" in world.region.refused.why
    assert world.backend.memory().pool_bytes == 0 and world.region.context.exhausted


def test_memory_that_is_short_without_graphs_is_the_persons_error(
    world: Graphed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shape that nobody has seen is not run twice; but the graphs are gone for the next try."""
    monkeypatch.setattr(sys.modules[__name__], "_needed", 900)
    x = torch.zeros(7)
    with pytest.raises(torch.OutOfMemoryError):
        world.graphed(x)
    assert not world.region.entries and all(torch.equal(world.graphed(x), work(x)) for _ in range(12))
    assert not world.region.entries  # nothing is captured again


class Saver(PlainUser):
    saving_ns = 40.0


class Clock:
    now = 0

    def __call__(self) -> int:
        self.now += 100
        return self.now


def test_a_class_waits_until_its_calls_have_lost_what_an_executable_costs() -> None:
    backend = ReferenceBackend(node_bytes=100)
    store = PlainStore(limits=Limits(executables=1, nbytes=None), clock_ns=Clock())
    place = torch.linspace(-1, 1, 4)
    for name, body in (("one", lambda: torch.tanh(place)), ("two", lambda: torch.tanh(place) * 2)):
        graph, _ = backend.capture(body)
        store.admit(name, graph, lambda launch: launch() is None, user=Saver())
    found = [store.serves("one") for _ in range(4)]
    assert found == [False, False, False, True]  # 3 calls lose 120 ns, an executable takes 100
    assert not store.serves("two") and store.missing is not None and store.missing.waiting
    store.release()
    backend.close()


def test_the_budget_of_a_graphed_function() -> None:
    graphed = grape.graph(work, device="cpu", memory_budget="2KB")
    for turn in range(12):
        x = torch.full((4,), float(turn))
        assert torch.equal(graphed(x), work(x))
    region = graphed._region
    assert region is not None and region.context.memory_budget == 2048
    graphed.release()
    with pytest.raises(UsageError, match="is not a size"):
        grape.graph(work, memory_budget="much")
