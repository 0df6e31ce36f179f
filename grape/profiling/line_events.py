"""Times the lines of the cell by events of the interpreter (`sys.monitoring`, Python 3.12): nothing is missed."""

from __future__ import annotations

import functools
import operator
import sys
from collections import deque
from collections.abc import Callable, Mapping
from threading import get_ident
from types import CodeType
from typing import Any

from ..model import LineTime, LineTimes
from ..originals import perf_counter_ns
from ..tracing import busy
from .line_memory import LineMemory

_monitoring: Any = getattr(sys, "monitoring", None)
_TOOLS = (4, 3)
"""Numbers that no kind of tool has to itself."""
_WORTH_ASKING_NS = 20_000
_FEWEST = 100
"""Of any statement, so many events come."""
_BESIDE_NS, _SHARE = 20_000_000, 0.01
"""So much may go to events: nanoseconds, and beside them a share of the time. Then the rest of a statement counts to
its lines as what was seen of it does.
"""


class LineEvents:
    """Of code that was compiled as `filename` and runs on this thread: between two events the time is of the line that
    was reached last, innermost first. `replay` is code in which time goes by in a replay. `memory` is told, too.
    `own_ns` counts what else Grape takes of the cell, which is no line's.
    """

    def __init__(
        self,
        filename: str,
        replay: CodeType,
        *,
        memory: LineMemory | None = None,
        own_ns: Callable[[], int] | None = None,
        clock: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self._filename = filename
        self._memory = memory
        self._grapes = own_ns
        self._of_grape = own_ns() if own_ns is not None else 0
        self._entered: deque[tuple[tuple[int, bool], int]] = deque(maxlen=64)
        """What lines took until a call that they made began."""
        self._late_ns = 0
        """Nanoseconds from the end of a line until its event is noticed."""
        self._replay = replay
        self._clock = clock
        self._thread = get_ident()
        self._tool: int | None = None
        self._codes: list[CodeType] = []
        self._single: dict[int, int] = {}
        """Of code that stands at one line: the line, by the code's id."""
        self._around: list[tuple[CodeType, int]] = []
        self._line: int | None = None
        self._replays = False
        self._began = self._before = clock()
        self._paused_at: int | None = None
        self._of_statement: dict[tuple[int, bool], int] = {}
        self._line_ns: dict[tuple[int, bool], int] = {}
        self._in_statement = 0
        self.looks = 0
        self.own_ns = 0
        """What the events themselves took."""
        self.cut = False

    def start(self) -> bool:
        """False where this Python has no such events, or none of the numbers is free."""
        if _monitoring is None:
            return False
        self._tool = next((tool for tool in _TOOLS if _monitoring.get_tool(tool) is None), None)
        if self._tool is None:
            return False
        _monitoring.use_tool_id(self._tool, "grape")
        busy.tool = self._tool
        events = _monitoring.events
        for event, callback in self._callbacks().items():
            _monitoring.register_callback(self._tool, event, callback)
        self._late_ns = self._lateness()
        _monitoring.set_local_events(self._tool, self._replay, events.PY_START | events.PY_RETURN)
        return True

    def _callbacks(self) -> dict[int, Callable[..., None]]:
        events = _monitoring.events
        return {
            events.LINE: self._on_line,
            events.PY_START: self._on_start,
            events.PY_RESUME: self._on_start,
            events.PY_RETURN: self._on_end,
            events.PY_YIELD: self._on_end,
        }

    def _lateness(self) -> int:
        """Of lines that do nothing: what is counted to each is how late its end is noticed."""
        code, found = _nothing.__code__, []
        memory, self._memory = self._memory, None
        self._set(code)
        for _ in range(8):
            _nothing()
            found.append(sum(self._of_statement.values()) // max(1, len(self._of_statement)))
            self._end_statement()
        _monitoring.set_local_events(self._tool, code, 0)
        self.looks, self.own_ns, self._memory = 0, 0, memory
        self._line_ns.clear()
        return min(found)

    def stop(self) -> None:
        """No event comes any more, and the number is free."""
        tool, self._tool = self._tool, None
        if tool is None:
            return
        self._end_statement()
        for code in (*self._codes, self._replay):
            _monitoring.set_local_events(tool, code, 0)
        for event in self._callbacks():
            _monitoring.register_callback(tool, event, None)
        _monitoring.free_tool_id(tool)
        busy.tool = None
        self._codes.clear()
        self._single.clear()
        self._around.clear()

    def statement(self, code: CodeType) -> None:
        """The next statement of the cell's top level is about to run."""
        if self._tool is None:
            return
        self._end_statement()
        if self._paused_at is not None:
            self._paused_at = None
            for known in self._codes:
                self._set(known)
        self.watch(code)

    def watch(self, code: CodeType) -> None:
        """Time the lines of `code`, and of what is defined in it, if it is of the cell."""
        if self._tool is None or code.co_filename != self._filename:
            return
        self._codes.append(code)
        lines = {line for _, _, line in code.co_lines() if line is not None}
        if len(lines) == 1:
            self._single[id(code)] = lines.pop()
        if self._paused_at is None:
            self._set(code)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self.watch(constant)

    def times(self, work_ms: float, run: int = 1) -> LineTimes | None:
        grown = self._memory.grown if self._memory is not None else {}
        return None if self.cut else _times_of(self._line_ns, work_ms, self.looks, run, grown)

    def _set(self, code: CodeType) -> None:
        _monitoring.set_local_events(self._tool, code, functools.reduce(operator.or_, self._callbacks()))

    def _passed(self, *, begins: bool = False) -> int:
        """The time since the last event is of the line that was reached last. `begins`: a call that it makes does.

        The time of this event, for `_goes_on`.
        """
        now = self._clock() - self._late_ns
        if self._line is not None and self._paused_at is None:
            place = self._line, self._replays
            took = self._without_own(now - self._before)
            self._of_statement[place] = self._of_statement.get(place, 0) + took
            if begins and took >= _WORTH_ASKING_NS:
                self._entered.append((place, took))
        if self._memory is not None:
            self._memory.passed(None if self._replays else self._line, now)
        self.looks += 1
        self._in_statement += 1
        events_ns = self.own_ns - (self._memory.own_ns if self._memory is not None else 0)
        too_many = events_ns > _BESIDE_NS + _SHARE * (now - self._began) and self._in_statement > _FEWEST
        if too_many and self._paused_at is None:
            self._paused_at = now
            for code in self._codes:
                _monitoring.set_local_events(self._tool, code, 0)
        return now

    def _goes_on(self, noticed: int) -> None:
        """The event that was `noticed` is dealt with: from now on it is the cell's time again."""
        self._before = self._clock()
        self.own_ns += self._before - noticed

    def _without_own(self, passed_ns: int) -> int:
        """Without what Grape took of it; to ask for that takes a while itself, so short times are taken as they are.

        What it takes around a call is booked after the call: the line that made it took that, before the call began.
        """
        if self._grapes is None or passed_ns < _WORTH_ASKING_NS:
            return max(0, passed_ns)
        own = self._grapes()
        if own <= self._of_grape:
            return passed_ns
        left, self._of_grape = own - self._of_grape - passed_ns, own
        rest = max(0, -left)
        while left > 0 and self._entered:
            place, took = self._entered.pop()
            self._of_statement[place] = max(0, self._of_statement.get(place, 0) - min(left, took))
            left -= took
        self._entered.clear()
        return rest

    def _end_statement(self) -> None:
        """What was seen of the statement stands for all of it."""
        now, factor = self._clock(), 1.0
        if self._paused_at is not None:
            seen = sum(self._of_statement.values())
            factor = 1 + self._without_own(now - self._paused_at) / seen if seen > 0 else 1.0
        for place, ns in self._of_statement.items():
            self._line_ns[place] = self._line_ns.get(place, 0) + round(ns * factor)
        self._of_statement.clear()
        self._entered.clear()
        self._around.clear()
        self._line, self._replays, self._before = None, False, now
        self._in_statement = 0

    def _on_line(self, code: CodeType, line: int) -> None:
        if get_ident() != self._thread or self._tool is None:
            return
        noticed = self._passed()
        while self._around and self._around[-1][0] is not code:  # what raised in between said nothing
            self._around.pop()
        self._line, self._replays = line, False
        self._goes_on(noticed)

    def _on_start(self, code: CodeType, offset: int) -> None:
        if get_ident() != self._thread or self._tool is None:
            return
        noticed = self._passed(begins=True)
        if code is self._replay:
            self._replays = True
        elif self._line is not None and self._single.get(id(code)) == self._line:
            self._leave_out(code)
        else:
            self._around.append((code, self._line or code.co_firstlineno))
        self._goes_on(noticed)

    def _on_end(self, code: CodeType, offset: int, value: object) -> None:
        if get_ident() != self._thread or self._tool is None:
            return
        noticed = self._passed()
        if code is self._replay:
            self._replays = False
        elif self._around and self._around[-1][0] is code:
            self._line = self._around.pop()[1] if len(self._around) > 1 else None
            self._around = self._around if self._line is not None else []
        self._goes_on(noticed)

    def _leave_out(self, code: CodeType) -> None:
        """A lambda, or what stands between parentheses: its time is of the line that it stands at, which runs it.

        Events of each item would take longer than the items.
        """
        _monitoring.set_local_events(self._tool, code, 0)
        self._codes = [known for known in self._codes if known is not code]


def _nothing() -> None:
    idle = 0
    idle = 0
    idle = 0
    idle = 0
    idle = 0
    idle = 0
    idle = 0
    idle = 0
    del idle


def _times_of(
    line_ns: Mapping[tuple[int, bool], int], work_ms: float, looks: int, run: int, grown: Mapping[int, int]
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
