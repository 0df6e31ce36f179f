"""The random histories of the tape on a GPU: regions of many shapes share real executables, and calls are eager's."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good
from hypothesis import given, settings
from hypothesis import strategies as st

from grape.runtime.accounts import policy
from grape.runtime.accounts.policy import decide
from grape.runtime.backends.cuda.backend import CudaBackend
from grape.runtime.backends.cuda.driver import load
from grape.runtime.backends.cuda.executables.executable import Executables
from tests.property.programs import eager_to_graph, seeded
from tests.property.test_shared_executables import World, others

EXAMPLES = 20
LENGTHS = (2, 3, 5, 6, 7, 9, 10)
"""Those of 4 bring a constant from the host, which the default device hides from Grape."""


class FickleExecutables(Executables):
    """They refuse updates at random, as a driver may between equal fingerprints."""

    def __init__(self, device: torch.device, chances: random.Random, refuse: float) -> None:
        driver = load()
        assert driver is not None, "these tests need cuda.bindings"
        super().__init__(driver, device)
        self.chances, self.refuse, self.refusals = chances, refuse, 0

    def refuses(self) -> bool:
        refused = self.chances.random() < self.refuse
        self.refusals += refused
        return refused

    def make(self, *args: Any) -> Any:
        return _Fickle(super().make(*args), self)


class _Fickle:
    def __init__(self, inner: Any, device: FickleExecutables) -> None:
        self.inner, self.device = inner, device

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def update_from(self, graph: Any) -> bool:
        return not self.device.refuses() and bool(self.inner.update_from(graph))

    def update_prepared(self, sets: Sequence[Any], attachment: object) -> bool:
        return not self.device.refuses() and bool(self.inner.update_prepared(sets, attachment))


class FickleCuda(CudaBackend):
    def __init__(self, device: torch.device, chances: random.Random, refuse: float) -> None:
        super().__init__(device)
        self.fickle = self._executables = FickleExecutables(self.device, chances, refuse)

    @property
    def refusals(self) -> int:
        return self.fickle.refusals


class CudaWorld(World):
    """What an executable needs follows from the driver's figures, and may turn out larger after a budget was met."""

    def check(self) -> None:
        assert self.store.account().executable_bytes == self.backend.memory().executable_bytes

    def act(self, action: str, value: int) -> None:
        super().act(action, value * 64 if action in ("budget", "graphs") and value <= 60 else value)


calls = st.lists(
    st.tuples(st.sampled_from(LENGTHS), st.integers(0, 1), st.sampled_from([False] * 7 + [True])),
    min_size=4,
    max_size=9,
)
histories = st.lists(st.tuples(calls, st.integers(1, 4), others), min_size=3, max_size=6)


def test_every_call_is_that_of_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    monkeypatch.setattr(policy, "decide", lambda estimate: replace(decide(estimate), action="capture"))
    # The histories ask for the random state of the default device.
    monkeypatch.setattr(torch, "get_rng_state", lambda: torch.cuda.get_rng_state(device))
    monkeypatch.setattr(torch, "set_rng_state", lambda state: torch.cuda.set_rng_state(state, device))
    totals: Counter[str] = Counter()

    def agrees(history: list[Any], seed: int, refuse: float) -> None:
        with torch.no_grad(), eager_to_graph(), device:
            world = CudaWorld(FickleCuda(device, random.Random(seed), refuse))
            for some, times, event in history:
                for n, which, keep in some * times:
                    world.call(which, n, keep)
                    world.check()
                world.act(*event)
                world.check()
            world.end()
        totals.update(world.counts)

    given_ = given(history=histories, seed=st.integers(0, 2**16), refuse=st.sampled_from([0.0, 0.0, 0.1, 0.5]))
    examples = settings.default.max_examples if not settings.default.derandomize else EXAMPLES
    settings(max_examples=examples)(seeded(0)(given_(agrees)))()
    print(dict(totals))
    assert totals["replays"] > 0.2 * totals["calls"], totals
    assert all(totals[name] for name in ("switches", "instantiations", "refusals")), totals
