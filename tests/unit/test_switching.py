"""What a switch costs: what is decoded, what is prepared, what is kept for it, and which executable is chosen."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good

from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.backends.reference.executable import ReferenceExecutable
from grape.runtime.compression import store, switching
from grape.runtime.compression.classes import TopologyClass
from grape.runtime.compression.codec import Base, Record
from grape.runtime.compression.members import ExecutableGroup, Loaded, Member
from grape.runtime.compression.residency import Limits, Usage
from grape.runtime.compression.resident_executables import ResidentExecutables
from grape.runtime.compression.working_set import shrink

from .plain_store import PlainStore, PlainUser

pytestmark = pytest.mark.usefixtures("without_gradients")

WEIGHT = torch.linspace(-1, 1, 32)


def work(x: torch.Tensor) -> torch.Tensor:
    """Four nodes; lengths differ in the last three, those beyond 8 in the first as well."""
    y = torch.tanh(WEIGHT) if len(x) <= 8 else torch.exp(WEIGHT)
    return x * y[: len(x)] + len(x)


class World:
    """Lengths in one store on a tape, of which each call is compared with eager; `whole` says how switches are made."""

    def __init__(
        self, patch: pytest.MonkeyPatch, *lengths: int, executables: int = 1, whole: bool = False, **store: Any
    ) -> None:
        self.backend = ReferenceBackend(poison=True, node_bytes=100)
        self.store = PlainStore(limits=Limits(executables=executables, nbytes=None), **store)
        self.made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.whole, self.decoded, self.turn = whole, 0, 0
        patch.setattr(ExecutableGroup, "prefers_nodes", lambda group, changes: not self.whole)
        patch.setattr(switching, "Record", self.decode)
        for length in lengths:
            self.admit(length)

    def decode(self, *args: Any) -> Record:
        self.decoded += 1
        return Record(*args)

    def admit(self, length: int) -> None:
        place = torch.linspace(-1, 1, length)
        graph, out = self.backend.capture(lambda: work(place))
        assert self.store.admit(length, graph, lambda launch: launch() is None)
        self.made[length] = place, out

    def call(self, *lengths: int) -> None:
        for length in lengths:
            self.turn += 1
            place, out = self.made[length]
            place.copy_(torch.linspace(-2, 2, length) * self.turn)
            assert self.store.serves(length)
            assert torch.equal(out, work(place)), length

    def member(self, length: int) -> Member:
        return self.store._members[length]


def test_equal_sets_of_changed_nodes_are_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 4, 5, 6, 9, 10)
    assert world.member(4).changed == frozenset()
    assert world.member(5).changed is world.member(6).changed and len(world.member(5).changed) >= 2
    assert world.member(9).changed is world.member(10).changed > world.member(5).changed
    group = world.member(4).group
    assert len(group._changed) == 2
    world.store.forget(9)
    world.call(5)
    assert len(group._changed) == 2
    world.store.forget(10)
    assert len(group._changed) == 1  # nothing is kept of what no shape has


def test_a_switch_from_a_whole_graph_opens_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 4, 5, 9, whole=True)
    for member in world.store._members.values():
        member.prepared, member.record = None, b"nobody looks here"
    world.call(4, 5, 9, 5, 4, 9)
    assert world.decoded == 0 and world.store.account().switches == 6


def test_a_record_is_opened_once_while_what_it_says_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 4, 5, 9)
    world.call(*(4, 5, 9, 5, 4, 9) * 3)
    assert world.decoded == 1  # the founder's: the others were prepared when they were admitted
    world.store.graph_budget_bytes = 0
    world.store.apply_limits()
    account = world.store.account()
    assert (account.graphs, world.member(5).prepared) == (1, None)
    world.decoded = 0
    world.call(5, 9, 5, 9)
    assert world.decoded == 4 and world.member(5).prepared is world.member(9).prepared is None
    world.store.graph_budget_bytes = 1 << 20
    world.call(5, 9, 5, 9, 5, 9)
    assert world.decoded == 6


def test_nodes_that_a_shape_does_not_change_get_what_the_base_says(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 4, 5, 6, 9, 10)
    group = world.member(4).group
    chances = random.Random(3)
    prepared: list[int] = []
    prepare = ReferenceExecutable.prepare

    def counted(executable: ReferenceExecutable, changes: Any) -> Any:
        prepared.append(len(changes))
        return prepare(executable, changes)

    monkeypatch.setattr(ReferenceExecutable, "prepare", counted)
    for _ in range(60):
        world.call(chances.choice([4, 5, 6, 9, 10]))
    assert set(group.originals) == set(world.member(9).changed)
    assert prepared.count(1) <= len(group.originals)  # each node once


def test_sets_of_nodes_count_in_budget_and_account(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, *range(4, 16))
    before = world.store.account()
    nbytes = sum(member.prepared.nbytes for member in world.store._members.values() if member.prepared is not None)
    assert before.prepared_bytes >= nbytes > 0 and before.record_bytes + before.base_bytes > 0
    budget = world.store.graph_budget_bytes = nbytes // 2
    world.store.apply_limits()
    chances = random.Random(3)
    for _ in range(40):
        world.call(chances.randrange(4, 16))
        kept = [member.prepared for member in world.store._members.values() if member.prepared is not None]
        assert budget // 2 < sum(one.nbytes for one in kept) <= budget
        assert world.store.account().graphs == 1
    world.store.release()
    after = world.store.account()
    assert after.record_bytes == after.base_bytes == after.graph_bytes == after.prepared_bytes == after.kept_bytes == 0


def test_both_ways_take_turns_on_one_executable(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may differ from the base is known whichever wrote it."""
    monkeypatch.setattr(store, "shrink", lambda *_: None)
    world = World(monkeypatch, 4, 5, 6, 9, 10, executables=2)
    chances = random.Random(5)
    for _ in range(200):
        world.whole = chances.random() < 0.5
        world.call(chances.choice([4, 5, 6, 9, 10]))
    assert world.store.account().graphs == 5


def test_a_graph_goes_once_no_switch_would_be_made_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the founder's, which executables are made from."""
    world = World(monkeypatch, 4, 5, 9, whole=True)
    assert world.store.account().graphs == 3
    world.whole = False
    world.admit(6)
    assert world.store.account().graphs == 1
    world.call(6, 9, 5, 4, 6)


@dataclass(eq=False)
class Thing:
    """A graph, or prepared writes."""

    nbytes: int
    released: list[int] = field(default_factory=list)

    @property
    def host_bytes(self) -> int:
        return self.nbytes

    def release(self) -> None:
        self.released.append(1)


def members(group: ExecutableGroup, *weights: float, prepared: bool = True) -> list[Member]:
    made = []
    for weight in weights:
        graph: Any = Thing(100)
        member = Member(weight, group, b"", None, graph, PlainUser(), changed=frozenset(range(10)))
        member.prepared = Thing(10) if prepared else None
        made.append(member)
    return made


def group_of(whole_ns: float | None, nodes_ns: float | None) -> ExecutableGroup:
    graph: Any = Thing(0)
    topology = TopologyClass("one", Base([b"node"]))
    return ExecutableGroup(graph, topology, None, whole_ns=whole_ns, nodes_ns=nodes_ns)


@pytest.mark.parametrize(
    ("budget", "graphs", "sets"),
    [
        (10_000, {1.0, 2.0, 3.0}, {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}),
        (360, {1.0, 2.0, 3.0}, {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}),
        (359, {2.0, 3.0}, {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}),
        (68, set(), {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}),
        (67, set(), {2.0, 3.0, 4.0, 5.0, 6.0}),
        (45, set(), {3.0, 4.0, 5.0, 6.0}),
        (0, set(), set()),
    ],
)
def test_what_goes_first_from_the_working_set(budget: int, graphs: set[float], sets: set[float]) -> None:
    """Shapes 1 to 3 are switched to from their graphs; 4 to 6 node by node, whose graphs go whatever the budget is.

    Where it is too little, an eighth of it is free afterwards."""
    weights = {1.0: 1.0, 2.0: 2.0, 3.0: 3.0, 4.0: 40.0, 5.0: 30.0, 6.0: 50.0}
    known = [*members(group_of(90.0, 10.0), 1.0, 2.0, 3.0), *members(group_of(101.0, 10.0), 4.0, 5.0, 6.0)]
    had = {member.shape: member.graph for member in known}
    shrink(known, budget, lambda shape: weights[shape])  # type: ignore[index]
    assert {member.shape for member in known if member.graph is not None} == graphs
    assert {member.shape for member in known if member.prepared is not None} == sets
    for member in known:
        graph: Any = had[member.shape]
        assert bool(graph.released) is (member.graph is None)


def test_a_graph_without_prepared_writes_is_needed() -> None:
    known = [*members(group_of(101.0, 10.0), 1.0, prepared=False), *members(group_of(None, None), 2.0, 3.0)]
    shrink(known, 320, lambda shape: 1.0)
    assert [member.graph is not None for member in known] == [True] * 3
    shrink(known, 219, lambda shape: float(shape))  # type: ignore[arg-type]
    assert [member.graph is not None for member in known] == [False, False, True]


@pytest.mark.parametrize("half_life", [1, 3, 1024])
def test_weights_fade_as_if_each_was_halved_at_every_call(half_life: int) -> None:
    chances = random.Random(half_life)
    usage, now = Usage(half_life), 0
    known: dict[int, tuple[float, int]] = {}
    for _ in range(3000):
        times = chances.choice([1, 1, 1, 7, 300 if half_life > 3 else 2, 10**6 if chances.random() < 0.01 else 1])
        keys = chances.sample(range(8), chances.choice([1, 2]))
        now += times
        for key in keys:
            weight, since = known.get(key, (0.0, now))
            known[key] = weight * 0.5 ** min((now - since) / half_life, 2000.0) + times, now
        usage.touch(*keys, times=times)
        for key, (weight, since) in known.items():
            wanted = weight * 0.5 ** min((now - since) / half_life, 2000.0)
            assert usage.weight(key) == pytest.approx(wanted, rel=1e-9, abs=1e-100)


def test_whom_to_switch_is_the_one_of_the_least_benefit() -> None:
    """And whether one more may be made is what `leaving_for` says, also where that is not asked; never over limits."""
    chances = random.Random(1)
    answers = set()
    for _ in range(400):
        resident = ResidentExecutables(
            Limits(executables=chances.randrange(1, 9), nbytes=chances.choice([None, None, 500]))
        )
        owners = ["one"] * 3 + ["two"] if chances.random() < 0.5 else ["one"]
        groups = []
        for owner in owners:
            group = group_of(chances.choice([None, 50.0, 90.0]), chances.choice([None, 10.0]))
            group.owner, group.instantiate_ns, group.executable_bytes = owner, 70.0, 100
            groups.append(group)
        for number in range(chances.randrange(1, 9)):
            executable: Any = Thing(100)
            group = chances.choice(groups)
            loaded = Loaded(number, executable, group, None, frozenset(range(chances.choice([0, 4, 12]))))
            resident.all[number] = group.executables[number] = loaded
            if chances.random() < 0.8:
                loaded.member = Member(object(), group, b"", None, None, PlainUser())
                loaded.member.user.launches = chances.randrange(4)  # type: ignore[misc]
        for group in groups:
            sharing = list(group.executables.values())
            assert resident.least_useful(sharing) is min(sharing, key=resident.benefit_ns, default=None)
            worth = chances.choice([10.0, 100.0, 1000.0])
            leaving = resident.leaving_for(group, worth_ns=worth)
            wanted = leaving is not None and all(resident.all[number].group is not group for number in leaving)
            if sum(one.group.owner == group.owner for one in resident.all.values()) > resident.limits.executables:
                assert not resident.may_have_another(group, worth_ns=worth)
            elif group:
                assert resident.may_have_another(group, worth_ns=worth) is wanted
                answers.add((wanted, bool(leaving)))
    assert answers == {(True, True), (True, False), (False, True), (False, False)}
