"""GR601 straggler: ranks wait for one of them in a collective.

Sees: when each rank came to the collectives of the cell, at which of them one rank came last, and how far behind the
next to last. Costs: that time, in all; the other ranks wait at least so long. Fix: give that rank as much work as the
others, or find what slows it. Wrong when: the clocks of the ranks' hosts do not agree.
"""

from __future__ import annotations

from collections.abc import Iterable

from ....model import CellEvidence, Finding, Late, RanksEvidence
from ....model.times.machine import H200, MachineCosts
from ...words import library, milliseconds, via

CODE = "GR601"

_SHARE = 0.1
"""Of the cell; below, somebody always is the last."""
_LEAST_MS = 5.0
_EXCHANGES = 4
_MOST = 2 / 3
"""Of those at which somebody was late."""


def check(evidence: CellEvidence, costs: MachineCosts = H200) -> Iterable[Finding]:
    ranks = evidence.ranks
    if ranks is None or not ranks.late or not ranks.window_ms:
        return
    rank = max((one.rank for one in ranks.late), key=lambda one: sum(late.ms for late in _of(ranks, one)))
    mine = _of(ranks, rank)
    times, ms = sum(late.times for late in mine), sum(late.ms for late in mine)
    share = ms / max(ms, ranks.window_ms)
    if times >= max(_EXCHANGES, _MOST * sum(late.times for late in ranks.late)) and ms >= _LEAST_MS and share >= _SHARE:
        yield _finding(ranks, rank, mine, share)


def _of(ranks: RanksEvidence, rank: int) -> list[Late]:
    return [late for late in ranks.late if late.rank == rank]


def _finding(ranks: RanksEvidence, rank: int, mine: list[Late], share: float) -> Finding:
    worst = mine[0]
    times, ms = sum(late.times for late in mine), sum(late.ms for late in mine)
    wall = {one.rank: one.wall_ms for one in ranks.shown}
    two = ranks.size == 2
    others, later = ("rank waits", "later") if two else ("ranks wait", "behind the next to last")
    where = via(worst.user, worst.inner) if library(worst.user, worst.inner) else ""
    return Finding(
        code=CODE,
        severity="costly",
        message=f"the other {others} for rank {rank} at `{_name(worst.operator)}`{where}: it comes "
        f"{milliseconds(ms / times)} {later} at {times:,} exchanges, {share:.0%} of the cell",
        at=worst.user or worst.inner,
        evidence=(
            ("executions", times),
            ("rank", rank),
            ("ranks", ranks.size),
            ("late_ms", ms),
            ("share", share),
            ("collective", worst.operator),
            ("lines", len(mine)),
            ("wall_ms", tuple(wall.values())),
        ),
        predicted_ms_per_call=ms / times,
        advice=f"give rank {rank} as much work as the others (lengths of its batches, its part of the data), or look "
        "at what else its host and its GPU do",
    )


def _name(operator: str) -> str:
    """``c10d::allreduce_`` as people call it."""
    return operator.rpartition("::")[2].strip("_")
