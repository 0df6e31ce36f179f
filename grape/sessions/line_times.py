"""The time of a cell's lines."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType

from ..model import LineTimes
from ..outlining import on_code
from ..profiling import LineEvents, LineMemory


class CellLines:
    """Times the lines of one cell that is watched, by events, of which `memory` is told. Where this Python has none, no
    line is timed: before 3.12 nobody can look at a thread that runs. Another thread that walks its frames may crash the
    process (https://github.com/python/cpython/issues/111363), and code that the thread itself is made to run in between
    (`Py_AddPendingCall`) never returns if another call is pending then and a profiler is set.
    """

    def __init__(
        self, filename: str, memory: LineMemory | None = None, own_ns: Callable[[], int] | None = None
    ) -> None:
        from ..runtime import Replays

        self._events = LineEvents(filename, Replays.serve.__code__, memory=memory, own_ns=own_ns)
        self._events.cut = not self._events.start()
        if not self._events.cut:
            on_code.append(self._events.watch)

    @property
    def own_ns(self) -> int:
        """Nanoseconds that it took of the cell."""
        return self._events.own_ns

    def statement(self, code: CodeType | None) -> None:
        """The next one is about to run."""
        if code is not None:
            self._events.statement(code)

    def stop(self) -> None:
        """The cell is over."""
        self._events.stop()
        on_code[:] = [look for look in on_code if look != self._events.watch]

    def give_up(self) -> None:
        """The cell goes on, and its lines are not timed any more."""
        self._events.cut = True
        self.stop()

    def times(self, work_ms: float, run: int, before: LineTimes | None) -> LineTimes | None:
        """Of this run, whose own work took `work_ms`, or `before`, of an earlier one that replayed less: what replays
        as one has no lines.
        """
        now = self._events.times(work_ms, run)
        return now if before is None or (now and now.replayed_share <= before.replayed_share) else before
