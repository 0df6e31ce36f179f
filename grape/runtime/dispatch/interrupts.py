"""An interrupt ends the person's code, never Grape's in the middle of a step.

Python raises `KeyboardInterrupt` between any two bytecodes of the main thread. Between a context manager's `__enter__`
and the `with` that would leave it, that leaves a dispatch mode, a muted tracer or a half restored snapshot behind for
the rest of the process (bpo-29988). So while Grape stands between, SIGINT that finds Grape at work comes again a
millisecond later, until it finds the person's code, or until Grape has had `PATIENCE_S`. A loop whose body is replayed
has next to no moment that is the person's: where a call of Grape's ends, it asks for what waits (`held.come`).
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sysconfig
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch

from ...originals import monotonic, sleep
from ...tracing import is_grape_code
from .trampoline import prune_traceback

PATIENCE_S = 2.0
"""Seconds; a Grape that hangs can still be interrupted."""
AGAIN_S = 0.001
ON_ITS_WAY_S = 0.1
"""Seconds within which one that waits comes again, unless it was sent in the process that this one was forked from."""

_Handler = Callable[[int, FrameType | None], object]

_TORCH = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")
_STANDARD = tuple(os.path.join(sysconfig.get_path(kind), "") for kind in ("stdlib", "platstdlib"))
_LOST = weakref.finalize.__call__.__code__
"""Runs in the middle of anything, and what is raised there is printed and forgotten, as in any `__del__`."""

_DEFAULT = signal.default_int_handler
"""While Grape stands before it, its name in `signal` is that of what stands there: `asyncio.run` cancels its task at an
interrupt only where the handler is the default one, and puts that back by its name."""

_owners: weakref.WeakKeyDictionary[object, weakref.finalize[..., object]] = weakref.WeakKeyDictionary()


def at_work(frame: FrameType | None) -> bool:
    """True if Grape, or what it calls of torch and the standard library, runs in `frame`, nearer than other code; or a
    finalizer, for whomever.
    """
    while frame is not None:
        file = frame.f_code.co_filename
        if is_grape_code(file) or frame.f_code is _LOST or frame.f_code.co_name == "__del__":
            return True
        if not _is_neutral(file):
            return False
        frame = frame.f_back
    return False


def _is_neutral(file: str) -> bool:
    """Who calls code of these decides whose it is."""
    if file.startswith((_TORCH, "<frozen ", "<string>")):  # the last: what dataclasses generate
        return True
    return file.startswith(_STANDARD) and "site-packages" not in file


class _Held:
    """The interrupt that waits, if one does."""

    def __init__(self) -> None:
        self.since: float | None = None
        """Seconds, of the monotonic clock."""
        self._welcome = False
        self._passed_on: tuple[int, FrameType | None] | None = None

    def waits(self, number: int, frame: FrameType | None) -> bool:
        """True where the signal that found `frame` has to come again."""
        if self._passed_on == (number, frame):  # a handler calls the one that it replaced, which is one of ours too
            return False
        now = monotonic()
        self.since = since = self.since if self.since is not None else now
        if not self._welcome and at_work(frame) and now - since < PATIENCE_S:
            return True
        self.since = None
        return False

    def _is_here(self) -> bool:
        return self.since is not None

    def pass_on(self, handler: _Handler, number: int, frame: FrameType | None) -> None:
        before, self._passed_on = self._passed_on, (number, frame)
        try:
            handler(number, frame)
        finally:
            self._passed_on = before

    def come(self, caller: FrameType | None = None) -> None:
        """Grape is done, and `caller` goes on: an interrupt that waits comes here, and not at a time that chance finds.

        Where `caller` is Grape too, nothing happens.
        """
        if self.since is None or threading.current_thread() is not threading.main_thread() or at_work(caller):
            return
        self._welcome, until = True, monotonic() + ON_ITS_WAY_S
        try:
            while self._is_here() and monotonic() < until:
                sleep(AGAIN_S)
        finally:
            self.since, self._welcome = None, False


held = _Held()


class _Handling:
    """A handler of SIGINT before another one, the same for good: who keeps it and puts it back gets that one back."""

    def __init__(self, before: _Handler) -> None:
        self.before = before

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if held.waits(number, frame):
            # Not `threading`: this may have interrupted its code, with its lock held.
            _thread.start_new_thread(_send_again, ())
            return
        try:
            held.pass_on(self.before, number, frame)
        except BaseException as error:
            prune_traceback(error)
            raise


def _begin() -> None:
    """Stand before the handler that is there now. Where that is none that raises, nothing changes."""
    current = signal.getsignal(signal.SIGINT)
    if isinstance(current, _Handling):  # there already, or put back by who kept it
        _name(current)
        return
    if isinstance(current, int) or current is None:
        return
    if getattr(current, "__module__", None) == "asyncio.unix_events":  # `add_signal_handler`: each signal is counted
        return
    held.since = None
    handling = _Handling(current)
    signal.signal(signal.SIGINT, handling)
    _name(handling)


def _name(handling: _Handling) -> None:
    if handling.before is _DEFAULT:
        signal.default_int_handler = handling  # type: ignore[assignment]


def _end() -> None:
    current = signal.getsignal(signal.SIGINT)
    if isinstance(current, _Handling):
        signal.signal(signal.SIGINT, current.before)
    if isinstance(signal.default_int_handler, _Handling):
        signal.default_int_handler = _DEFAULT


def _send_again() -> None:
    sleep(AGAIN_S)
    if hasattr(signal, "pthread_kill"):
        with contextlib.suppress(ProcessLookupError):  # the process ends
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        _thread.interrupt_main(signal.SIGINT)


def hold_off(owner: object) -> None:
    """Have interrupts wait for the person's code until `owner` dies or lets them through. Only in the main thread."""
    if owner not in _owners:
        _owners[owner] = finalizer = weakref.finalize(owner, _end_without_owners)
        finalizer.atexit = False
    hold_off_again()


def hold_off_again() -> None:
    """A cell begins: Jupyter sets its own handler for each. Nothing happens where nobody asked for holding off."""
    if _owners and threading.current_thread() is threading.main_thread():
        _begin()


def let_through(owner: object) -> None:
    """`owner` stands between no more."""
    finalizer = _owners.pop(owner, None)
    if finalizer is not None:
        finalizer.detach()
    _end_without_owners()


@contextmanager
def handlers_held() -> Iterator[None]:
    """The person's handlers of signals run behind the block: one that calls torch in the middle of a capture would be
    captured, and one that raises would leave its modes behind. SIGINT has its own way, above.
    """
    waiting: list[int] = []

    def later(number: int, _: FrameType | None) -> None:
        if number not in waiting:
            waiting.append(number)

    handlers = _persons_handlers() if threading.current_thread() is threading.main_thread() else {}
    for number in handlers:
        signal.signal(number, later)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is later:
                signal.signal(number, handler)
        for number in waiting:
            signal.raise_signal(number)


def _persons_handlers() -> dict[int, _Handler]:
    """Those in Python, but for asyncio's, which counts each signal."""
    found = {number: signal.getsignal(number) for number in signal.valid_signals() if number != signal.SIGINT}
    return {
        number: handler
        for number, handler in found.items()
        if callable(handler) and getattr(handler, "__module__", None) != "asyncio.unix_events"
    }


def _end_without_owners() -> None:
    if not list(_owners) and threading.current_thread() is threading.main_thread():
        _end()
