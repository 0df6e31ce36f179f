"""Classes, residency, updates of the tape, and what the store does with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good

from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.backends.reference.executable import ReferenceExecutable, ReferenceGraph
from grape.runtime.compression import admission
from grape.runtime.compression.classes import Classes
from grape.runtime.compression.codec import Base, Record
from grape.runtime.compression.residency import Limits, Resident, Usage, evictions

from .held_launches import launches_held
from .plain_store import PlainStore

pytestmark = pytest.mark.usefixtures("without_gradients")


@pytest.fixture
def backend() -> Iterator[ReferenceBackend]:
    made = ReferenceBackend(poison=True, node_bytes=100)
    yield made
    made.close()


def write_nodes(executable: ReferenceExecutable, changes: Sequence[tuple[int, bytes]], attachment: object) -> bool:
    return executable.update_prepared([executable.prepare(changes)], attachment)


def _chain(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x * 2) + x.shape[0]


def _branch(backend: ReferenceBackend, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    with backend.if_body(x.sum() > 0):
        y.add_(x.shape[0])
    return y + 1


TOPOLOGIES: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[torch.Tensor], Any], bool]] = {
    "another length": (_chain, _chain, True),
    "another function": (torch.tanh, torch.exp, True),
    "another scalar": (lambda x: x + 1, lambda x: x + 2.5, True),
    "another constant": (lambda x: x + torch.tensor([1.0]), lambda x: x * torch.tensor([2.0]), True),
    "a flat constant of another length": (lambda x: torch.tensor([1.0]), lambda x: torch.tensor([2.0, 3.0]), True),
    "a constant of another extent": (lambda x: torch.tensor([[1.0]]), lambda x: torch.tensor([[2.0, 3.0]]), False),
    "one node more": (torch.tanh, lambda x: torch.tanh(x) + 1, False),
    "in place or not": (lambda x: x + 1, lambda x: x.add_(1), False),
}


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_what_an_update_takes(backend: ReferenceBackend, name: str) -> None:
    first, second, takes = TOPOLOGIES[name]
    x, z = torch.linspace(-1, 1, 6), torch.linspace(-1, 1, 9)
    one, out_one = backend.capture(lambda: first(x))
    two, out_two = backend.capture(lambda: second(z))
    executable = one.instantiate()
    assert (one.topology == two.topology) is takes
    assert executable.update_from(two) is takes
    executable.replay()
    wanted, out = (second(z), out_two) if takes else (first(x), out_one)
    if name != "in place or not":
        assert torch.equal(out, wanted)
    executable.release()
    with pytest.raises(RuntimeError, match="released"):
        executable.replay()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_bodies_are_updated_from_parameters_alone(backend: ReferenceBackend, sign: float) -> None:
    x, z = torch.ones(4), torch.ones(7)
    one, _ = backend.capture(lambda: _branch(backend, x))
    two, out = backend.capture(lambda: _branch(backend, z))
    parameters, attachment = two.parameters(), two.attachment
    executable = one.instantiate()
    two.release()
    assert write_nodes(executable, list(enumerate(parameters)), attachment)
    z.fill_(sign)
    executable.replay()
    assert torch.equal(out, z * 2 + (7 if sign > 0 else 0) + 1)


def test_a_refused_node_changes_nothing(backend: ReferenceBackend) -> None:
    x = torch.ones(4)
    graph, out = backend.capture(lambda: _chain(x))
    other, _ = backend.capture(lambda: (x * 3, torch.tensor([1.0])))
    executable = graph.instantiate()
    scaled, constant = other.parameters()
    assert not write_nodes(executable, [(0, scaled), (1, constant)], graph.attachment)
    assert write_nodes(executable, [], graph.attachment)  # nothing was left behind for the next update either
    executable.replay()
    assert torch.equal(out, _chain(x))


def test_graphs_that_draw_share_and_draw_what_eager_code_draws(backend: ReferenceBackend) -> None:
    x, z = torch.ones(40), torch.ones(70)
    one, _ = backend.capture(lambda: torch.dropout(x, 0.5, True))
    two, out = backend.capture(lambda: torch.dropout(z, 0.5, True))
    state = torch.get_rng_state()
    wanted, after = torch.dropout(z, 0.5, True), torch.get_rng_state()
    two.drew(state, after)
    executable = one.instantiate()
    assert one.topology == two.topology and write_nodes(executable, list(enumerate(two.parameters())), two.attachment)
    torch.set_rng_state(state)
    executable.replay()
    assert torch.equal(out, wanted) and torch.equal(torch.get_rng_state(), after)


def test_classes_try_the_largest_first_and_few() -> None:
    classes, base = Classes(), Base([b"node"])
    for shape in range(9):
        assert len(classes.candidates("same")) == min(shape, 4)
        classes.found(shape, "same", base)
    for shape in (9, 10):
        (first,) = [one for one in classes.candidates("same") if 0 in one.shapes]
        classes.add(shape, first)
    assert not classes.candidates("other")
    assert [one.shapes for one in classes.candidates("same")] == [{0, 9, 10}, {1}, {2}, {3}]
    assert classes.remove(9) is None and classes.remove(10) is None
    assert classes.remove(0) is not None
    assert [one.shapes for one in classes.candidates("same")] == [{1}, {2}, {3}, {4}]


@pytest.mark.parametrize(
    ("limits", "room", "gone"),
    [
        (Limits(executables=3, nbytes=None), {}, ()),
        (Limits(executables=3, nbytes=None), {"count": 1}, (2,)),
        (Limits(executables=3, nbytes=None), {"count": 1, "worth_ns": 5.0}, None),
        (Limits(executables=3, nbytes=None), {"count": 1, "worth_ns": 6.0}, (2,)),
        (Limits(executables=9, nbytes=150), {}, (3,)),  # 20 ns for 100 bytes is less than 5 for 10
        (Limits(executables=9, nbytes=150), {"count": 1, "nbytes": 140}, (3, 1)),
        (Limits(executables=9, nbytes=150), {"count": 1, "nbytes": 151}, None),
        (Limits(executables=0, nbytes=None), {"count": 1}, None),
        (Limits(executables=0, nbytes=None), {}, (2, 1, 3)),
    ],
)
def test_the_least_useful_go(limits: Limits, room: dict[str, Any], gone: tuple[int, ...] | None) -> None:
    resident = [
        Resident(number=1, nbytes=50, benefit_ns=15.0),
        Resident(number=2, nbytes=10, benefit_ns=5.0),
        Resident(number=3, nbytes=100, benefit_ns=20.0),
    ]
    assert evictions(resident, limits, **room) == gone


@pytest.mark.parametrize(
    ("class_bytes", "room", "gone"),
    [
        (160, {}, (2,)),  # the other one of its class does its work after a switch
        (159, {}, (1, 2)),
        (170, {"count": 1, "nbytes": 10, "group": "new"}, (2,)),
        (169, {"count": 1, "nbytes": 10, "group": "new"}, (1, 2)),
        (999, {"count": 1, "nbytes": 10, "group": "b"}, (1, 3, 2)),
        (999, {"count": 1, "nbytes": 10, "group": "b", "worth_ns": 5.0}, None),
    ],
)
def test_each_class_has_one_where_these_take_little(
    class_bytes: int, room: dict[str, Any], gone: tuple[int, ...]
) -> None:
    """Here for two; an owner has three classes."""
    resident = [
        Resident(number=1, nbytes=50, benefit_ns=1.0, group="a"),
        Resident(number=2, nbytes=10, benefit_ns=5.0, group="b"),
        Resident(number=3, nbytes=50, benefit_ns=2.0, group="c"),
        Resident(number=4, nbytes=50, benefit_ns=20.0, group="b"),
        Resident(number=5, nbytes=500, benefit_ns=0.0, owner="another", group="d"),
    ]
    limits = Limits(executables=2, nbytes=None, class_bytes=class_bytes + 500)
    assert evictions(resident, limits, **room) == gone


def test_shapes_of_many_classes_keep_their_executables(backend: ReferenceBackend) -> None:
    store = PlainStore(limits=Limits(executables=2, nbytes=None, class_bytes=10**6), clock_ns=Clock())
    kept, made = _shapes(backend, store, 30, 40), {}
    for steps in range(12, 18):  # so many nodes, so many classes
        place = torch.linspace(-1, 1, 5)
        graph, out = backend.capture(lambda place=place, steps=steps: _repeated(place, steps))
        assert store.admit(steps, graph, lambda launch: launch() is None)
        made[steps] = place, out
    for _ in range(40):  # of one class: none that nobody called yet goes for a further one
        assert store.serves(30) and store.serves(40)
    for steps, (place, out) in made.items():
        place.mul_(2)
        assert store.serves_at_once(steps)
        assert torch.equal(out, _repeated(place, steps))
    account = store.account()
    assert (account.classes, account.executables, account.evictions) == (7, 7, 0)
    assert all(torch.equal(out, _chain(place)) for place, out in kept.values())
    store.limits = replace(store.limits, class_bytes=0)
    store.apply_limits()
    assert store.account().executables == 2


def _repeated(x: torch.Tensor, steps: int) -> torch.Tensor:
    for _ in range(steps):
        x = torch.sin(x)
    return x


def test_what_was_hot_cools_down() -> None:
    usage = Usage(half_life=10)
    for _ in range(8):
        usage.touch("old")
    for _ in range(40):
        usage.touch("new")
    assert 0 < usage.weight("old") < 1 < usage.weight("new")
    usage.forget("new")
    assert usage.weight("new") == 0


class Clock:
    """Time stands still but where a test moves it."""

    now = 0

    def __call__(self) -> int:
        self.now += 10
        return self.now


def _shapes(
    backend: ReferenceBackend, store: PlainStore, *lengths: int
) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    made = {}
    for n in lengths:
        place = torch.linspace(-1, 1, n)
        graph, out = backend.capture(lambda place=place: _chain(place))
        assert store.admit(n, graph, lambda launch: launch() is None)
        made[n] = place, out
    return made


def test_one_executable_serves_all_and_records_are_small(backend: ReferenceBackend) -> None:
    store = PlainStore(limits=Limits(executables=1, nbytes=None), graph_budget_bytes=0)
    made = _shapes(backend, store, *range(3, 23))
    for n, (place, out) in made.items():
        place.mul_(3)
        assert store.serves(n)
        assert torch.equal(out, _chain(place))
    account = store.account()
    assert (account.shapes, account.classes, account.executables, account.graphs) == (20, 1, 1, 1)
    assert account.executable_bytes == 300 == backend.memory().executable_bytes
    assert account.all_resident_bytes == 20 * 300
    assert account.switches == 20 and account.instantiations == 1
    store.release()


def test_a_shape_that_paid_for_it_gets_its_own(backend: ReferenceBackend) -> None:
    store = PlainStore(limits=Limits(executables=2, nbytes=None), clock_ns=Clock())
    made = _shapes(backend, store, 4, 5)
    for _ in range(20):
        assert store.serves(4) and store.serves(5)
    before = store.account()
    assert before.executables == 2
    assert all(store.serves_at_once(n) for n in (4, 5, 4, 5))
    store.limits = Limits(executables=1, nbytes=None)
    store.apply_limits()
    assert store.account().evictions == 1
    assert [store.serves_at_once(n) for n in (4, 5)].count(True) <= 1
    assert torch.equal(made[5][1], _chain(made[5][0]))


def test_of_shapes_that_come_in_turn_the_last_one_goes(backend: ReferenceBackend) -> None:
    """The others keep their executables, and are served without a switch in each round."""
    store = PlainStore(limits=Limits(executables=3, nbytes=None), clock_ns=Clock())
    shapes = range(4, 12)
    made = _shapes(backend, store, *shapes)
    for _ in range(12):
        for n in shapes:
            assert store.serves(n)
    before = store.account().switches
    for n in shapes:
        made[n][0].mul_(2)
        assert store.serves(n)
        assert torch.equal(made[n][1], _chain(made[n][0]))
    assert store.account().executables == 3
    assert store.account().switches - before == len(shapes) - 2


@pytest.mark.parametrize("few", [(9, 10, 11), (8, 9, 10, 11)])
def test_a_few_of_the_shapes_that_came_in_turn_find_room_beside_each_other(
    backend: ReferenceBackend, few: tuple[int, ...]
) -> None:
    """Executables of shapes that come no more are not kept for them."""
    store = PlainStore(limits=Limits(executables=4, nbytes=None), clock_ns=Clock())
    made = _shapes(backend, store, *range(4, 12))
    for n in [*range(4, 12)] * 12 + [*few] * 2:
        assert store.serves(n)
    before = store.account().switches
    for n in [*few] * 5:
        assert store.serves(n)
    assert store.account().switches == before
    assert all(torch.equal(made[n][1], _chain(made[n][0])) for n in few)


def test_switches_that_nobody_waits_for_buy_no_executable(backend: ReferenceBackend) -> None:
    """The device is busy: what the host does meanwhile costs nothing."""
    store = PlainStore(limits=Limits(executables=2, nbytes=None), clock_ns=Clock())
    made = _shapes(backend, store, 4, 5)
    with launches_held(backend):
        assert store.serves(5)  # which is loaded: the device has work from here on
        for _ in range(40):
            assert store.serves(4) and store.serves(5)
        assert store.account().executables == 1
    assert torch.equal(made[5][1], _chain(made[5][0]))


def test_no_room_is_an_answer(backend: ReferenceBackend) -> None:
    store = PlainStore()
    made = _shapes(backend, store, 4, 5)
    store.limits = Limits(executables=4, nbytes=299)
    store.apply_limits()
    assert not store.serves(4) and str(store.missing) == "there is no room for an executable on the device"
    graph, _ = backend.capture(lambda: _chain(made[4][0]))
    assert not store.admit(6, graph, lambda launch: True)
    graph.replay()  # it is still the caller's
    store.limits = Limits(executables=4, nbytes=300)
    assert store.serves(4)
    assert not store.serves(99) and store.missing is not None and store.missing.gone


def test_a_wrong_replay_is_not_admitted_and_an_exception_leaves_nothing(backend: ReferenceBackend) -> None:
    store = PlainStore()
    made = _shapes(backend, store, 4)
    graph, _ = backend.capture(lambda: _chain(torch.ones(5)))
    assert not store.admit(5, graph, lambda launch: False)

    def interrupted(launch: Callable[[], None]) -> bool:
        launch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.admit(5, graph, interrupted)
    assert 5 not in store and store.account().shapes == 1
    made[4][1].zero_()
    assert store.serves(4)
    assert torch.equal(made[4][1], _chain(made[4][0]))
    store.release()
    assert backend.memory().executable_bytes == 0


def test_r16_no_shape_is_loaded_while_an_executable_is_changed(
    backend: ReferenceBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PlainStore(limits=Limits(executables=1, nbytes=None))
    loaded: list[list[int]] = []

    def note() -> None:
        loaded.append([n for n in (4, 5) if store.executable_bytes(n)])

    def noted(change: Callable[..., bool]) -> Callable[..., bool]:
        def noting(*args: Any) -> bool:
            note()
            return change(*args)

        return noting

    made = _shapes(backend, store, 4)
    for name in ("update_from", "update_prepared"):
        monkeypatch.setattr(ReferenceExecutable, name, noted(getattr(ReferenceExecutable, name)))
    place = torch.ones(5)
    graph, _ = backend.capture(lambda: _chain(place))
    assert store.admit(5, graph, lambda launch: (note(), launch()) is not None)
    assert store.serves(4)
    assert len(loaded) >= 4 and not any(loaded)
    assert store.executable_bytes(4) and not store.executable_bytes(5)
    assert torch.equal(made[4][1], _chain(made[4][0]))


def test_a_refused_trial_leaves_the_shape_that_was_loaded(
    backend: ReferenceBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PlainStore(limits=Limits(executables=2, nbytes=None), clock_ns=Clock())
    made = _shapes(backend, store, 4)
    monkeypatch.setattr(ReferenceExecutable, "update_from", lambda *args: False)
    place = torch.ones(5)
    graph, _ = backend.capture(lambda: _chain(place))
    assert not store.joins(5, graph, lambda launch: launch() is None)
    assert store.executable_bytes(4) and store.serves_at_once(4)
    assert torch.equal(made[4][1], _chain(made[4][0]))


def test_an_interrupt_behind_the_first_replay_of_a_class_leaves_nothing(backend: ReferenceBackend) -> None:
    store, place = PlainStore(), torch.linspace(-1, 1, 4)
    graph, out = backend.capture(lambda: _chain(place))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Base, "encode", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.admit(4, graph, lambda launch: launch() is None)
    assert store.account().executables == 0 == backend.memory().executable_bytes
    assert not store.joins(4, graph, lambda launch: launch() is None)
    assert store.serves(4) and torch.equal(out, _chain(place))


def _interrupted(*args: Any) -> Any:
    raise KeyboardInterrupt


def test_a_record_that_does_not_give_back_the_nodes_is_not_used(
    backend: ReferenceBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Damaged(Record):
        def nodes(self) -> tuple[bytes, ...]:
            return (*super().nodes()[:-1], b"")

    store = PlainStore()
    _shapes(backend, store, 4)
    place = torch.ones(5)
    graph, _ = backend.capture(lambda: _chain(place))
    assert store.joins(5, graph, lambda launch: launch() is None)
    monkeypatch.setattr(admission, "Record", Damaged)
    graph, _ = backend.capture(lambda: _chain(place))
    assert not store.joins(5, graph, lambda launch: launch() is None)


def test_a_second_executable_for_which_there_is_no_memory_costs_no_other(
    backend: ReferenceBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PlainStore(limits=Limits(executables=2, nbytes=None), clock_ns=Clock())
    made = _shapes(backend, store, 4, 5)
    tried: list[int] = []

    def full(graph: Any) -> Any:
        tried.append(1)
        raise torch.OutOfMemoryError

    monkeypatch.setattr(ReferenceGraph, "instantiate", full)
    for _ in range(20):
        assert store.serves(4) and store.serves(5)
    account = store.account()
    assert tried and (account.executables, account.evictions) == (1, 0)
    assert torch.equal(made[5][1], _chain(made[5][0]))
