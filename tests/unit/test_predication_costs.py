"""The choice between a conditional node and selects: a pure function of what the bodies do."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grape.runtime.predication.costs.costs import H200, BodyWork, Choice, NodeCosts, choose, node_ns, select_ns

ROWS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "benchmarks" / "results" / "predication_costs.json").read_text()
)["rows"]
"""Measured on a GPU, both ways; what was predicted then is not looked at."""
CONSTANTS = (
    "if_taken_ns",
    "if_skipped_ns",
    "kernel_ns",
    "bytes_per_ns",
    "memory_bytes_per_ns",
    "keep_ns",
    "kept_bytes_per_ns",
)
NOISE = 0.15


def bodies_of(row: dict[str, Any]) -> tuple[BodyWork, ...]:
    return tuple(BodyWork(**body) for body in row["bodies"])


def worst(costs: NodeCosts) -> tuple[float, str]:
    """How much longer the chosen way takes than the better one, at most, and where."""
    found = []
    for row in ROWS:
        measured = row["measured_ns"]
        over = measured[choose(costs, bodies_of(row))] / min(measured.values()) - 1
        found.append((over, f"{row['kind']}, {row['elements']} elements, {row['kernels']} kernels"))
    return max(found)


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
        ((BodyWork(kernels=1, nbytes=8_000, writes=1, written_nbytes=4_000),), "select"),
        ((BodyWork(kernels=1, nbytes=8_000_000, writes=1, written_nbytes=4_000_000),), "node"),
        ((BodyWork(kernels=1, writes=1, written_nbytes=10**9),), "node"),
        ((BodyWork(kernels=4, nbytes=32_000, writes=1, written_nbytes=4_000),), "select"),
        ((BodyWork(kernels=4, nbytes=32_000, writes=4, written_nbytes=16_000),), "node"),
    ],
)
def test_the_cheaper_way_is_chosen(bodies: tuple[BodyWork, ...], choice: Choice) -> None:
    assert choose(H200, bodies) == choice


MADE_UP = NodeCosts(
    if_taken_ns=9_000,
    if_skipped_ns=5_000,
    kernel_ns=1_000,
    bytes_per_ns=10,
    memory_bytes_per_ns=5,
    cache_nbytes=1_000,
    keep_ns=2_000,
    kept_bytes_per_ns=2,
)


def test_costs_are_those_of_the_kernels_and_the_bytes_on_top() -> None:
    quiet = BodyWork(marked=False)
    assert node_ns(MADE_UP, (quiet, quiet)) == 9_000 + 5_000
    assert select_ns(MADE_UP, (quiet, quiet)) == 0
    assert select_ns(MADE_UP, (BodyWork(), quiet)) == 1_000  # the mark
    ten = BodyWork(kernels=10, nbytes=5_000, writes=2, written_nbytes=100)
    assert node_ns(MADE_UP, (ten, quiet)) == 9_000 + 5_000 + (11_000 + 500) / 2
    assert node_ns(MADE_UP, (ten,)) == (9_000 + 5_000 + 11_000 + 500) / 2
    assert select_ns(MADE_UP, (ten, quiet)) == 11_000 + 500 + 4_000 + 50


def test_bytes_beyond_the_cache_take_the_rate_of_the_memory() -> None:
    inside, beyond = (BodyWork(kernels=2, nbytes=nbytes, marked=False) for nbytes in (2_000, 2_002))
    assert select_ns(MADE_UP, (inside,)) == 2_000 + 200
    assert select_ns(MADE_UP, (beyond,)) == 2_000 + 2_002 / 5
    inside, beyond = (BodyWork(writes=1, written_nbytes=nbytes, marked=False) for nbytes in (200, 202))
    assert select_ns(MADE_UP, (inside,)) == 2_000 + 100
    assert select_ns(MADE_UP, (beyond,)) == 2_000 + 202


@pytest.mark.parametrize("bodies", [1, 2])
def test_there_is_one_crossover(bodies: int) -> None:
    chosen = [choose(H200, (BodyWork(kernels=count),) * bodies) for count in range(1, 65)]
    first = chosen.index("node")
    assert chosen == ["select"] * first + ["node"] * (64 - first)
    assert 4 < first < 24


def test_each_measured_choice_is_within_a_tenth_of_the_better_way() -> None:
    over, where = worst(H200)
    assert over <= 0.10, where
    assert {choose(H200, bodies_of(row)) for row in ROWS} == {"node", "select"}


@pytest.mark.parametrize("name", CONSTANTS)
@pytest.mark.parametrize("factor", [1 - NOISE, 1 + NOISE])
def test_a_constant_that_is_off_moves_no_choice_by_more_than_a_tenth(name: str, factor: float) -> None:
    over, where = worst(replace(H200, **{name: getattr(H200, name) * factor}))
    assert over <= 0.10, where


def test_nor_do_all_of_them_that_are_off_by_a_tenth() -> None:
    """In every combination."""
    for factors in itertools.product((0.9, 1.1), repeat=len(CONSTANTS)):
        noisy = {name: getattr(H200, name) * factor for name, factor in zip(CONSTANTS, factors, strict=True)}
        over, where = worst(replace(H200, **noisy))
        assert over <= 0.10, (where, noisy)


def test_what_the_ways_differ_by_is_predicted() -> None:
    """Where it decides: at up to 12 kernels, within 15% of the longer way. What both ways do alike drops out."""
    for row in ROWS:
        measured, bodies = row["measured_ns"], bodies_of(row)
        if row["kernels"] <= 12:
            found = measured["select"] - measured["node"]
            predicted = select_ns(H200, bodies) - node_ns(H200, bodies)
            assert abs(found - predicted) <= 0.15 * max(measured.values()), row
