"""GR601: one rank that the others wait for, most of the time, for a good part of the cell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from grape.advisor import advise
from grape.model import CellEvidence, Finding, Late, RanksEvidence, RankTimes
from tests.unit.sample_evidence import cell
from tests.unit.trace_builder import LIBRARY, at


def late(rank: int = 1, *, times: int = 20, ms: float = 200.0, line: int = 4) -> Late:
    user = at(line)
    return Late(rank=rank, operator="c10d::allreduce_", user=user, inner=user, times=times, ms=ms)


def beside(*known: Late, size: int = 4, window_ms: float | None = 1000.0) -> CellEvidence:
    shown = tuple(
        RankTimes(rank=rank, wall_ms=1000.0, operators=100, matched=90, collectives=20, waits_ms=1.0)
        for rank in range(size)
    )
    return cell(ranks=RanksEvidence(rank=0, size=size, shown=shown, late=known, window_ms=window_ms))


def found(evidence: CellEvidence) -> list[Finding]:
    return [finding for finding in advise(evidence) if finding.code == "GR601"]


def test_the_rank_the_collective_the_line_and_the_cost() -> None:
    (finding,) = found(beside(late()))
    assert finding.message == (
        "the other ranks wait for rank 1 at `allreduce`: it comes 10 ms behind the next to last at 20 exchanges, "
        "20% of the cell"
    )
    assert (finding.severity, finding.at, finding.predicted_ms_per_call) == ("costly", at(4), 10.0)
    assert finding.advice is not None and finding.advice.startswith("give rank 1 as much work as the others")
    assert dict(finding.evidence)["late_ms"] == 200.0
    assert not finding.fixable


def test_two_ranks() -> None:
    (finding,) = found(beside(late(), size=2))
    assert finding.message.startswith("the other rank waits for rank 1 at `allreduce`: it comes 10 ms later at 20")


def test_the_line_where_it_costs_most_stands_for_all() -> None:
    (finding,) = found(beside(late(ms=150.0, line=9), late(ms=50.0, line=4)))
    assert finding.at == at(9) and dict(finding.evidence)["lines"] == 2
    assert dict(finding.evidence)["late_ms"] == 200.0


def test_a_collective_of_a_library_names_the_place() -> None:
    one = replace(late(), inner=at(30, file=LIBRARY, function="sync"))
    (finding,) = found(beside(one))
    assert "at `allreduce` (in sync, somelib/masks.py, line 30)" in finding.message


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ((late(ms=100.0),), 1),
        ((late(ms=99.9),), 0),
        ((late(times=4),), 1),
        ((late(times=3),), 0),
        ((late(times=20), late(2, times=10, ms=20.0)), 1),
        ((late(times=20), late(2, times=11, ms=20.0)), 0),
        ((), 0),
    ],
    ids=["a tenth", "less", "four times", "three", "two thirds of them", "fewer", "nobody"],
)
def test_where_it_is_a_straggler(known: tuple[Late, ...], expected: int) -> None:
    assert len(found(beside(*known))) == expected


def test_of_a_short_cell_nothing_is_said() -> None:
    assert not found(beside(late(ms=4.9), window_ms=10.0))
    assert found(beside(late(ms=5.0), window_ms=10.0))


def test_where_arrivals_were_not_compared_nothing_is_said() -> None:
    assert not found(beside(late(), window_ms=None))
    assert not found(cell())


CELLS = {
    "ranks_long_texts": '''"""One rank has the long texts."""
# device: ranks
# ranks: 4
# %% setup
grads = None
# %% cell
for step in range(12):
    work(10, 10, 14, 10)
    dist.all_reduce(grads)  # GR601
''',
    "ranks_two": '''"""Two ranks, one of them slower, and two collectives in a step."""
# device: ranks
# ranks: 2
# %% setup
loss = norm = None
# %% cell
for step in range(8):
    work(2, 5)
    dist.all_reduce(loss)  # GR601
    work(1, 1)
    dist.all_reduce(norm)
''',
    "ranks_buckets": '''"""Buckets of gradients are exchanged while the rest is computed."""
# device: ranks
# ranks: 3
# %% setup
buckets, loss = [None] * 4, None
# %% cell
for step in range(10):
    work(8, 3, 3)
    for bucket in buckets:
        work(1, 1, 1)
        dist.all_reduce(bucket, async_op=True)  # GR601
    work(1, 1, 1)
    dist.all_reduce(loss)
''',
    "ranks_logging": '''"""Rank 0 writes what the others wait for."""
# device: ranks
# ranks: 4
# %% setup
ready = loss = None
# %% cell
for epoch in range(6):
    for step in range(3):
        work(4, 4, 4, 4)
        dist.all_reduce(loss)
    work(30, 0, 0, 0)
    dist.all_reduce(ready)  # GR601
''',
    "ranks_even": '''"""All ranks take as long."""
# device: ranks
# ranks: 4
# near-miss: GR601
# %% setup
grads = None
# %% cell
for step in range(12):
    work(10, 10.05, 10, 10.02)
    dist.all_reduce(grads)
''',
    "ranks_in_turn": '''"""Each rank is the slow one in turn."""
# device: ranks
# ranks: 4
# near-miss: GR601
# %% setup
grads = None
# %% cell
for step in range(12):
    slow = step % 4
    work(*(14 if rank == slow else 10 for rank in range(4)))
    dist.all_reduce(grads)
''',
    "ranks_once": '''"""One rank was late once, at the first step."""
# device: ranks
# ranks: 2
# near-miss: GR601
# %% setup
grads = None
# %% cell
work(0, 100)
for step in range(12):
    work(10, 10)
    dist.all_reduce(grads)
''',
}
"""Ranks with clocks of their own."""
