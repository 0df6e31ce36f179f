"""Few executables serve many shapes: whatever is evicted, limited or refused, a launch does what its own graph does."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good
from hypothesis import given, settings
from hypothesis import strategies as st

from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.compression.residency import Limits
from tests.unit.held_launches import launches_held
from tests.unit.plain_store import PlainStore

NODE_BYTES = 100


def _step(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The node count depends on the length modulo 3, an attribute of a copy modulo 4; lengths of 7 draw."""
    n = x.shape[0]
    y = torch.tanh(x * weight[:n] + n) + torch.tensor([float(n)] * n)
    if n % 3 == 0:
        y = y.flip(0).cumsum(0)
    if n % 4 == 0:
        y = y + torch.tensor([[0.5 * n], [1.5]]).sum() * weight[0]
    if n % 7 == 0:
        y = torch.nn.functional.dropout(y, 0.5)
    return y


@dataclass
class Fickle:
    """A device that refuses updates at random, and, while a shape is admitted, sometimes accepts one and errs."""

    chances: random.Random
    refuse: float
    lie: float = 0.0
    admitting: bool = False
    lied: int = 0

    def graph(self, graph: Any) -> _FickleGraph:
        return _FickleGraph(graph, self)


@dataclass
class _FickleGraph:
    inner: Any
    device: Fickle

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def instantiate(self) -> _FickleExecutable:
        return _FickleExecutable(self.inner.instantiate(), self.device)


@dataclass
class _FickleExecutable:
    inner: Any
    device: Fickle
    errs: bool = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def update_from(self, graph: _FickleGraph) -> bool:
        if self.device.chances.random() < self.device.refuse:
            return False
        self.errs = self.device.admitting and self.device.chances.random() < self.device.lie
        self.device.lied += self.errs
        return True if self.errs else self.inner.update_from(graph.inner)

    def update_prepared(self, sets: Sequence[Any], attachment: object) -> bool:
        if self.device.chances.random() < self.device.refuse:
            return False
        skipped = self.errs and self.device.admitting
        return self.inner.update_prepared(() if skipped else sets, attachment)


@dataclass
class World:
    """Graphs of many lengths on one tape, in one store, and what each of them should compute."""

    backend: ReferenceBackend
    store: PlainStore
    device: Fickle
    weight: torch.Tensor = field(default_factory=lambda: torch.linspace(-1, 1, 32))
    places: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    turn: int = 0

    def expected(self, n: int) -> torch.Tensor:
        """Fills the placeholder anew and computes the result eagerly, leaving the random state as it was."""
        self.turn += 1
        place = self.places[n][0]
        place.copy_(torch.linspace(-2, 2, n) * self.turn)
        state = torch.get_rng_state()
        wanted = _step(place, self.weight)
        torch.set_rng_state(state)
        return wanted

    def capture(self, n: int) -> bool:
        place = torch.empty(n)
        graph, out = self.backend.capture(lambda: _step(place, self.weight))
        self.places[n] = place, out

        def verify(launch: Callable[[], None]) -> bool:
            wanted = self.expected(n)
            launch()
            return torch.equal(out, wanted)

        self.device.admitting = True
        admitted = self.store.admit(n, self.device.graph(graph), verify)
        self.device.admitting = False
        return admitted

    def call(self, n: int) -> bool:
        """Whether the store served it; it must then be right."""
        wanted = self.expected(n)
        if self.store.serves(n):
            assert torch.equal(self.places[n][1], wanted), n
            return True
        assert str(self.store.missing)
        return False

    def holds(self) -> None:
        """The limits do, and the account agrees with the device."""
        account, limits = self.store.account(), self.store.limits
        assert account.executable_bytes == self.backend.memory().executable_bytes
        assert account.executables <= limits.executables
        assert limits.nbytes is None or account.executable_bytes <= limits.nbytes


def _world(seed: int, refuse: float = 0.0, lie: float = 0.0, capacity: int | None = None, **store: Any) -> World:
    backend = ReferenceBackend(poison=True, node_bytes=NODE_BYTES, capacity_bytes=capacity)
    return World(backend, PlainStore(**store), Fickle(random.Random(seed), refuse, lie))


actions = st.one_of(
    st.tuples(st.just("call"), st.integers(2, 13)),
    st.tuples(st.just("call"), st.integers(2, 13)),
    st.tuples(st.just("call"), st.sampled_from([4, 5, 8])),
    st.tuples(st.just("forget"), st.integers(2, 13)),
    st.tuples(st.just("executables"), st.integers(0, 5)),
    st.tuples(st.just("bytes"), st.integers(0, 40) | st.none()),
)


@settings(max_examples=60)
@given(
    st.lists(actions, min_size=5, max_size=40),
    st.integers(0, 2**16),
    st.sampled_from([0.0, 0.1, 0.5]),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([None, 1500, 3000]),
    st.sampled_from([0, 3000, 1 << 30]),
)
def test_random_histories(
    history: list[tuple[str, int | None]], seed: int, refuse: float, lie: float, capacity: int | None, graphs: int
) -> None:
    world = _world(seed, refuse, lie, capacity, graph_budget_bytes=graphs)
    with torch.no_grad():
        for action, value in history:
            store = world.store
            if action == "call" and value is not None:
                if value not in store:
                    world.capture(value)
                if value in store:
                    world.call(value)
            elif action == "forget":
                store.forget(value)
            elif action == "executables" and value is not None:
                store.limits = Limits(executables=value, nbytes=store.limits.nbytes)
                store.apply_limits()
            elif action == "bytes":
                nbytes = None if value is None else value * NODE_BYTES
                store.limits = Limits(executables=store.limits.executables, nbytes=nbytes)
                store.apply_limits()
            world.holds()
        world.store.release()
        assert world.backend.memory().executable_bytes == 0
        world.backend.close()


@settings(max_examples=20)
@given(st.lists(st.sampled_from([4, 5, 8, 10, 11, 13]), min_size=20, max_size=40), st.integers(1, 3))
def test_nothing_is_refused_without_a_reason(lengths: list[int], executables: int) -> None:
    """Where the device takes every update and one executable fits, every call is served, however few there are."""
    world = _world(0, limits=Limits(executables=executables, nbytes=None), graph_budget_bytes=0)
    with torch.no_grad():
        for n in lengths:
            assert n in world.store or world.capture(n)
            assert world.call(n)
            world.holds()
    account = world.store.account()
    assert account.classes <= 2 and account.refused == 0 and account.alone == 0
    world.store.release()
    world.backend.close()


@settings(max_examples=20)
@given(st.lists(st.sampled_from([2, 4, 5, 8, 10, 11]), min_size=3, max_size=12), st.integers(1, 3))
def test_queued_launches_do_what_they_were_issued_for(lengths: list[int], executables: int) -> None:
    world = _world(0, limits=Limits(executables=executables, nbytes=None))
    with torch.no_grad():
        for n in sorted(set(lengths)):
            assert world.capture(n)
        wanted = [world.expected(n) for n in lengths]
        inputs = [world.places[n][0].clone() for n in lengths]
        found = []
        for n, given_input in zip(lengths, inputs, strict=True):
            world.places[n][0].fill_(7.0)
            wanted[len(found)] = _step(given_input, world.weight)
            found.append(torch.empty(n))
        with launches_held(world.backend):
            for n, given_input, result in zip(lengths, inputs, found, strict=True):
                place, out = world.places[n]
                world.backend.copy([place], [given_input])
                assert world.store.serves(n)
                world.backend.copy([result], [out])
            world.store.release()  # while everything still waits
        for result, value in zip(found, wanted, strict=True):
            assert torch.equal(result, value)
    world.backend.close()


def test_lies_of_the_device_are_found_at_admission() -> None:
    world = _world(1, lie=0.5)
    with torch.no_grad():
        for n in (4, 5, 8, 10, 11, 13, 16, 17, 19, 20):
            assert world.capture(n)
        assert world.device.lied >= 2
        for n in (20, 5, 19, 8, 13, 4, 16, 11, 10, 17) * 2:
            assert world.call(n)
    assert world.store.account().classes > 3  # the two of honest updates, and those that errors founded
    world.store.release()
    world.backend.close()
