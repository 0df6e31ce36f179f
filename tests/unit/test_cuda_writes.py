"""Writes that are laid out once: the bytes at their addresses, refusals, interrupts, and drivers of which only the
bindings can be had."""

from __future__ import annotations

import ctypes
import random
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from grape.runtime.backends.cuda.driver import Driver
from grape.runtime.backends.cuda.executables.executable import CudaExecutable, Executables
from grape.runtime.backends.cuda.executables.nodes import Inspected
from grape.runtime.backends.cuda.writes import PreparedWrites

from .cuda_stand_in import StandIn, without_a_device, write_nodes
from .test_cuda_executable import DEVICE, changes, contents, graph, program

NODES = 8
"""Of `program`, without the empty one, which is never written."""


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    made = StandIn()
    with without_a_device(monkeypatch, made):
        yield made


def unwelcome(number: int | None, seen: Inspected) -> Callable[[int, bytes], bool]:
    """The device refuses what `seen` says of this node."""
    return lambda node, parameters: node == number and parameters == seen.parameters[node]


class World:
    """Two executables made from one graph, which does what `first` says, and `second` prepared on one of them."""

    def __init__(self, stand_in: StandIn) -> None:
        self.stand_in = stand_in
        self.first, self.second, self.third = (program(random.Random(seed)) for seed in (1, 2, 3))
        source = graph(Executables(stand_in.driver, DEVICE), stand_in, self.first)
        self.one, self.other = (source.instantiate() for _ in range(2))
        assert isinstance(self.one, CudaExecutable) and isinstance(self.other, CudaExecutable)
        self.prepared = self.one.prepare(changes(self.second))

    def contents(self) -> tuple[bytes, ...]:
        assert isinstance(self.one, CudaExecutable)
        return contents(self.stand_in, self.one)


def test_a_set_is_written_as_often_as_one_likes_to_each_executable_of_its_graph(stand_in: StandIn) -> None:
    world = World(stand_in)
    back = world.other.prepare(changes(world.first))
    for _ in range(3):
        for executable in (world.one, world.other):
            assert isinstance(executable, CudaExecutable)
            assert executable.update_prepared([world.prepared], "attached")
            assert contents(stand_in, executable) == world.second.parameters
            assert executable.update_prepared([back], "attached")
            assert contents(stand_in, executable) == world.first.parameters
    assert stand_in.plain == 3 * 2 * 2 * 6  # the six kernels, and none of them through the bindings


def test_all_addresses_lie_in_the_memory_of_the_set(stand_in: StandIn) -> None:
    prepared = World(stand_in).prepared
    start = ctypes.addressof(prepared.memory)
    within = range(start, start + len(prepared.memory))
    assert len(prepared.structures) == len(prepared.nodes) == 6
    for structure in prepared.structures:
        assert structure in within and structure % 16 == 0
        raw = ctypes.string_at(structure, 72)
        addresses, extra = (int.from_bytes(raw[at : at + 8], "little") for at in (40, 48))
        words = (ctypes.c_uint64 * (4 if extra else 3)).from_address(extra or addresses)
        assert (extra or addresses) in within
        assert all(word in within for word in (words[1::2] if extra else words))
    assert len(prepared.memory) < prepared.nbytes < len(prepared.memory) + 1000


def test_of_two_sets_that_concern_a_node_the_later_one_counts(stand_in: StandIn) -> None:
    world = World(stand_in)
    own = world.one.prepare(changes(world.third)[2:4])
    assert world.one.update_prepared([world.prepared, own], None)
    wanted = (*world.second.parameters[:2], *world.third.parameters[2:4], *world.second.parameters[4:])
    assert world.contents() == wanted
    stand_in.refuses = unwelcome(5, world.first)
    assert not write_nodes(world.one, changes(world.first), None)
    assert world.contents() == wanted


def test_random_sets_of_some_nodes_and_refusals(stand_in: StandIn) -> None:
    world, chances, done = World(stand_in), random.Random(4), [0, 0]
    programs = [program(random.Random(seed)) for seed in range(5)]
    nodes = [tuple(chances.sample(range(NODES), chances.randrange(1, NODES))) for _ in range(4)]
    holds = list(world.first.parameters)
    for _ in range(400):
        pieces = [(chances.choice(nodes), chances.choice(programs)) for _ in range(chances.choice([1, 1, 2]))]
        sets = [world.one.prepare([(number, seen.parameters[number]) for number in some]) for some, seen in pieces]
        after = list(holds)
        for some, seen in pieces:
            for number in some:
                after[number] = seen.parameters[number]
        last, seen = pieces[-1]
        refused = chances.choice(last) if chances.random() < 0.4 else None
        if refused is not None and seen.parameters[refused] == holds[refused]:
            refused = None  # what it holds, it takes
        stand_in.refuses = unwelcome(refused, seen)
        accepted = world.one.update_prepared(sets, None)
        assert accepted is (refused is None)
        holds = after if accepted else holds
        done[accepted] += 1
        assert world.contents() == tuple(holds)
    assert min(done) > 100


@pytest.mark.parametrize("refused", range(NODES))
@pytest.mark.parametrize("before", ["made", "whole", "prepared", "singles"])
def test_a_refusal_takes_back_what_was_there_however_it_came_there(
    stand_in: StandIn, before: str, refused: int
) -> None:
    world = World(stand_in)
    wanted = world.first if before == "made" else world.third
    if before == "whole":
        executables: Any = world.one
        assert world.one.update_from(graph(executables._executables, stand_in, world.third))
    elif before != "made":
        sets = [world.one.prepare([change]) for change in changes(world.third)]
        sets = sets if before == "singles" else [world.one.prepare(changes(world.third))]
        assert world.one.update_prepared(sets, None)
    stand_in.refuses = unwelcome(refused, world.second)
    assert not world.one.update_prepared([world.prepared], None)
    assert world.contents() == wanted.parameters
    stand_in.refuses = lambda node, parameters: False
    assert world.one.update_prepared([world.prepared], None)
    assert world.contents() == world.second.parameters


def test_one_that_does_not_go_back_is_released(stand_in: StandIn) -> None:
    world = World(stand_in)
    assert world.one.update_prepared([world.prepared], None)
    stand_in.refuses = lambda node, parameters: node == 3 or (node == 2 and parameters == world.second.parameters[2])
    with pytest.raises(RuntimeError, match="does not accept again"):
        write_nodes(world.one, changes(world.third), None)
    with pytest.raises(RuntimeError, match="released executable"):
        world.one.replay()
    world.other.replay()


class Interrupt:
    """Raises KeyboardInterrupt before the `at`-th line that runs in executables, sets and writers."""

    FILES = ("executables/executable.py", "cuda/writes.py", "executables/nodes.py")

    def __init__(self, at: int) -> None:
        self.left, self.reached = at, False

    def enter(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        return self.line if frame.f_code.co_filename.endswith(self.FILES) else None

    def line(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        self.left -= event == "line"
        if not self.left:
            self.reached = True
            raise KeyboardInterrupt
        return self.line


@pytest.mark.parametrize("exported", [True, False])
@pytest.mark.parametrize("refused", [None, 4])
def test_r8a_an_interrupt_at_any_line(monkeypatch: pytest.MonkeyPatch, exported: bool, refused: int | None) -> None:
    """It leaves all of one program or all of another, and the executable knows which."""
    stand_in, outcomes, at = StandIn(exported=exported), set(), 0
    interrupt = Interrupt(0)
    interrupt.reached = True
    with without_a_device(monkeypatch, stand_in):
        while interrupt.reached:
            at += 1
            world, interrupt = World(stand_in), Interrupt(at)
            again = world.one.prepare(changes(world.third))
            assert world.one.update_prepared([again], None)
            stand_in.refuses = unwelcome(refused, world.second)
            sys.settrace(interrupt.enter)
            try:
                done = world.one.update_prepared([world.prepared], None)
            except KeyboardInterrupt:
                done = None
            finally:
                sys.settrace(None)
            found = world.contents()
            assert found in (world.second.parameters, world.third.parameters)
            outcomes.add("second" if found == world.second.parameters else "third")
            stand_in.refuses = unwelcome(6, world.first)
            assert not write_nodes(world.one, changes(world.first), None)
            assert world.contents() == found
    assert at > 10 and done is (refused is None)
    assert outcomes == ({"second", "third"} if refused is None else {"third"})


@pytest.mark.parametrize("library", ["missing", "too old"])
def test_without_the_drivers_own_function_the_bindings_write(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    stand_in = StandIn(exported=False)

    def missing() -> Any:
        raise OSError("libcuda.so.1: cannot open shared object file")

    if library == "missing":
        stand_in.driver = Driver(stand_in.driver.types, missing)
    with without_a_device(monkeypatch, stand_in):
        world = World(stand_in)
        assert world.one.update_prepared([world.prepared], None)
        assert world.contents() == world.second.parameters
        stand_in.refuses = unwelcome(4, world.third)
        assert not write_nodes(world.one, changes(world.third), None)
        assert world.contents() == world.second.parameters
    assert stand_in.plain == 0


def test_an_exported_function_takes_addresses_whole() -> None:
    """Those of 64 bits: what ctypes makes of an integer that nobody described is cut off."""
    compare = Driver(object(), lambda: ctypes.CDLL(None)).plain("memcmp", 3)
    assert compare is not None
    some, same, other = (ctypes.create_string_buffer(one, 8) for one in (b"grapes!", b"grapes!", b"grapple"))
    assert compare(ctypes.addressof(some), ctypes.addressof(same), 8) == 0
    assert compare(ctypes.addressof(some), ctypes.addressof(other), 8) != 0
    assert Driver(object(), lambda: ctypes.CDLL(None)).plain("cuNoSuchFunction", 3) is None


def test_what_nobody_can_write_is_not_prepared(stand_in: StandIn) -> None:
    executable = graph(Executables(stand_in.driver, DEVICE), stand_in, None).instantiate()
    assert not executable.update_prepared([], None)
    with pytest.raises(RuntimeError, match="not known"):
        executable.prepare([])


def test_a_set_of_nothing_and_a_node_alone(stand_in: StandIn) -> None:
    world = World(stand_in)
    assert world.one.update_prepared([world.one.prepare([])], None) and world.one.update_prepared([], None)
    assert world.contents() == world.first.parameters
    for number, parameters in changes(world.second):
        alone: PreparedWrites = world.prepared.alone(number)
        assert alone.memory is world.prepared.memory and alone.numbers == (number,)
        assert world.one.update_prepared([alone], None)
        assert world.contents()[number] == parameters
    assert world.contents() == world.second.parameters
    seen: Inspected = world.second
    assert seen.nbytes == sum(map(len, seen.parameters))
