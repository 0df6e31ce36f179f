"""Looks now and then at the line of the cell that runs. The cell's own code is not touched."""

from __future__ import annotations

import ctypes
import dis
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from types import CodeType, FrameType

from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

from ..model import LineTime, LineTimes
from ..model.times.lines import FEWEST_LOOKS

__all__ = ["LineWatch", "times_of"]

_LEAST_WAIT_S = 0.002
_OF_THE_CELL = 0.002
"""Of the time so far: the wait for the next look, so that a long cell is looked at for as long in all as a short one,
but for a logarithm.
"""
_LATE_NS = 300_000
"""A look that comes later than this waited for the end of an operator."""
_FORCED = 0.9
"""Of `sys.getswitchinterval()`: who waited so long got the interpreter's lock from a thread that had to give it."""
_MOST_DOUBTFUL = 0.1
_UNKNOWN: Mapping[int, int] = {}
_TIMES_A_LOOK = 100
"""The wait is that many times as long as the look before it, which walks as many frames as there are."""
_LOOKS = ("CALL", "RESUME", "JUMP_BACKWARD")
"""How instructions begin after which Python lets someone look."""
_TESTS = ("IF_TRUE", "IF_FALSE", "IF_TRUE_OR_POP", "IF_FALSE_OR_POP")
"""How jumps end that ask an object for its truth, and so a GPU, if that is a tensor."""
_RESUME = dis.opmap["RESUME"]
"""With which code begins, and goes on after it has yielded."""
_QUICK = (
    "LOAD_",
    "STORE_NAME",
    "STORE_FAST",
    "STORE_GLOBAL",
    "STORE_DEREF",
    "FOR_ITER",
    "POP_",
    "PUSH_",
    "JUMP_",
    "KW_",
)
"""How instructions begin that take no time to speak of."""
_QUICK_TOO = {"CACHE", "NOP", "SWAP", "COPY", "EXTENDED_ARG", "UNPACK_SEQUENCE", "BUILD_TUPLE", "GET_ITER"}


class LineWatch:
    """Of the main thread's frames, the innermost of code that was compiled as `filename`. `replay` is code in which,
    below such a frame, time goes by in a replay.

    Any thread asks for a look, and the main thread looks at itself as soon as Python lets it (`Py_AddPendingCall`):
    when the call ends that it is in, or a loop goes round. Frames of a thread that runs must not be read from another
    one: on Python 3.11 that can crash the process (https://github.com/python/cpython/issues/111363).

    Each look stands for the time since the one before it. A look that came late, because an operator had to end, may
    tell of a line after the one that took the time: where there are many of these, it is `doubtful` which of neighbours
    it was.
    """

    def __init__(self, filename: str, replay: CodeType, *, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._filename = filename
        self._replay = replay
        self._clock = clock
        self._began = self._before = clock()
        self._took = 0
        self._asked_ns: int | None = None
        self._unanswered = 0
        self._held = False
        self._statement: CodeType | None = None
        self._sure: dict[CodeType, frozenset[int]] = {}
        self.own_ns = 0
        self.looks = 0
        self.cut = threading.current_thread() is not threading.main_thread()
        """Set where looking ended before the cell did, or nobody can look: then its lines are not known."""
        self._line_ns: dict[tuple[int, bool], int] = {}
        self._doubtful_ns = 0
        _watches.add(self)

    @property
    def is_asked(self) -> bool:
        """Somebody waits for a look."""
        return self._asked_ns is not None

    @property
    def wait_s(self) -> float:
        """Seconds until the next look."""
        elapsed = self._before - self._began
        return max(_LEAST_WAIT_S, _OF_THE_CELL * elapsed / 1e9, _TIMES_A_LOOK * self._took / 1e9)

    def ask(self, late_ns: int = 0) -> None:
        """Have the main thread look, from whatever thread. Asked again before it could, it will count for as many.

        `late_ns`: for so long the asking thread waited for the interpreter's lock. If more than Python makes it wait,
        the main thread was in a call that held the lock, and goes on before it looks.
        """
        if self.cut:
            return
        if self._asked_ns is not None:
            self._unanswered += 1
            if self._unanswered & (self._unanswered - 1):
                return  # else an error may have come before the look: it is asked for anew
        else:
            forced_ns = sys.getswitchinterval() * 1e9
            self._held = (late_ns - forced_ns if late_ns >= _FORCED * forced_ns else late_ns) > _LATE_NS
            self._asked_ns = self._clock()
        python = ctypes.pythonapi
        if python.Py_AddPendingCall(python.PyObject_IsTrue, ctypes.c_void_p(id(_looks))) != 0:
            self._asked_ns = None  # more is pending than Python keeps; the next one asks again

    def statement(self, code: CodeType | None) -> None:
        """The next one of the top level is about to run; None: the cell is over. A look that comes too late for the
        last one, whose frame has gone, is still of its time.
        """
        self._statement = code

    def look(self, frame: FrameType) -> None:
        """Look at `frame`, the innermost that runs, and those that called it. None is held when this is over."""
        now = self._clock()
        late_ns = now - self._asked_ns if self._asked_ns is not None else 0
        found = self._place(frame)
        if found is not None:
            doubtful = (self._held or late_ns > _LATE_NS) and not self._is_sure(frame)
        elif self._statement is not None:
            lines = _lines(self._statement)
            found, doubtful = (min(lines, default=self._statement.co_firstlineno), False), len(lines) > 1
        if found is not None:
            self.looks += 1 + self._unanswered
            if doubtful:
                self._doubtful_ns += now - self._before
            self._line_ns[found] = self._line_ns.get(found, 0) + now - self._before
        self._before, self._unanswered, self._asked_ns, self._held = now, 0, None, False
        self._took = self._clock() - now
        self.own_ns += self._took

    def _place(self, frame: FrameType | None) -> tuple[int, bool] | None:
        """The line, and whether a replay runs below it."""
        replays = False
        while frame is not None:
            code = frame.f_code
            if code.co_filename == self._filename:
                return frame.f_lineno or code.co_firstlineno, replays
            replays |= code is self._replay
            frame = frame.f_back
        return None

    def _is_sure(self, frame: FrameType) -> bool:
        """What ended before `frame` could look was of the line of the cell at which it is now."""
        if frame.f_code.co_filename != self._filename:
            began, back = frame.f_code.co_code[frame.f_lasti] == _RESUME, frame.f_back
            return not began or back is None or back.f_code.co_filename != self._filename
        if self._held:
            return False  # what held the lock had ended before, maybe on another line
        if frame.f_code not in self._sure:
            self._sure[frame.f_code] = _of_one_line(frame.f_code)
        return frame.f_lasti in self._sure[frame.f_code]

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


class _Looks:
    """Who is asked whether it is true has the watches look that wait for it. What a signal's handler raises meanwhile
    is raised in the cell, for which it is meant; a callback of `ctypes` would lose it.
    """

    def __bool__(self) -> bool:
        """Run by Python in the main thread, between two instructions of the frame that called this one as it seems."""
        try:
            for watch in list(_watches):
                if watch.is_asked and not watch.cut:
                    watch.look(sys._getframe(1))
        except RecursionError:
            pass  # the stack has no room for one more frame
        return False


_watches: weakref.WeakSet[LineWatch] = weakref.WeakSet()
_looks = _Looks()
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_looks))  # for good: calls that are pending hold no reference


set_code_exec_strategy(_Looks.__bool__.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
"""Inside of what `torch.compile` runs, these frames and those that they call would be compiled, too."""


def _lines(code: CodeType) -> set[int]:
    """That `code` has instructions of."""
    return {line for _, _, line in code.co_lines() if line}


def _of_one_line(code: CodeType) -> frozenset[int]:
    """Instructions after which someone may look, and what has taken time since the one before is of the same line."""
    sure, lines = set(), set[int | None]()
    for one in dis.get_instructions(code):
        line = one.positions.lineno if one.positions else None
        if one.opname.startswith(_LOOKS):
            if lines <= {line}:
                sure.add(one.offset)
            lines.clear()
        elif one.opname == "PRECALL":  # on Python 3.11 it is the call where that is of a builtin and runs often
            if lines <= {line}:
                sure.add(one.offset)
        elif one.opname.endswith(_TESTS) or not (one.opname.startswith(_QUICK) or one.opname in _QUICK_TOO):
            lines.add(line)
    return frozenset(sure)
