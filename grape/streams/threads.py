"""Threads of Python: those that start while a stream is open carry its key, so that their operators are seen; and those
that ran before carry it while they do what executors and loops of asyncio are given to do."""

from __future__ import annotations

import asyncio
import multiprocessing.pool
import sys
import threading
from collections.abc import Callable
from concurrent.futures import thread as executors
from contextlib import ExitStack
from traceback import walk_stack
from types import FrameType

from ..tracing.positions import is_own_code

_running: set[threading.Thread] = set()

_RUN_NO_OPERATOR = {"tqdm._monitor"}
"""Modules of threads that run on for good and never call torch."""
_SERVES = executors._worker.__code__
_TASKS: tuple[tuple[type, str], ...] = ((executors._WorkItem, "run"), (asyncio.Handle, "_run"))
"""What runs one task in a thread that is there already."""


def others() -> list[str]:
    """Names of threads beside this one that carry no key and may run an operator, which would read a result before it
    is issued: all but daemons in which only libraries run, as a notebook's kernel has them, and executors that wait.
    """
    seen, frames = {threading.current_thread(), *_running}, sys._current_frames()
    frames.pop(threading.get_ident(), None)  # this frame would hold itself, and whoever called
    unseen = (thread for thread in threading.enumerate() if thread not in seen)
    return [thread.name for thread in unseen if _may_run_operators(thread, frames.get(thread.ident or 0))]


def _may_run_operators(thread: threading.Thread, frame: FrameType | None) -> bool:
    if frame is not None and frame.f_code is _SERVES:  # an executor's, which waits; threads of those are no daemons
        return False
    if not thread.daemon or isinstance(thread, threading.Timer):
        return True
    files = {one.f_code.co_filename for one, _ in walk_stack(frame)} if frame is not None else set()
    return multiprocessing.pool.__file__ in files or any(map(is_own_code, files))


def running() -> bool:
    """True while a thread runs that carries the key."""
    _running.intersection_update(threading.enumerate())
    return bool(_running)


def watch(join: Callable[[], None], leave: Callable[[], None]) -> Callable[[], None]:
    """Have each thread call `join` when it begins, or what it is given to do, and `leave` when that ends; the result
    undoes it. In the thread that watches all is seen anyway.
    """
    owner, undo = threading.get_ident(), ExitStack()

    def carrying(kind: type, name: str) -> None:
        plain: Callable[..., None] = getattr(kind, name)

        def carries(self: object, *args: object) -> None:
            thread = self if isinstance(self, threading.Thread) else threading.current_thread()
            if threading.get_ident() == owner or thread in _running or type(thread).__module__ in _RUN_NO_OPERATOR:
                return plain(self, *args)
            _running.add(thread)
            join()
            try:
                plain(self, *args)
            finally:
                leave()
                _running.discard(thread)

        setattr(kind, name, carries)
        undo.callback(setattr, kind, name, plain)

    carrying(threading.Thread, "_bootstrap_inner")  # what runs around `run`, which subclasses replace
    for kind, name in _TASKS:
        carrying(kind, name)
    return undo.close
