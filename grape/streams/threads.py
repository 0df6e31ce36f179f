"""Threads of Python: those that start while a stream is open carry its key, so that their operators are seen."""

from __future__ import annotations

import threading
from collections.abc import Callable

_running: set[threading.Thread] = set()

_RUN_NO_OPERATOR = {"tqdm._monitor"}
"""Modules of threads that run on for good and never call torch."""


def others() -> list[str]:
    """Names of threads beside this one that are no daemons and carry no key: they may read a result before it is
    issued.
    """
    seen = {threading.current_thread(), *_running}
    return [thread.name for thread in threading.enumerate() if thread not in seen and not thread.daemon]


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
