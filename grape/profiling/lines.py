"""Looks from another thread at the line of the cell that runs. The cell's own code is not touched."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from types import CodeType

from ..model import LineTime, LineTimes
from ..model.times.lines import FEWEST_LOOKS

__all__ = ["LineWatch", "times_of"]

_LEAST_WAIT_S = 0.002
_OF_THE_CELL = 0.002
"""Of the time so far: the wait for the next look, so that a long cell is looked at for as long in all as a short one,
but for a logarithm.
"""
_LATE_NS = 300_000
"""A look that comes later than this waited for the interpreter's lock."""
_FORCED = 0.9
"""Of `sys.getswitchinterval()`: one that waited so long came in the middle of Python, at the line that runs."""
_MOST_DOUBTFUL = 0.1
_UNKNOWN: Mapping[int, int] = {}
_TIMES_A_LOOK = 100
"""The wait is that many times as long as the look before it, which walks as many frames as there are."""


class LineWatch:
    """Of the frames of `thread`, the innermost of code that was compiled as `filename`. `replay` is code in which,
    below such a frame, time goes by in a replay.

    Each look stands for the time since the one before it. A thread looks when Python lets it: at once where the cell's
    thread waits or is in an operator; else when that comes to its next operator, or has run Python for as long as
    `sys.getswitchinterval()` says. A look that came late for an operator may tell of the line after the one that took
    the time: where there are many of these, it is `doubtful` which of neighbours it was.
    """

    def __init__(
        self, thread: int, filename: str, replay: CodeType, *, clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._thread = thread
        self._filename = filename
        self._replay = replay
        self._clock = clock
        self._began = self._before = clock()
        self._took = 0
        self.own_ns = 0
        self.looks = 0
        self.cut = False
        """Set where looking ended before the cell did: then its lines are not known."""
        self._line_ns: dict[tuple[int, bool], int] = {}
        self._doubtful_ns = 0

    @property
    def wait_s(self) -> float:
        """Seconds until the next look."""
        elapsed = self._before - self._began
        return max(_LEAST_WAIT_S, _OF_THE_CELL * elapsed / 1e9, _TIMES_A_LOOK * self._took / 1e9)

    def look(self, late_ns: int = 0) -> None:
        """Hold no frame when this is over, nor longer than the interpreter's lock. It comes `late_ns` too late."""
        now = self._clock()
        found = _place(self._thread, self._filename, self._replay)
        if found is not None:
            self.looks += 1
            if _LATE_NS < late_ns < _FORCED * sys.getswitchinterval() * 1e9:
                self._doubtful_ns += now - self._before
            self._line_ns[found] = self._line_ns.get(found, 0) + now - self._before
        self._before = now
        self._took = self._clock() - now
        self.own_ns += self._took

    @property
    def doubtful(self) -> bool:
        """True where so much of the time is of looks that came late for an operator that lines are not told apart."""
        return self._doubtful_ns > _MOST_DOUBTFUL * sum(self._line_ns.values())

    def times(self, work_ms: float, run: int = 1) -> LineTimes | None:
        """The lines in the order of the source, which took `work_ms` together; None where too little was seen."""
        if self.cut or self.looks < FEWEST_LOOKS:
            return None
        return times_of(self._line_ns, work_ms, self.looks, run)


def times_of(
    line_ns: Mapping[tuple[int, bool], int], work_ms: float, looks: int, run: int, grown: Mapping[int, int] = _UNKNOWN
) -> LineTimes | None:
    """Of nanoseconds by line, those in replays apart, and of bytes by line, where they are known; None without any."""
    seen_ns = sum(line_ns.values())
    if not seen_ns:
        return None
    ms = work_ms / seen_ns
    known = {line: (line_ns.get((line, False), 0), line_ns.get((line, True), 0)) for line, _ in line_ns}
    lines = [
        LineTime(line=line, ms=(ran + replayed) * ms, replayed_ms=replayed * ms, grown_bytes=grown.get(line))
        for line, (ran, replayed) in sorted(known.items())
    ]
    return LineTimes(lines=tuple(lines), looks=looks, run=run)


def _place(thread: int, filename: str, replay: CodeType) -> tuple[int, bool] | None:
    """The line, and whether a replay runs below it."""
    frame = sys._current_frames().get(thread)
    replays = False
    while frame is not None:
        code = frame.f_code
        if code.co_filename == filename:
            return frame.f_lineno or code.co_firstlineno, replays
        replays |= code is replay
        frame = frame.f_back
    return None
