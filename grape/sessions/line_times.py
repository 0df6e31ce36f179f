"""The time of a cell's lines, or of its statements where lines could not be told apart."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType

from ..advisor.code.parsed import Parsed
from ..hoisting import on_code
from ..model import LineTime, LineTimes
from ..profiling import LineEvents, LineMemory, LineWatch

__all__ = ["CellLines", "by_statement"]


class CellLines:
    """Times the lines of one cell that is watched: by events where this Python has them, of which `memory` is told;
    else by looks now and then, which cannot tell what a line does to memory.
    """

    def __init__(
        self, filename: str, memory: LineMemory | None = None, own_ns: Callable[[], int] | None = None
    ) -> None:
        from ..runtime import Replays

        replay = Replays.serve.__code__
        self._events: LineEvents | None = LineEvents(filename, replay, memory=memory, own_ns=own_ns)
        self.looks: LineWatch | None = None
        """Asked to look by the thread that samples memory; None where nobody has to look."""
        if self._events.start():
            on_code.append(self._events.watch)
        else:
            self._events = None
            self.looks = LineWatch(filename, replay)

    @property
    def _known(self) -> LineEvents | LineWatch:
        known = self._events or self.looks
        assert known is not None
        return known

    @property
    def own_ns(self) -> int:
        """Nanoseconds that it took of the cell."""
        return self._known.own_ns

    def statement(self, code: CodeType | None) -> None:
        """The next one is about to run."""
        if self._events is not None and code is not None:
            self._events.statement(code)
        elif self.looks is not None:
            self.looks.statement(code)

    def stop(self) -> None:
        """The cell is over."""
        if self._events is not None:
            self._events.stop()
            on_code[:] = [look for look in on_code if look != self._events.watch]
        elif self.looks is not None:
            self.looks.statement(None)

    def give_up(self) -> None:
        """The cell goes on, and its lines are not timed any more."""
        self._known.cut = True
        self.stop()

    def times(self, source: str, work_ms: float, run: int, before: LineTimes | None) -> LineTimes | None:
        """Of this run, whose own work took `work_ms`, or `before`, of an earlier one that replayed less: what replays
        as one has no lines.
        """
        now = self._known.times(work_ms, run)
        if now is not None and self.looks is not None and self.looks.doubtful:
            now = by_statement(now, source)
        return now if before is None or (now and now.replayed_share <= before.replayed_share) else before


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
