"""Times the lines of the cell by events of the interpreter (`sys.monitoring`, Python 3.12): nothing is missed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from threading import get_ident
from types import CodeType
from typing import Any

from ..model import LineTimes
from ..tracing import busy
from .lines import times_of

__all__ = ["LineEvents"]

_monitoring: Any = getattr(sys, "monitoring", None)
_TOOLS = (4, 3)
"""Numbers that no kind of tool has to itself."""
_EVENT_NS = 400
"""About what an event takes."""
_FEWEST = 100
"""Of any statement, so many events come."""
_BESIDE_NS, _SHARE = 20_000_000, 0.01
"""So much may go to events: nanoseconds, and beside them a share of the time. Then the rest of a statement counts to
its lines as what was seen of it does.
"""


class LineEvents:
    """Of code that was compiled as `filename` and runs on this thread: between two events the time is of the line that
    was reached last, innermost first. `replay` is code in which time goes by in a replay.
    """

    doubtful = False

    def __init__(self, filename: str, replay: CodeType, *, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._filename = filename
        self._replay = replay
        self._clock = clock
        self._thread = get_ident()
        self._tool: int | None = None
        self._codes: list[CodeType] = []
        self._around: list[tuple[CodeType, int]] = []
        self._line: int | None = None
        self._replays = False
        self._began = self._before = self._since = clock()
        self._paused_at: int | None = None
        self._of_statement: dict[tuple[int, bool], int] = {}
        self._line_ns: dict[tuple[int, bool], int] = {}
        self._in_statement = 0
        self.looks = 0
        self.cut = False

    @property
    def own_ns(self) -> int:
        return self.looks * _EVENT_NS

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
        for event, callback in (
            (events.LINE, self._on_line),
            (events.PY_START, self._on_start),
            (events.PY_RESUME, self._on_start),
            (events.PY_RETURN, self._on_end),
            (events.PY_YIELD, self._on_end),
        ):
            _monitoring.register_callback(self._tool, event, callback)
        _monitoring.set_local_events(self._tool, self._replay, events.PY_START | events.PY_RETURN)
        return True

    def stop(self) -> None:
        """No event comes any more, and the number is free."""
        tool, self._tool = self._tool, None
        if tool is None:
            return
        self._end_statement()
        for code in (*self._codes, self._replay):
            _monitoring.set_local_events(tool, code, 0)
        for event in (_monitoring.events.LINE, *_starts(), *_ends()):
            _monitoring.register_callback(tool, event, None)
        _monitoring.free_tool_id(tool)
        busy.tool = None
        self._codes.clear()
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
        if self._paused_at is None:
            self._set(code)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self.watch(constant)

    def times(self, work_ms: float, run: int = 1) -> LineTimes | None:
        return None if self.cut else times_of(self._line_ns, work_ms, self.looks, run)

    def _set(self, code: CodeType) -> None:
        events = _monitoring.events
        wanted = events.LINE | events.PY_START | events.PY_RESUME | events.PY_RETURN | events.PY_YIELD
        _monitoring.set_local_events(self._tool, code, wanted)

    def _passed(self) -> None:
        """The time since the last event is of the line that was reached last."""
        now = self._clock()
        if self._line is not None and self._paused_at is None:
            place = self._line, self._replays
            self._of_statement[place] = self._of_statement.get(place, 0) + now - self._before
        self._before = now
        self.looks += 1
        self._in_statement += 1
        too_many = self.own_ns > _BESIDE_NS + _SHARE * (now - self._began) and self._in_statement > _FEWEST
        if too_many and self._paused_at is None:
            self._paused_at = now
            for code in self._codes:
                _monitoring.set_local_events(self._tool, code, 0)

    def _end_statement(self) -> None:
        """What was seen of the statement stands for all of it."""
        now = self._clock()
        if self._paused_at is not None:
            seen = self._paused_at - self._since
            factor = (now - self._since) / seen if seen > 0 else 1.0
        else:
            factor = 1.0
        for place, ns in self._of_statement.items():
            self._line_ns[place] = self._line_ns.get(place, 0) + round(ns * factor)
        self._of_statement.clear()
        self._around.clear()
        self._line, self._replays, self._before, self._since = None, False, now, now
        self._in_statement = 0

    def _on_line(self, code: CodeType, line: int) -> None:
        if get_ident() != self._thread or self._tool is None:
            return
        self._passed()
        while self._around and self._around[-1][0] is not code:  # what raised in between said nothing
            self._around.pop()
        self._line, self._replays = line, False

    def _on_start(self, code: CodeType, offset: int) -> None:
        if get_ident() != self._thread or self._tool is None:
            return
        self._passed()
        if code is self._replay:
            self._replays = True
        else:
            self._around.append((code, self._line or code.co_firstlineno))

    def _on_end(self, code: CodeType, offset: int, value: object) -> None:
        if get_ident() != self._thread or self._tool is None:
            return
        self._passed()
        if code is self._replay:
            self._replays = False
        elif self._around and self._around[-1][0] is code:
            self._line = self._around.pop()[1] if len(self._around) > 1 else None
            self._around = self._around if self._line is not None else []


def _starts() -> tuple[int, int]:
    return _monitoring.events.PY_START, _monitoring.events.PY_RESUME


def _ends() -> tuple[int, int]:
    return _monitoring.events.PY_RETURN, _monitoring.events.PY_YIELD
