"""Executables on CUDA, over a stand-in for the driver: updates are whole or not at all, and nothing dies too early."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from grape.runtime.backends.cuda.driver import DriverError
from grape.runtime.backends.cuda.executables import updatable as cuda_updatable
from grape.runtime.backends.cuda.executables.executable import CudaExecutable, Executables
from grape.runtime.backends.cuda.executables.nodes import Inspected
from grape.runtime.backends.cuda.executables.updatable import UpdatableCudaGraph
from grape.runtime.compression.residency import Limits

from .cuda_stand_in import RawGraph, StandIn, inspected, kernel, without_a_device, write_nodes
from .plain_store import PlainStore

DEVICE = torch.device("cuda", 0)


@pytest.fixture(params=["exported", "bindings"])
def stand_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """Kernels are written by the driver's own function where it can be had, else through the bindings."""
    made = StandIn(exported=request.param == "exported")
    with without_a_device(monkeypatch, made):
        yield made


def program(chances: random.Random, nodes: int = 6, *, chain: bool = True) -> Inspected:
    """Kernels of both forms, a copy, a fill and an empty node, with random contents."""
    return inspected(
        *(kernel(chances.randrange(3), chances.randbytes(28), packed=number % 2 == 1) for number in range(nodes)),
        chances.randbytes(200),
        chances.randbytes(40),
        b"",
        chain=chain,
    )


def graph(executables: Executables, stand_in: StandIn, seen: Inspected | None) -> UpdatableCudaGraph:
    raw: Any = RawGraph(stand_in, seen or inspected())
    made = UpdatableCudaGraph(executables, raw, nodes=9, draws=False, pool="pool")
    made._inspected, made._looked = seen, True
    return made


def contents(stand_in: StandIn, executable: CudaExecutable) -> tuple[bytes, ...]:
    return tuple(stand_in.held[executable._handle].values())


def changes(seen: Inspected) -> list[tuple[int, bytes]]:
    return list(enumerate(seen.parameters))


def made(executables: Executables, stand_in: StandIn, seen: Inspected) -> CudaExecutable:
    executable = graph(executables, stand_in, seen).instantiate()
    assert isinstance(executable, CudaExecutable)
    return executable


def test_nodes_are_written_as_they_were_read(stand_in: StandIn) -> None:
    executables = Executables(stand_in.driver, DEVICE)
    first, second = program(random.Random(1)), program(random.Random(2))
    executable = made(executables, stand_in, first)
    assert write_nodes(executable, changes(second), "attached")
    assert contents(stand_in, executable) == second.parameters
    assert write_nodes(executable, changes(first), "attached")
    assert contents(stand_in, executable) == first.parameters


@pytest.mark.parametrize("refused", range(8))
def test_a_refused_node_takes_back_those_before_it(stand_in: StandIn, refused: int) -> None:
    executables = Executables(stand_in.driver, DEVICE)
    first, second = program(random.Random(1)), program(random.Random(2))
    executable = made(executables, stand_in, first)
    stand_in.refuses = lambda node, parameters: node == refused and parameters == second.parameters[refused]
    assert not write_nodes(executable, changes(second), "attached")
    assert contents(stand_in, executable) == first.parameters
    executable.replay()


def test_an_interrupt_takes_back_what_was_written(stand_in: StandIn) -> None:
    executables = Executables(stand_in.driver, DEVICE)
    first, second = program(random.Random(1)), program(random.Random(2))
    executable = made(executables, stand_in, first)

    def interrupted(node: int, parameters: bytes) -> bool:
        if node == 4 and parameters == second.parameters[4]:
            raise KeyboardInterrupt
        return False

    stand_in.refuses = interrupted
    with pytest.raises(KeyboardInterrupt):
        write_nodes(executable, changes(second), "attached")
    assert contents(stand_in, executable) == first.parameters


def test_an_executable_that_cannot_go_back_is_never_launched(stand_in: StandIn) -> None:
    executables = Executables(stand_in.driver, DEVICE)
    first, second = program(random.Random(1)), program(random.Random(2))
    executable = made(executables, stand_in, first)
    stand_in.refuses = lambda node, parameters: node == 3 or (node == 2 and parameters == first.parameters[2])
    with pytest.raises(RuntimeError, match="does not accept again"):
        write_nodes(executable, changes(second), "attached")
    with pytest.raises(RuntimeError, match="released executable"):
        executable.replay()
    assert not stand_in.held


def test_a_node_that_has_its_parameters_is_written_all_the_same(stand_in: StandIn) -> None:
    """A store writes a shape node by node right after it was loaded whole, to see that way at work."""
    executables = Executables(stand_in.driver, DEVICE)
    first, second = program(random.Random(1)), program(random.Random(2))
    executable = made(executables, stand_in, first)
    assert executable.update_from(graph(executables, stand_in, second))
    written: list[int] = []
    stand_in.refuses = lambda node, parameters: bool(written.append(node))
    assert write_nodes(executable, changes(second), "attached")
    assert written == list(range(8))  # the empty node has nothing


def test_a_refused_update_from_a_graph_changes_nothing(stand_in: StandIn) -> None:
    executables = Executables(stand_in.driver, DEVICE)
    first, second = program(random.Random(1)), program(random.Random(2))
    executable, other = made(executables, stand_in, first), graph(executables, stand_in, second)
    for error in (910, 2):  # after the second one the stand-in has changed something
        stand_in.update_error = error
        assert not executable.update_from(other)
        assert write_nodes(executable, changes(first), None)
        assert contents(stand_in, executable) == first.parameters
    stand_in.update_error = 0
    assert executable.update_from(other)
    assert contents(stand_in, executable) == second.parameters
    assert not executable.update_from(graph(executables, stand_in, inspected(topology="other")))
    assert not executable.update_from(graph(executables, stand_in, None))


def test_where_the_driver_could_pair_nodes_otherwise_they_are_written_one_by_one(stand_in: StandIn) -> None:
    executables = Executables(stand_in.driver, DEVICE)
    first, second = (program(random.Random(seed), chain=False) for seed in (1, 2))
    executable, other = made(executables, stand_in, first), graph(executables, stand_in, second)
    stand_in.update_error = 700  # it is not asked
    assert executable.update_from(other)
    assert contents(stand_in, executable) == second.parameters


def _is_unwelcome(at: int | None, bad: tuple[bytes, ...], node: int, parameters: bytes) -> bool:
    return node == at and parameters == bad[node]


def test_random_updates_and_refusals_leave_one_of_the_programs(stand_in: StandIn) -> None:
    chances = random.Random(7)
    executables = Executables(stand_in.driver, DEVICE)
    programs = [program(chances) for _ in range(5)]
    graphs = [graph(executables, stand_in, one) for one in programs]
    executable = graphs[0].instantiate()
    assert isinstance(executable, CudaExecutable)
    now, refused = 0, 0
    for _ in range(400):
        wanted = chances.randrange(5)
        unwelcome = chances.randrange(20) if wanted != now else None  # what it holds, it takes
        bad = programs[wanted].parameters
        stand_in.refuses = partial(_is_unwelcome, unwelcome, bad)
        stand_in.update_error = chances.choice([0, 0, 910, 700])
        whole = chances.random() < 0.4
        done = (
            executable.update_from(graphs[wanted])
            if whole
            else write_nodes(executable, changes(programs[wanted]), None)
        )
        now = wanted if done else now
        refused += not done
        assert contents(stand_in, executable) == programs[now].parameters
    assert 50 < refused < 350


def test_a_store_launches_what_a_shape_is_whatever_was_refused(stand_in: StandIn) -> None:
    """The compression store over these executables: each launch finds the parameters of its shape."""
    chances = random.Random(9)
    executables = Executables(stand_in.driver, DEVICE)
    store = PlainStore(limits=Limits(executables=3, nbytes=None), graph_budget_bytes=200_000)
    programs = [program(chances, nodes=4 + number % 2) for number in range(10)]
    topologies = [f"{len(one.parameters)}" for one in programs]
    programs = [replace(one, topology=name) for one, name in zip(programs, topologies, strict=True)]

    def is_right(number: int) -> bool:
        launched = next(line for line in reversed(stand_in.log) if line.startswith("launch"))
        handle = int(launched.split()[1])
        return tuple(stand_in.held[handle].values()) == programs[number].parameters

    def verify(number: int, launch: Callable[[], None]) -> bool:
        launch()
        return is_right(number)

    served = 0
    for _ in range(600):
        number = chances.randrange(10)
        stand_in.update_error = 910 if chances.random() < 0.03 else 0
        if number not in store:
            source = graph(executables, stand_in, programs[number])
            assert store.admit(number, source, partial(verify, number))
        if chances.random() < 0.03:
            store.forget(number)
        elif store.serves(number):
            assert is_right(number)
            served += 1
        assert len(stand_in.held) <= 3
    assert served > 400 and store.account().switches > 50
    store.release()
    assert not stand_in.held and executables.live_bytes == 0


def test_a_graph_is_destroyed_after_the_last_executable_made_from_it(stand_in: StandIn) -> None:
    executables = Executables(stand_in.driver, DEVICE)
    source = graph(executables, stand_in, program(random.Random(1)))
    one, other = source.instantiate(), source.instantiate()
    source.release()
    source.release()
    assert stand_in.log == []
    one.release()
    one.release()
    assert stand_in.log == ["destroy 101"]
    other.replay()
    other.release()
    assert stand_in.log == ["destroy 101", "launch 102 on 5", "destroy 102", "reset 1"]
    for use in (source.replay, source.instantiate, source.raw):
        with pytest.raises(RuntimeError, match="released"):
            use()
    with pytest.raises(RuntimeError, match="released"):
        write_nodes(one, [], None)


def test_a_graph_makes_its_own_executable_when_it_is_first_replayed(stand_in: StandIn) -> None:
    executables = Executables(stand_in.driver, DEVICE)
    source = graph(executables, stand_in, program(random.Random(1)))
    assert source.nbytes == executables.live_bytes == 0
    source.replay()
    source.replay()
    assert stand_in.log == ["launch 101 on 5", "launch 101 on 5"]
    assert source.nbytes == executables.live_bytes == 1000
    source.release()
    assert executables.live_bytes == 0 and stand_in.log[-2:] == ["destroy 101", "reset 1"]


def test_bytes_of_executables_are_what_the_driver_had_less(stand_in: StandIn) -> None:
    """The driver takes memory in pieces, and keeps that of destroyed executables."""
    executables = Executables(stand_in.driver, DEVICE)
    source = graph(executables, stand_in, program(random.Random(1)))
    instantiate = stand_in.driver.types.cuGraphInstantiate
    pieces = iter([0, 3000, 0, 0, 0, 0, 0])

    def in_pieces(*args: Any) -> Any:
        before = stand_in.free
        result = instantiate(*args)
        stand_in.free = before - next(pieces)
        return result

    stand_in.driver.types.cuGraphInstantiate = in_pieces
    held = [source.instantiate()]
    assert held[0].nbytes == executables.live_bytes == 0
    held += [source.instantiate(), source.instantiate()]
    assert [one.nbytes for one in held] == [1000] * 3 and executables.live_bytes == 3000
    for one in held:
        one.release()
    assert executables.live_bytes == 0
    again = [source.instantiate() for _ in range(3)]  # from what the driver kept
    assert [one.nbytes for one in again] == [1000] * 3
    assert executables.live_bytes == 3000


def test_an_exhausted_device_is_asked_once_more_and_then_raises(stand_in: StandIn) -> None:
    executables = Executables(stand_in.driver, DEVICE)
    stand_in.instantiate_errors = [2]
    executable = made(executables, stand_in, program(random.Random(1)))
    assert stand_in.log == ["empty cache"]
    executable.release()
    stand_in.instantiate_errors = [2, 2]
    source = graph(executables, stand_in, program(random.Random(1)))
    with pytest.raises(torch.OutOfMemoryError, match="executable"):
        source.instantiate()
    assert executables.live_bytes == 0
    source.release()
    assert stand_in.log[-1] == "reset 2"


@pytest.mark.parametrize(("code", "raised"), [(2, torch.OutOfMemoryError), (700, DriverError)])
def test_an_executable_that_does_not_get_on_the_device_is_destroyed(
    stand_in: StandIn, code: int, raised: type[Exception]
) -> None:
    executables = Executables(stand_in.driver, DEVICE)
    stand_in.upload_errors = [2]
    made(executables, stand_in, program(random.Random(1))).release()
    assert stand_in.log == ["destroy 101", "empty cache", "destroy 102"]
    stand_in.upload_errors = [code, code]
    source = graph(executables, stand_in, program(random.Random(1)))
    with pytest.raises(raised):
        source.instantiate()
    assert not stand_in.held and executables.live_bytes == 0
    source.release()


@pytest.mark.parametrize(("code", "raised"), [(2, torch.OutOfMemoryError), (700, RuntimeError)])
def test_an_exhausted_device_under_torch(stand_in: StandIn, code: int, raised: type[Exception]) -> None:
    raw: Any = RawGraph(stand_in, inspected())
    made = UpdatableCudaGraph(Executables(stand_in.driver, DEVICE), raw, nodes=9, draws=True, pool=None)

    class AcceleratorError(RuntimeError):
        error_code = code

    def fails() -> None:
        raise AcceleratorError

    raw.instantiate = fails
    with pytest.raises(RuntimeError) as caught:
        made.instantiate()
    assert (type(caught.value) is torch.OutOfMemoryError) == (raised is torch.OutOfMemoryError)
    made.release()
    assert stand_in.log == ["reset 1"]


def test_closing_releases_what_nobody_released(stand_in: StandIn) -> None:
    executables = Executables(stand_in.driver, DEVICE)
    executable = made(executables, stand_in, program(random.Random(1)))
    executables.close()
    assert not stand_in.held and executables.live_bytes == 0
    with pytest.raises(RuntimeError, match="released"):
        executable.replay()


def test_whether_the_device_has_work_and_knows_preferred_clusters(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    executables = Executables(stand_in.driver, DEVICE)
    executable = made(executables, stand_in, program(random.Random(1)))
    assert not executable.waits()
    stand_in.busy = True
    assert executable.waits()
    assert not executables.preferred_clusters
    with monkeypatch.context() as newer:
        newer.setattr(torch.cuda, "get_device_capability", lambda device: (10, 3))
        assert Executables(stand_in.driver, DEVICE).preferred_clusters
    executables.close()


def test_a_graph_that_the_bindings_do_not_understand_keeps_an_executable_of_its_own(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer driver has kinds of nodes that are not among the bindings' enumerations: they raise ValueError."""

    def unknown(driver: Any, graph: Any, *, preferred_clusters: bool) -> None:
        raise ValueError("21 is not a valid CUgraphNodeType")

    monkeypatch.setattr(cuda_updatable, "inspect", unknown)
    raw: Any = RawGraph(stand_in, inspected(b""))
    graph = UpdatableCudaGraph(Executables(stand_in.driver, DEVICE), raw, nodes=9, draws=False, pool=None)
    assert graph.topology is None
    graph.replay()
    assert stand_in.log[-1].startswith("launch")
    graph.release()
