"""Many shapes through real regions that share executables: whatever is evicted, limited or refused, calls are eager's.

Two regions share one tape, one store and one budget. Between calls executables are evicted, budgets change, host
graphs go, a region is released, the device refuses updates or has no memory left, and results are kept.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good
from hypothesis import given, settings
from hypothesis import strategies as st

from grape.runtime import GraphedFunction, Region, RegionContext
from grape.runtime.accounts.memory import apply_budget
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.backends.reference.executable import ReferenceExecutable
from tests.property.programs import eager_to_graph, same, seeded

PARTS = 2
EXAMPLES = 24
NODE_BYTES = 1000
LENGTHS = (2, 3, 4, 5, 6, 7, 8)


class FickleTape(ReferenceBackend):
    """Refuses updates at random, as a driver may between equal fingerprints."""

    def __init__(self, chances: random.Random, refuse: float, capacity_bytes: int | None) -> None:
        super().__init__(poison=True, node_bytes=NODE_BYTES, capacity_bytes=capacity_bytes)
        self.chances, self.refuse, self.refusals = chances, refuse, 0

    def refuses(self) -> bool:
        refused = self.chances.random() < self.refuse
        self.refusals += refused
        return refused

    def _instantiate(self, program: Any) -> Any:
        return _Fickle(super()._instantiate(program), self)


@dataclass
class _Fickle:
    inner: ReferenceExecutable
    device: FickleTape

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def update_from(self, graph: Any) -> bool:
        return not self.device.refuses() and self.inner.update_from(graph)

    def update_prepared(self, sets: Sequence[Any], attachment: object) -> bool:
        return not self.device.refuses() and self.inner.update_prepared(sets, attachment)


def attend(weight: torch.Tensor, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Lengths of 3 have nodes of their own, lengths of 4 a constant; the state grows into the next call's argument."""
    n = x.shape[0]
    scores = torch.softmax(x @ weight + n, -1)
    if n % 3 == 0:
        scores = scores.flip(0).cumsum(0)
    if n % 4 == 0:
        scores = scores + torch.tensor([float(n)] * 4)
    return scores, torch.tanh(state * 0.5 + scores[:1])


def write(weight: torch.Tensor, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Writes an argument; lengths of 5 draw random numbers, so that they share with nobody."""
    n = x.shape[0]
    x.mul_(0.5).add_(weight[0])
    y = torch.relu(x @ weight)
    if n % 5 == 0:
        y = torch.nn.functional.dropout(y, 0.5)
    return y.sum(0), state + y[-1:]


FUNCTIONS: tuple[Callable[..., Any], ...] = (attend, write)


class Shared(GraphedFunction):
    """A graphed function in a context that others use too."""

    context: RegionContext | None = None

    def _make_region(self) -> Region:
        region = super()._make_region()
        if self.context is not None:
            context, self._region = self.context, None
            region = Region(context, region.function, region.root, region.name, region.at)
        return region


@dataclass
class World:
    """One context and two regions; beside them the state of an eager program and of the same one under Grape."""

    backend: FickleTape
    counts: Counter[str] = field(default_factory=Counter)
    kept: list[tuple[Any, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.weight = torch.linspace(-1, 1, 16).view(4, 4)
        self.graphed = [Shared(f, backend=self.backend, tolerance=0.0) for f in FUNCTIONS]
        first = self.graphed[0]
        first._region = first._make_region()
        self.context = first._region.context
        self.graphed[1].context = self.context
        self.states = [[torch.zeros(1, 4), torch.zeros(1, 4)] for _ in FUNCTIONS]
        self.turn = 0
        assert self.context.executables is not None
        self.store = self.context.executables

    def call(self, which: int, n: int, keep: bool) -> None:
        self.turn += 1
        inputs = [torch.linspace(-2, 2, n * 4).view(n, 4) * (self.turn % 7) for _ in range(2)]
        before = torch.get_rng_state()
        eager = FUNCTIONS[which](self.weight, inputs[0], self.states[which][0])
        after = torch.get_rng_state()
        torch.set_rng_state(before)
        mine = self.graphed[which](self.weight, inputs[1], self.states[which][1])
        assert torch.equal(after, torch.get_rng_state()), "the random state differs"
        same((eager, inputs[0]), (mine, inputs[1]), f"call {self.turn} of {FUNCTIONS[which].__name__}({n})")
        self.states[which] = [eager[1], mine[1]]
        if keep:
            self.kept.append((eager[0], mine[0]))
        same([one for one, _ in self.kept], [other for _, other in self.kept], f"kept at call {self.turn}")

    def act(self, action: str, value: int) -> None:
        store, context = self.store, self.context
        if action == "budget":
            context.memory_budget = None if value > 60 else self.held() + value * NODE_BYTES
            for graphed in self.graphed:
                if graphed._region is not None:
                    graphed._region.begin_run()
            apply_budget(context)
        elif action == "executables":
            store.limits = replace(store.limits, executables=value)
            store.apply_limits()
        elif action == "graphs":
            store.graph_budget_bytes = value * NODE_BYTES
            store.apply_limits()
        elif action == "release":
            region = self.graphed[value % 2]._region
            if region is not None:
                region.release()
        else:
            self.kept.clear()

    def held(self) -> int:
        return self.backend.memory().pool_bytes + self.context.store.nbytes

    def check(self) -> None:
        account = self.store.account()
        assert account.executable_bytes == self.backend.memory().executable_bytes
        budget = self.context.memory_budget
        assert budget is None or account.executable_bytes <= max(0, budget - self.held())

    def end(self) -> None:
        account = self.store.account()
        regions = [graphed._region for graphed in self.graphed if graphed._region is not None]
        self.counts["replays"] += sum(region.replays for region in regions)
        self.counts["calls"] += sum(region.calls for region in regions)
        self.counts["starved"] += sum(region.over_budget_at is not None for region in regions)
        for name in ("switches", "evictions", "refused", "instantiations"):
            self.counts[name] += getattr(account, name)
        self.counts["refusals"] += self.backend.refusals
        for region in regions:
            region.release()
        assert len(self.store) == 0 and self.backend.memory().executable_bytes == 0
        self.backend.close()


calls = st.lists(
    st.tuples(st.sampled_from(LENGTHS), st.integers(0, 1), st.sampled_from([False] * 7 + [True])),
    min_size=4,
    max_size=9,
)
others = st.one_of(
    st.tuples(st.just("budget"), st.integers(5, 90)),
    st.tuples(st.just("executables"), st.integers(1, 4)),
    st.tuples(st.just("graphs"), st.sampled_from([0, 30, 1000])),
    st.tuples(st.just("release"), st.integers(0, 1)),
    st.tuples(st.just("drop"), st.just(0)),
)
histories = st.lists(st.tuples(calls, st.integers(1, 4), others), min_size=3, max_size=6)
"""Some calls, how often they are made, and what happens then."""


@pytest.mark.parametrize("part", range(PARTS))
def test_every_call_is_that_of_eager(part: int) -> None:
    totals: Counter[str] = Counter()

    def agrees(history: list[Any], seed: int, refuse: float, capacity: int | None) -> None:
        world = World(FickleTape(random.Random(seed), refuse, capacity))
        with torch.no_grad(), eager_to_graph():
            for some, times, event in history:
                for n, which, keep in some * times:
                    world.call(which, n, keep)
                    world.check()
                world.act(*event)
                world.check()
            world.end()
        totals.update(world.counts)

    given_ = given(
        history=histories,
        seed=st.integers(0, 2**16),
        refuse=st.sampled_from([0.0, 0.0, 0.1, 0.5]),
        capacity=st.sampled_from([None, None, 20 * NODE_BYTES, 60 * NODE_BYTES]),
    )
    examples = settings.default.max_examples if not settings.default.derandomize else EXAMPLES
    settings(max_examples=examples)(seeded(part)(given_(agrees)))()
    assert totals["replays"] > 0.3 * totals["calls"], totals
    assert all(totals[name] for name in ("switches", "evictions", "refused", "refusals", "starved")), totals
