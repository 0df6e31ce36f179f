"""Cells of the corpus that several ranks run, on a clock of their own.

``device: ranks`` names cells that find `dist`, whose collectives all ranks meet in, and `work(*ms)`, which takes so
many milliseconds in each rank; ``async_op=True`` waits at the next collective that has none.
"""

from __future__ import annotations

import sys
from typing import Any

from grape.advisor import advise
from grape.model import CellEvidence, Finding, Position, RanksEvidence, RankTimes
from grape.model.times.ranks import Meeting, compared

__all__ = ["run_ranks"]

_EPOCH_NS = 1_000_000_000


class Clocks:
    """Of all ranks, in nanoseconds; a module of collectives at the same time."""

    def __init__(self, ranks: int, file: str) -> None:
        self.now_ns = [_EPOCH_NS] * ranks
        self.at_ns: list[list[int]] = [[] for _ in range(ranks)]
        self.meetings: list[Meeting] = []
        self._file = file

    def work(self, *ms: float) -> None:
        for rank, took_ms in enumerate(ms):
            self.now_ns[rank] += round(took_ms * 1e6)

    def all_reduce(self, tensor: object, *, async_op: bool = False) -> None:
        line = Position(file=self._file, line=sys._getframe(1).f_lineno, function="<module>")
        self.meetings.append(Meeting(operator="c10d::allreduce_", user=line, inner=line))
        for rank, now_ns in enumerate(self.now_ns):
            self.at_ns[rank].append(now_ns)
        if not async_op:
            self.now_ns = [max(self.now_ns)] * len(self.now_ns)
        self.work(*([0.01] * len(self.now_ns)))


def run_ranks(setup: str, source: str, ranks: int, file: str) -> tuple[Finding, ...]:
    """The findings of rank 0 about the cell."""
    clocks = Clocks(ranks, file)
    namespace: dict[str, Any] = {"dist": clocks, "work": clocks.work}
    exec(setup, namespace)
    exec(compile(source, file, "exec"), namespace)
    waits, late = compared(clocks.meetings, clocks.at_ns)
    wall_ms = (max(clocks.now_ns) - _EPOCH_NS) / 1e6
    shown = tuple(
        RankTimes(
            rank=rank, wall_ms=wall_ms, operators=0, matched=0, collectives=len(clocks.meetings), waits_ms=waits_ms
        )
        for rank, waits_ms in enumerate(waits)
    )
    return advise(
        CellEvidence(
            file=file,
            source=source,
            device="CPU",
            backend="tape",
            wall_ms=wall_ms,
            ranks=RanksEvidence(rank=0, size=ranks, shown=shown, late=late, window_ms=wall_ms),
        )
    )
