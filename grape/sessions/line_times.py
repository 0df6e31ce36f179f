"""The time of a cell's lines, or of its statements where lines could not be told apart."""

from __future__ import annotations

from ..advisor.parsed import Parsed
from ..model import LineTime, LineTimes
from ..profiling import LineWatch

__all__ = ["by_statement", "line_times"]


def line_times(watch: LineWatch, source: str, work_ms: float, run: int) -> LineTimes | None:
    """What `watch` tells of the cell with this source, in its run number `run`, whose own work took `work_ms`."""
    found = watch.times(work_ms, run)
    return by_statement(found, source) if found is not None and watch.doubtful else found


def by_statement(times: LineTimes, source: str) -> LineTimes | None:
    """Each statement of the cell's top level as one line; None where the source does not tell where they are."""
    tree = Parsed(source).tree
    if tree is None:
        return None
    lines = []
    for statement in tree.body:
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        inside = [line for line in times.lines if first <= line.line <= last]
        if inside:
            ms, replayed_ms = sum(line.ms for line in inside), sum(line.replayed_ms for line in inside)
            end = last if last > first else None
            lines.append(LineTime(line=first, end_line=end, ms=ms, replayed_ms=replayed_ms))
    return LineTimes(lines=tuple(lines), looks=times.looks, run=times.run)
