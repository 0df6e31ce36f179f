"""Costs of control flow from measurements of a played machine, and where they are used."""

from __future__ import annotations

import math

import pytest

from grape.runtime.backends.tape import TapeBackend
from grape.runtime.predication.calibration import calibrate, node_costs, overridden
from grape.runtime.predication.costs import H200, BodyWork, NodeCosts, choose, crossover


class Machine:
    """Every replay pays 5 us once; an event is worth nothing."""

    source = "a machine"

    def __init__(
        self, *, kernel: float = 2_000, taken: float = 7_000, skipped: float = 3_000, rate: float = 2_000
    ) -> None:
        self._kernel, self._taken, self._skipped, self._rate = kernel, taken, skipped, rate

    def chain_ns(self, kernels: int) -> float:
        return 5_000 + kernels * self._kernel

    def bodies_ns(self, bodies: int, *, taken: bool) -> float:
        return 5_000 + bodies * (self._taken + self._kernel if taken else self._skipped)

    def select_ns(self, nbytes: int) -> float:
        return 5_000 + 3 * nbytes / self._rate

    def launch_ns(self) -> float:
        return 4_000


def test_what_is_measured_is_what_the_machine_does() -> None:
    found = calibrate(Machine())
    assert found == NodeCosts(
        if_taken_ns=pytest.approx(7_000),
        if_skipped_ns=pytest.approx(3_000),
        kernel_ns=pytest.approx(2_000),
        bytes_per_ns=pytest.approx(2_000),
        launch_ns=4_000,
        source="a machine, measured",
    )


@pytest.mark.parametrize("nonsense", [0.0, -1.0, math.nan, math.inf])
def test_nonsense_leaves_the_default(nonsense: float) -> None:
    found = calibrate(Machine(kernel=nonsense, taken=nonsense, skipped=nonsense, rate=math.inf))
    assert (found.kernel_ns, found.if_taken_ns, found.bytes_per_ns) == (
        H200.kernel_ns,
        H200.if_taken_ns,
        H200.bytes_per_ns,
    )
    assert found.if_skipped_ns == H200.if_skipped_ns


def test_the_crossover_is_where_the_choice_changes() -> None:
    for branches in (1, 2):
        kernels = crossover(H200, branches=branches)
        assert kernels is not None
        writes = 1 if branches == 1 else 0
        before, at = (BodyWork(kernels=count, writes=writes) for count in (kernels - 1, kernels))
        assert choose(H200, (before,) * branches) == "select" and choose(H200, (at,) * branches) == "node"
    assert crossover(calibrate(Machine(kernel=1e-3)), most=64) is None


def test_costs_can_be_overridden_and_the_tape_has_the_defaults() -> None:
    backend = TapeBackend()
    mine = calibrate(Machine())
    assert node_costs(backend) is H200
    with overridden(mine):
        assert node_costs(backend) is mine
    assert node_costs(backend) is H200
