"""An interrupt ends the person's code, never Grape's in the middle of a step.

Python raises `KeyboardInterrupt` between any two bytecodes of the main thread. Between a context manager's `__enter__`
and the `with` that would leave it, that leaves a dispatch mode, a muted tracer or a half restored snapshot behind for
the rest of the process (bpo-29988). So while Grape stands between, SIGINT that finds Grape at work comes again a
millisecond later, until it finds the person's code, or until Grape has had `PATIENCE_S`.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sysconfig
import threading
import time
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

__all__ = ["PATIENCE_S", "at_work", "hold_off", "hold_off_again", "let_through"]

PATIENCE_S = 2.0
"""Seconds; a Grape that hangs can still be interrupted."""
AGAIN_S = 0.001

_Handler = Callable[[int, FrameType | None], Any]

_OURS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_TORCH = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")
_STANDARD = tuple(os.path.join(sysconfig.get_path(kind), "") for kind in ("stdlib", "platstdlib"))
_LOST = weakref.finalize.__call__.__code__
"""Runs in the middle of anything, and what is raised there is printed and forgotten."""

_owners: weakref.WeakSet[Any] = weakref.WeakSet()


def at_work(frame: FrameType | None) -> bool:
    """Whether Grape, or what it calls of torch and the standard library, runs in `frame`, nearer than other code; or a
    finalizer, for whomever.
    """
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_OURS) or frame.f_code is _LOST:
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


class _Handling:
    """The handler of SIGINT, and the one that was there before it."""

    def __init__(self) -> None:
        self._before: _Handler | None = None
        self._since: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        self._since = since = self._since if self._since is not None else now
        if at_work(frame) and now - since < PATIENCE_S:
            # Not `threading`: this may have interrupted its code, with its lock held.
            _thread.start_new_thread(_send_again, ())
            return
        self._since = None
        if self._before is not None:
            self._before(number, frame)

    def begin(self) -> None:
        """Stand before the handler that is there now. Where that is none of Python's, nothing changes."""
        current = signal.getsignal(signal.SIGINT)
        if current is self or current is None or isinstance(current, int):
            return
        self._before, self._since = current, None
        signal.signal(signal.SIGINT, self)

    def end(self) -> None:
        before = self._before
        if before is not None and signal.getsignal(signal.SIGINT) is self:
            signal.signal(signal.SIGINT, before)


_handling = _Handling()


def _send_again() -> None:
    time.sleep(AGAIN_S)
    if hasattr(signal, "pthread_kill"):
        with contextlib.suppress(ProcessLookupError):  # the process ends
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        _thread.interrupt_main(signal.SIGINT)


def hold_off(owner: object) -> None:
    """Have interrupts wait for the person's code until `owner` dies or lets them through. Only in the main thread."""
    _owners.add(owner)
    hold_off_again()


def hold_off_again() -> None:
    """A cell begins: Jupyter sets its own handler for each. Nothing happens where nobody asked for holding off."""
    if _owners and threading.current_thread() is threading.main_thread():
        _handling.begin()


def let_through(owner: object) -> None:
    """`owner` stands between no more."""
    _owners.discard(owner)
    if not _owners and threading.current_thread() is threading.main_thread():
        _handling.end()
