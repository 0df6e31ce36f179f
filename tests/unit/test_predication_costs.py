"""The choice between a conditional node and selects: a pure function of what the bodies do."""

from __future__ import annotations

import pytest

from grape.runtime.predication.costs import H200, BodyWork, Choice, choose, node_ns, select_ns


@pytest.mark.parametrize(
    ("bodies", "choice"),
    [
        ((BodyWork(kernels=1), BodyWork(kernels=1)), "select"),
        ((BodyWork(kernels=1, writes=1), BodyWork()), "select"),
        ((BodyWork(kernels=64), BodyWork(kernels=64)), "node"),
        ((BodyWork(kernels=64), BodyWork()), "node"),
        ((BodyWork(kernels=1, nbytes=10**9), BodyWork(kernels=1)), "node"),
        ((BodyWork(kernels=1, selectable=False), BodyWork(kernels=1)), "node"),
        ((BodyWork(kernels=2),), "select"),
        ((BodyWork(kernels=32),), "node"),
        ((BodyWork(kernels=1, writes=1, written_nbytes=10**9),), "node"),
    ],
)
def test_the_cheaper_way_is_chosen(bodies: tuple[BodyWork, ...], choice: Choice) -> None:
    assert choose(H200, bodies) == choice


def test_costs_of_two_empty_bodies_and_of_ten_kernels() -> None:
    assert node_ns(H200, (BodyWork(), BodyWork())) == 9_600 + 5_200
    assert select_ns(H200, (BodyWork(), BodyWork())) == 0
    assert node_ns(H200, (BodyWork(kernels=10), BodyWork())) == 9_600 + 5_200 + 6_000
    assert select_ns(H200, (BodyWork(kernels=10, writes=2), BodyWork())) == 12_000 + 4_800


@pytest.mark.parametrize("bodies", [1, 2])
def test_there_is_one_crossover(bodies: int) -> None:
    chosen = [choose(H200, (BodyWork(kernels=count),) * bodies) for count in range(1, 65)]
    first = chosen.index("node")
    assert chosen == ["select"] * first + ["node"] * (64 - first)
    assert 4 < first < 24
