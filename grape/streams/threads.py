"""Threads of Python: those that start while a stream is open carry its key, so that their operators are seen."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType

from ..tracing.positions import is_own_code

_running: set[threading.Thread] = set()

_RUN_NO_OPERATOR = {"tqdm._monitor"}
"""Modules of threads that run on for good and never call torch."""


def others() -> list[str]:
    """Names of threads beside this one that carry no key and may run an operator, which would read a result before it
    is issued: all but daemons in which only libraries run, as a notebook's kernel has them.
    """
    seen, frames = {threading.current_thread(), *_running}, sys._current_frames()
    frames.pop(threading.get_ident(), None)  # this frame would hold itself, and whoever called
    unseen = (thread for thread in threading.enumerate() if thread not in seen)
    return [thread.name for thread in unseen if not thread.daemon or _runs_own_code(frames.get(thread.ident or 0))]


def _runs_own_code(frame: FrameType | None) -> bool:
    while frame is not None and not is_own_code(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None


def running() -> bool:
    """True while a thread runs that carries the key."""
    _running.intersection_update(threading.enumerate())
    return bool(_running)


def watch(join: Callable[[], None], leave: Callable[[], None]) -> Callable[[], None]:
    """Have each thread call `join` when it begins and `leave` when it ends; the result undoes it."""
    name = "_bootstrap_inner"  # what runs around `run`, which subclasses replace
    plain: Callable[[threading.Thread], None] = getattr(threading.Thread, name)

    def bootstrap(self: threading.Thread) -> None:
        if type(self).__module__ in _RUN_NO_OPERATOR:
            return plain(self)
        _running.add(self)
        join()
        try:
            plain(self)
        finally:
            leave()
            _running.discard(self)

    setattr(threading.Thread, name, bootstrap)
    return lambda: setattr(threading.Thread, name, plain)
