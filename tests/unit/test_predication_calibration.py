"""Costs of control flow from measurements of a played machine, and where they are used."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.predication.costs.calibration import calibrate, node_costs
from grape.runtime.predication.costs.costs import H200, BodyWork, NodeCosts, choose, crossover


class Machine:
    """Every replay pays 5 us once. A kernel pays for its bytes on top, by where they lie; a kept write for its own."""

    source = "a machine"
    cache_nbytes = 32 << 20

    def __init__(
        self,
        *,
        kernel: float = 2_000,
        taken: float = 7_000,
        skipped: float = 3_000,
        rate: float = 8_000,
        memory: float = 2_000,
        keep: float = 4_500,
        kept: float = 700,
    ) -> None:
        self._kernel, self._taken, self._skipped = kernel, taken, skipped
        self._rate, self._memory, self._keep, self._kept = rate, memory, keep, kept

    def chain_ns(self, kernels: int, nbytes: int) -> float:
        moved = 2 * nbytes
        return 5_000 + kernels * (self._kernel + moved / (self._rate if moved <= self.cache_nbytes else self._memory))

    def bodies_ns(self, bodies: int) -> tuple[float, float]:
        taken, skipped = self._taken + 2 * self._kernel, self._skipped + self._kernel
        return 5_000 + bodies * taken, 5_000 + bodies * skipped

    def keeps_ns(self, writes: int, nbytes: int) -> float:
        return 5_000 + writes * (self._keep + nbytes / self._kept)


def test_what_is_measured_is_what_the_machine_does() -> None:
    assert calibrate(Machine()) == NodeCosts(
        if_taken_ns=pytest.approx(7_000, rel=1e-3),
        if_skipped_ns=pytest.approx(3_000, rel=1e-3),
        kernel_ns=pytest.approx(2_000, rel=1e-3),
        bytes_per_ns=pytest.approx(8_000),
        memory_bytes_per_ns=pytest.approx(2_000, rel=1e-3),
        cache_nbytes=32 << 20,
        keep_ns=pytest.approx(4_500, rel=2e-3),
        kept_bytes_per_ns=pytest.approx(700),
        source="a machine, measured",
    )


@pytest.mark.parametrize("nonsense", [0.0, -1.0, math.nan, math.inf])
def test_nonsense_leaves_the_default(nonsense: float) -> None:
    """Without the 8 bytes per ns of a kernel over 4 KB, which count as the kernel's own."""
    costs = {"kernel": nonsense, "taken": nonsense, "skipped": nonsense, "keep": nonsense}
    found = calibrate(Machine(**costs, rate=math.inf, memory=math.inf, kept=math.inf))
    assert replace(found, source=H200.source, cache_nbytes=H200.cache_nbytes) == H200


def test_a_cache_of_unknown_size_is_taken_for_the_default_one() -> None:
    machine = Machine()
    machine.cache_nbytes = 0
    assert calibrate(machine).cache_nbytes == H200.cache_nbytes


def test_the_crossover_is_where_the_choice_changes() -> None:
    for branches in (1, 2):
        kernels = crossover(H200, branches=branches)
        assert kernels is not None
        writes = 1 if branches == 1 else 0
        before, at = (BodyWork(kernels=count, writes=writes) for count in (kernels - 1, kernels))
        assert choose(H200, (before,) * branches) == "select" and choose(H200, (at,) * branches) == "node"
    assert crossover(calibrate(Machine(kernel=1e-3)), most=64) is None


def test_the_tape_has_the_default_costs() -> None:
    assert node_costs(ReferenceBackend()) is H200
