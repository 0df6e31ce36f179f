"""Failures of Grape's own. They go to the logger ``grape`` with their traceback, and into one line of the report; the
person's code goes on as written.
"""

from __future__ import annotations

import logging
import signal
import sys
import traceback
import types
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

HOW = "`import logging; logging.basicConfig()` before it runs again shows the traceback"

_logger = logging.getLogger("grape")
_logger.addHandler(logging.NullHandler())
_told: deque[str] = deque(maxlen=100)


def log_failure(doing: str) -> None:
    """Log the exception that is being handled, and keep it for `failure_notes`. `doing` follows a "while"."""
    error = sys.exception()
    if error is None:
        return
    _told.append(f"{doing} ({said(error)})")
    if not _logger.isEnabledFor(logging.ERROR):
        return
    with _nobody_watching():
        record = _logger.makeRecord(_logger.name, logging.ERROR, __file__, 0, "Grape failed while %s", (doing,), None)
        # As text: a formatter would call `print`, which counts as an effect of a watched call, and who keeps the record
        # would keep what the frames hold.
        record.exc_text = "".join(traceback.format_exception(error)).rstrip()
        _handle(record)


@contextmanager
def _nobody_watching() -> Iterator[None]:
    """Where Grape watches the calls of this thread, those of the block are no effects of the person's code."""
    watch = sys.getprofile()
    if type(watch).__module__.partition(".")[0] != __package__:
        yield
        return
    sys.setprofile(None)
    try:
        yield
    finally:
        sys.setprofile(watch)


def _handle(record: logging.LogRecord) -> None:
    """As `logging.Logger.callHandlers`, which counts as an effect of a call that is watched."""
    logger: logging.Logger | None = _logger
    while logger is not None:
        for handler in logger.handlers:
            if record.levelno >= handler.level:
                handler.handle(record)
        logger = logger.parent if logger.propagate else None


def said(error: BaseException) -> str:
    """The kind of an exception, and the first line of what it says."""
    try:
        text = str(error)
    except Exception:  # of a class of the person's
        text = ""
    return f"{type(error).__name__}: {text}".splitlines()[0].rstrip(": ")


def is_signalled(error: BaseException | None) -> bool:
    """True where a handler of a signal raised it, as timeouts do: it found Grape at work, and is no failure of Grape's.
    It ends the person's code.
    """
    handlers = {_place_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    trace = error.__traceback__ if error is not None and handlers else None
    while trace is not None:
        if _place(trace.tb_frame.f_code) in handlers:
            return True
        trace = trace.tb_next
    return False


def _place_of(handler: object) -> tuple[str, int, str] | None:
    """Of a function, a method, a partial or an object that is called; None of what is not in Python."""
    while isinstance(handler, partial):
        handler = handler.func
    call = handler if hasattr(handler, "__code__") else getattr(type(handler), "__call__", None)  # noqa: B004
    code = getattr(call, "__code__", None)
    return _place(code) if isinstance(code, types.CodeType) else None


def _place(code: types.CodeType) -> tuple[str, int, str]:
    """The same of a function that is taken over as of its own code."""
    return code.co_filename, code.co_firstlineno, code.co_qualname


def first_line(error: BaseException) -> str:
    """Of what it says."""
    return next(iter(str(error).splitlines()), "")


class Quietly:
    """What fails in the block ends the block alone, but for what a signal brought."""

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        return isinstance(error, Exception) and not is_signalled(error)


class _Surviving:
    """No generator: from Python 3.12 on its frame would be part of a circle with the exception, and with what that
    holds of the person's.
    """

    __slots__ = ("_doing",)

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if not isinstance(error, Exception):
            return False
        log_failure(self._doing)
        return True


def surviving(doing: str) -> AbstractContextManager[None, bool]:
    """A failure in the block is logged, and ends the block alone."""
    return _Surviving(doing)


def failure_notes() -> tuple[str, ...]:
    """One line about what failed since it was asked last, if anything did; for a report."""
    told = list(_told)
    _told.clear()
    if not told:
        return ()
    times = f" {len(told)} times, first" if len(told) > 1 else ""
    return (f"Grape failed{times} while {told[0]}, and went on without that; {HOW}",)


def forget_failures() -> None:
    """A cell begins: what failed before it is not told of it."""
    _told.clear()
