"""Attacks on shared executables and budgets: each test was written against a fault that it found."""

from __future__ import annotations

import contextlib
import gc
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good

import grape
from grape.errors import UsageError
from grape.runtime import GraphedFunction, Region, account
from grape.runtime.accounts.memory import enforce_budget, no_room
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.backends.reference.executable import ReferenceExecutable, ReferenceGraph
from grape.runtime.buffers.placeholders import Placeholders
from grape.runtime.capture.snapshot import Snapshot
from grape.runtime.compression.members import ExecutableGroup
from grape.runtime.compression.residency import Limits
from grape.runtime.compression.resident_executables import ResidentExecutables
from grape.runtime.compression.switching import Waiting
from grape.sessions import engine
from tests.property.programs import eager_to_graph
from tests.unit.test_shared_executables import NODE_BYTES, Graphed, work


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad(), eager_to_graph():
        yield


class Memory:
    """The person's device: the next call that asks it is out of memory, as often as `failures` says."""

    def __init__(self) -> None:
        self.failures = 0

    def take(self) -> None:
        if self.failures:
            self.failures -= 1
            raise torch.OutOfMemoryError("CUDA out of memory")


def graphed_on_tape(function: Any) -> tuple[GraphedFunction, ReferenceBackend]:
    backend = ReferenceBackend(poison=True)
    return GraphedFunction(function, backend=backend, tolerance=0.0), backend


def region_of(graphed: GraphedFunction) -> Region:
    assert graphed._region is not None
    return graphed._region


# -- out of memory -----------------------------------------------------------------------------------------------------


def test_a_first_call_that_is_too_large_is_no_reason_to_capture_nothing() -> None:
    """A batch that does not fit is tried again with a smaller one; graphs held nothing, so they have nothing to do
    with it."""
    memory = Memory()

    def step(x: torch.Tensor) -> torch.Tensor:
        memory.take()
        return (torch.tanh(x) * 2 + x.exp()).relu()

    graphed, _ = graphed_on_tape(step)
    memory.failures = 1
    with pytest.raises(torch.OutOfMemoryError):
        graphed(torch.ones(64))
    for turn in range(12):
        x = torch.full((32,), float(turn))
        assert torch.equal(graphed(x), step(x))
    assert region_of(graphed).replays > 0


def test_a_pool_without_graphs_gives_way_too() -> None:
    """Undo keeps the pool for the next capture; the person's code needs it more."""
    memory = Memory()

    def step(x: torch.Tensor) -> torch.Tensor:
        memory.take()
        return (torch.tanh(x) * 2 + x.exp()).relu()

    graphed, backend = graphed_on_tape(step)
    for turn in range(12):
        graphed(torch.full((32,), float(turn)))
    region_of(graphed).release()
    assert backend.memory().pool_bytes
    memory.failures = 1
    with pytest.raises(torch.OutOfMemoryError):
        graphed(torch.ones(64))
    assert backend.memory().pool_bytes == 0


def test_the_pool_goes_with_the_last_graph_where_nothing_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReferenceBackend, "updatable", False)
    memory = Memory()

    def step(x: torch.Tensor) -> torch.Tensor:
        memory.take()
        return (torch.tanh(x) * 2 + x.exp()).relu()

    graphed, backend = graphed_on_tape(step)
    for turn in range(12):
        graphed(torch.full((32,), float(turn)))
    region = region_of(graphed)
    assert region.context.executables is None and region.entries and backend.memory().pool_bytes
    region.context.apply, memory.failures = False, 1
    x = torch.ones(32)
    assert torch.equal(graphed(x), step(x))
    assert not region.entries and backend.memory().pool_bytes == 0


def test_a_call_that_changed_a_container_is_not_made_again() -> None:
    """Out of memory in the second layer: the first layer's key is in the cache already."""
    memory = Memory()

    def step(x: torch.Tensor, cache: list[torch.Tensor]) -> torch.Tensor:
        cache.append(x * 2)
        memory.take()
        return (torch.tanh(x) * 2 + x.exp()).relu()

    graphed, _ = graphed_on_tape(step)
    for turn in range(12):
        graphed(torch.full((4,), float(turn)), [])
    region = region_of(graphed)
    assert region.entries
    region.context.apply, memory.failures = False, 1
    cache: list[torch.Tensor] = []
    with pytest.raises(torch.OutOfMemoryError):
        graphed(torch.ones(4), cache)
    assert len(cache) == 1


class Settings:
    log: list[str] | None = None


settings = Settings()


def logged(x: torch.Tensor) -> torch.Tensor:
    y = torch.tanh(x) + x.exp() * 2
    if settings.log is not None:
        settings.log.append("called")
        _memory.take()
    return y.relu() * 0.5


_memory = Memory()


def test_a_call_that_goes_another_way_than_the_capture_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The captured way had no effects; the one that this call takes has."""
    graphed, _ = graphed_on_tape(logged)
    for turn in range(12):
        graphed(torch.full((4,), float(turn)))
    assert region_of(graphed).entries
    log: list[str] = []
    monkeypatch.setattr(settings, "log", log)
    _memory.failures = 1
    region_of(graphed).context.observing = False
    with pytest.raises(torch.OutOfMemoryError):
        graphed(torch.ones(4))
    assert log == ["called"]


# -- refused updates ---------------------------------------------------------------------------------------------------


def without_founder() -> Graphed:
    """A class with one shape, which did not found it, and no executable."""
    world = Graphed().warm()
    world.call(4, 5, times=8)
    founder = next(member for member in world.store._members.values() if member.founder)
    for shape in world.region.shapes.values():
        for entry in [entry for entry in shape.entries if entry.graph is founder.shape]:
            shape.entries.remove(entry)
            entry.release()
            shape.closed = True
    evict_all(world)
    return world


def evict_all(world: Graphed) -> None:
    world.store.limits = Limits(executables=0, nbytes=None)
    try:
        world.store.apply_limits()
    finally:
        world.store.limits = Limits(executables=32, nbytes=None)


@pytest.mark.parametrize("room", [True, False])
def test_a_refused_update_of_the_only_shape(monkeypatch: pytest.MonkeyPatch, room: bool) -> None:
    monkeypatch.setattr(ExecutableGroup, "prefers_nodes", lambda group, changes: False)  # so its graph is kept
    world = without_founder()
    launches, replays = world.store.account().launches, world.region.replays
    with monkeypatch.context() as patch:
        patch.setattr(ReferenceExecutable, "update_from", lambda self, graph: False)
        patch.setattr(ReferenceExecutable, "update_prepared", lambda self, sets, attachment: False)
        if not room:
            make, calls = ReferenceGraph.instantiate, [0]

            def once(graph: ReferenceGraph) -> ReferenceExecutable:
                calls[0] += 1
                if calls[0] > 1:
                    raise torch.OutOfMemoryError("no device memory")
                return make(graph)

            patch.setattr(ReferenceGraph, "instantiate", once)
        world.call(4, 5, 4, 5)
    assert world.region.replays == replays + 2 * room
    assert not room or world.store.account().launches == launches + 2
    world.call(4, 5, times=3)
    world.graphed.release()
    assert world.backend.memory().executable_bytes == 0


@pytest.mark.parametrize("step", ["update_from", "update_prepared", "instantiate"])
@pytest.mark.parametrize("error", [RuntimeError, torch.OutOfMemoryError])
def test_an_error_of_the_driver_in_a_switch_costs_a_graph_and_not_the_call(
    monkeypatch: pytest.MonkeyPatch, step: str, error: type[Exception]
) -> None:
    world = Graphed().warm()
    world.call(4, 5, times=8)
    for group in world.store._groups.values():  # which way is the cheaper one
        group.whole_ns, group.nodes_ns = (1e9, 1.0) if step == "update_prepared" else (1.0, 1e9)
    world.store.limits = Limits(executables=1, nbytes=None)
    world.store.apply_limits()
    world.call(4)
    if step == "instantiate":
        evict_all(world)

    def fail(*_: Any) -> None:
        raise error("the driver is unhappy")

    with monkeypatch.context() as patch:
        patch.setattr(ReferenceGraph if step == "instantiate" else ReferenceExecutable, step, fail)
        world.call(5, 4, 5, 4)
    world.call(5, 4, 5, 4)
    world.graphed.release()
    assert world.backend.memory().executable_bytes == 0


# -- interrupts --------------------------------------------------------------------------------------------------------


class Interrupt:
    """Raises KeyboardInterrupt before the `at`-th line that runs in the store; `reached` says whether there is one."""

    def __init__(self, at: int) -> None:
        self.left, self.reached = at, False

    def __enter__(self) -> Interrupt:
        sys.settrace(self.enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def enter(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        inside = "runtime/compression" in frame.f_code.co_filename
        return self.line if inside else None

    def line(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        self.left -= event == "line"
        if not self.left and not self.reached:
            self.reached = True
            raise KeyboardInterrupt
        return self.line


def evict_and_call(world: Graphed) -> None:
    evict_all(world)
    world.call(5)


def call(world: Graphed) -> None:
    world.call(5)


def undo(world: Graphed) -> None:
    world.region.release()


@pytest.mark.parametrize(("action", "evicted_before"), [(call, True), (evict_and_call, False), (undo, False)])
def test_an_interrupt_at_any_line_of_the_store(action: Callable[[Graphed], None], evicted_before: bool) -> None:
    """Every call is compared with eager, and at the end nothing is left."""
    world = Graphed().warm()
    world.call(4, 5, times=6)
    at = misses = 0
    while misses < 4:  # one call in four runs eagerly
        at += 1
        if evicted_before:
            evict_all(world)
        for group in world.store._groups.values():  # one executable, written node by node
            group.whole_ns, group.nodes_ns, group.instantiate_ns = 1e9, 1.0, 1e12
        interrupt = Interrupt(at)
        with contextlib.suppress(KeyboardInterrupt), interrupt:
            action(world)
        misses = 0 if interrupt.reached else misses + 1
        at -= not interrupt.reached
        world.call(4, 5, 4)
    assert at > 50 and world.region.refused is None
    store = world.store
    world.graphed.release()
    assert not len(store) and store.account().executables == 0


# -- budgets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [-1, True, 1.5, "-1"])
def test_a_budget_that_is_no_number_of_bytes(budget: Any) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        grape.graph(work, memory_budget=budget)
    with pytest.raises(UsageError, match="is not a size"), grape.session(memory_budget=budget):
        pass


def test_the_budget_of_a_session_may_be_text() -> None:
    try:
        with grape.session(memory_budget="2KB"):
            assert engine().context.memory_budget == 2048
    finally:
        engine().close()


def test_a_shape_without_room_is_tried_again_with_a_larger_budget() -> None:
    first = Graphed()
    first.call(4, 10, times=8)
    held = account(first.region.context)
    assert held is not None
    world = Graphed(budget=held.pool_bytes + held.placeholder_bytes + 4 * NODE_BYTES + 500)
    world.call(4, times=8)
    world.call(10, 4, times=8)
    shapes = {shape.shapes[0][1]: shape for shape in world.region.shapes.values()}
    assert world.region.refused is None and shapes[(4,)].entries and not shapes[(10,)].entries
    assert world.region.context.memory_budget is not None
    world.region.context.memory_budget += 10 * NODE_BYTES
    world.region.begin_run()
    world.call(10, 4, times=8)
    assert shapes[(10,)].entries


class Shared(GraphedFunction):
    """A graphed function in the context of another."""

    def __init__(self, function: Any, other: Region) -> None:
        super().__init__(function, backend=other.context.backend, tolerance=0.0)
        self._other = other

    def _make_region(self) -> Region:
        made = super()._make_region()
        return Region(self._other.context, made.function, made.root, made.name, made.at)


def test_a_region_that_fits_stays_when_another_outgrows_the_budget() -> None:
    """And what is said of the one that goes is true of it."""
    small = Graphed()
    small.call(4, times=8)
    large = Shared(lambda x: torch.tanh(x * 3).exp() + 1, small.region)
    held = account(small.region.context)
    assert held is not None
    context = small.region.context
    for turn in range(8):
        large(torch.full((9000,), float(turn)))
    regions = (small.region, region_of(large))
    assert all(region.entries for region in regions)
    needed = context.backend.memory().pool_bytes + held.placeholder_bytes + 20 * NODE_BYTES
    context.memory_budget = needed
    enforce_budget(context)
    assert region_of(large).refused is not None and small.region.refused is None and small.region.entries
    small.call(4, times=4)


@pytest.mark.parametrize(
    ("budget", "said"), [(2 << 30, "2 GB"), (20 << 20, "20 MB"), (1536, "1.5 KB"), (1, "1 B"), (0, "0 B")]
)
def test_a_budget_is_told_as_a_person_would_write_it(budget: int, said: str) -> None:
    world = Graphed(budget=budget)
    world.call(4)
    why = no_room(world.region.context).why
    assert why == (
        "placeholders and workspace of graphs take 0 B, and beside them no executable fits "
        f"into the memory budget of {said}"
    )


def test_a_region_without_room_names_the_budget_of_the_cell() -> None:
    world = Graphed()
    world.call(4, times=6)
    region = world.region
    for budget, said in ((1000, "1000 B"), (20, "20 B"), (1000, "1000 B")):
        region.context.memory_budget = budget
        region.begin_run()
        enforce_budget(region.context)
        world.call(4)
        assert region.refused is not None and region.refused.why.endswith(f"the memory budget of {said}")
        assert not region.refused.why.startswith("placeholders and workspace of graphs take 0 B")


def test_with_a_budget_of_nothing_nothing_is_captured() -> None:
    world = Graphed(budget=0)
    world.call(4, 5, times=8)
    region = world.region
    assert region.refused is not None and region.refused.why == "the memory budget of 0 B has no room for a graph"
    assert region.context.captures == 0
    region.context.memory_budget = 1 << 20
    region.begin_run()
    world.call(4, 5, times=8)
    assert region.refused is None and region.replays > 0


def test_a_full_device_is_not_blamed_on_the_budget() -> None:
    world = Graphed(budget=1 << 30, capacity_bytes=0)
    world.call(4, times=10)
    refused = world.region.refused
    assert refused is not None and refused.why == "the device has no memory left for an executable of its graphs"


def test_a_device_that_was_full_is_asked_again_in_the_next_cell() -> None:
    """ "Free memory on the device, then run the cell again", says GR405."""
    world = Graphed(capacity_bytes=0)
    world.call(4, times=10)
    assert world.region.refused is not None
    world.backend._capacity_bytes = None
    world.region.begin_run()
    world.call(4, times=10)
    assert world.region.refused is None and world.region.replays > 0


def without_memory(*_: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize("where", [(ReferenceBackend, "capture"), (Snapshot, "__init__"), (Placeholders, "__init__")])
def test_a_device_that_was_full_for_a_capture_is_asked_again_in_the_next_cell(
    monkeypatch: pytest.MonkeyPatch, where: tuple[type, str]
) -> None:
    world = Graphed()
    with monkeypatch.context() as patch:
        patch.setattr(*where, without_memory)
        world.call(4, times=10)
    refused = world.region.refused
    assert refused is not None and "memory" in refused.why and refused.code == "GR405"
    world.region.begin_run()
    world.call(4, times=10)
    assert world.region.refused is None and world.region.replays > 0


def test_a_region_that_lost_its_graphs_to_full_captures_has_them_in_the_next_cell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Graphed()
    world.call(4, times=10)
    with monkeypatch.context() as patch:
        patch.setattr(ReferenceBackend, "capture", without_memory)
        world.call(5, times=8)
        assert world.region.refused is None and world.region.entries
        world.call(6, times=8)
    refused = world.region.refused
    assert refused is not None and "out of memory while capturing" in refused.why and not world.region.entries
    world.region.context.run += 1
    world.region.begin_run()
    world.call(4, 5, 6, times=10)
    assert world.region.refused is None and all(shape.entries for shape in world.region.shapes.values())


def test_after_the_persons_code_ran_out_of_memory_every_region_says_why_it_stays_eager() -> None:
    """Also in a cell with a larger budget, and a region that had no graph."""
    memory = Memory()

    def step(x: torch.Tensor) -> torch.Tensor:
        memory.take()
        return (torch.tanh(x) * 2 + x.exp()).relu()

    graphed, _ = graphed_on_tape(step)
    for turn in range(12):
        graphed(torch.full((32,), float(turn)))
    region = region_of(graphed)
    region.context.memory_budget, memory.failures = 1 << 20, 1
    with pytest.raises(torch.OutOfMemoryError):
        graphed(torch.ones(64))
    region.context.memory_budget = None
    region.begin_run()
    assert region.refused is not None and "ran out of memory" in region.refused.why
    other = Shared(lambda x: torch.tanh(x * 3).exp() + 1, region)
    for turn in range(12):
        other(torch.full((32,), float(turn)))
    refused = region_of(other).refused
    assert refused is not None and refused.why == "the device ran out of memory beside graphs; no more are captured"


def test_an_executable_that_did_wrong_in_a_trial_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that accepted an update and did something else may do so again."""
    world = Graphed().warm()
    world.call(4, times=6)
    lying: list[ReferenceExecutable] = []
    update, update_prepared = ReferenceExecutable.update_from, ReferenceExecutable.update_prepared

    def accept(executable: ReferenceExecutable, graph: ReferenceGraph) -> bool:
        done = update(executable, graph)
        assert executable._program is not None
        executable._program = replace(executable._program, steps=executable._program.steps[:1])
        lying.append(executable)
        return done

    def write(executable: ReferenceExecutable, sets: Any, attachment: object) -> bool:
        return executable in lying or update_prepared(executable, sets, attachment)

    with monkeypatch.context() as patch:
        patch.setattr(ReferenceExecutable, "update_from", accept)
        patch.setattr(ReferenceExecutable, "update_prepared", write)
        world.call(5, 4, times=8)
        assert len(lying) == 1 and world.store.account().classes == 2


def test_a_pool_without_graphs_does_not_count_against_the_next_cells_budget() -> None:
    world = Graphed()
    world.call(90_000, times=8)
    world.region.release()
    world.region.context.memory_budget = 100 << 10
    world.region.begin_run()
    enforce_budget(world.region.context)
    world.call(4, times=8)
    assert world.region.refused is None and world.region.replays > 0


@pytest.mark.parametrize("look", ["undo", "session"])
def test_a_module_that_dies_while_memory_is_counted(monkeypatch: pytest.MonkeyPatch, look: str) -> None:
    """As in a garbage collection that comes just then."""
    parts = torch.nn.Linear, torch.nn.Tanh, torch.nn.Linear, torch.nn.Softsign
    models = [
        torch.nn.Sequential(*(part(4, 4) if part is torch.nn.Linear else part() for part in parts)) for _ in "123"
    ]
    with grape.session():
        for turn in range(36):
            models[turn % 3](torch.full((2, 4), float(turn)))
    store = engine().context.executables
    assert store is not None and len(store) >= 3
    resident = store._resident

    def dying(method: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            models.clear()
            return method(*args, **kwargs)

        return called

    monkeypatch.setattr(ResidentExecutables, "benefit_ns", dying(ResidentExecutables.benefit_ns))
    monkeypatch.setattr(ResidentExecutables, "drop", dying(ResidentExecutables.drop))
    try:
        if look == "session":
            with grape.session(memory_budget=1 << 10):
                pass
        else:
            engine().undo()
        assert not models and not len(store) and not resident.all
    finally:
        engine().close()


def test_without_sharing_a_budget_counts_the_pool_and_other_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReferenceBackend, "updatable", False)
    first = Graphed()
    first.call(9000, times=8)
    context = first.region.context
    assert context.executables is None and first.region.entries
    context.memory_budget = context.backend.memory().pool_bytes + context.store.nbytes
    second = Shared(lambda x: torch.tanh(x * 3).exp() + 1, first.region)
    for turn in range(12):
        second(torch.full((4,), float(turn)))
    (shape,) = region_of(second).shapes.values()
    assert not shape.entries and shape.decision is not None and "the memory budget" in shape.decision.why
    second.release()
    first.graphed.release()


def test_a_call_that_waits_for_an_executable_does_not_keep_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    with eager_to_graph():
        graphed = GraphedFunction(work, backend=ReferenceBackend(node_bytes=NODE_BYTES), tolerance=0.0)
        with torch.no_grad():
            for length in (4, 5):
                for _ in range(5):
                    graphed(torch.ones(length))
            store = graphed._region.context.executables
            store.limits = replace(store.limits, executables=1)
            store.apply_limits()
            monkeypatch.setattr("grape.runtime.compression.store.bring", lambda resident, member: Waiting())
            gc.collect()
            gc.disable()
            try:
                kept = []
                for length in (4, 5) * 5:
                    x = torch.ones(length)
                    kept.append(weakref.ref(x))
                    graphed(x)
                    del x
                assert sum(one() is not None for one in kept) == 0
            finally:
                gc.enable()
