"""True where Grape works just now, or the person's code.

Audit hooks, finalizers, callbacks of the garbage collector and of weak references, signal handlers and the person's
own `__eq__` or `__repr__` run in the middle of anything, Grape's work included. What they call then runs as written: to
look on there would raise the next event, without end, or change the modes of an operator that is being dispatched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch


class _Busy:
    """`now`: on `thread`, which meets Grape. Who sets it puts it back however the work ends. `profiles`: torch's
    profiler is on for Grape.
    """

    __slots__ = ("now", "profiles", "thread", "tool")

    def __init__(self) -> None:
        self.now = self.profiles = False
        self.tool: int | None = None
        """The number under which Grape itself is told of lines, by `sys.monitoring`."""
        self.thread = get_ident()


busy = _Busy()


class grape_works:
    """Grape works in the block, whose calls of the person's code are nobody's: they run as written."""

    __slots__ = ("_was",)

    def __enter__(self) -> None:
        self._was = busy.now
        if busy.thread == get_ident():
            busy.now = True

    def __exit__(self, *error: object) -> None:
        if busy.thread == get_ident():
            busy.now = self._was


class person_runs:
    """The person's code runs in the block, also where Grape calls it: what that calls may become a region."""

    __slots__ = ("_was",)

    def __enter__(self) -> None:
        self._was, busy.now = busy.now, False

    def __exit__(self, *error: object) -> None:
        busy.now = self._was


_monitoring = getattr(sys, "monitoring", None)
_get_tool = _monitoring.get_tool if _monitoring is not None else None
_gettrace, _getprofile, _setprofile = sys.gettrace, sys.getprofile, sys.setprofile  # the person's may be candidates
_TOOLS = range(6)
_is_profiled: Callable[[], bool] = torch._C._autograd._profiler_enabled


def unwatched(*event: object) -> None:
    """A trace function of Grape's, which is nobody's debugger."""


def is_watched() -> bool:
    """True where somebody follows the code from call to call: a debugger, a profiler, a tool that measures coverage;
    or its operators: torch's profiler.

    He sees frames of Grape's, and does not see what is left out.
    """
    trace, profile = _gettrace(), _getprofile()
    if trace is not None and trace is not unwatched:
        return True
    if profile is not None and not type(profile).__module__.startswith("grape."):  # what Grape watches a call with
        return True
    if _is_profiled() and not busy.profiles:  # it counts what Grape issues
        return True
    if _get_tool is None:
        return False
    tools = [*map(_get_tool, _TOOLS)]
    if busy.tool is not None:
        tools[busy.tool] = None
    return tools.count(None) < len(tools)


_CHEAP = sys.version_info < (3, 12)
"""From 3.12 on code is rewritten at each change of the profile function; there it stays, and lets Grape's code pass."""


class Unwatched:
    """While the tracer does its own work, Grape's profile function is not called for it. Such a function is one with an
    attribute `watches`, true until it is ended; those of others stay.
    """

    __slots__ = ("_watch",)

    def __enter__(self) -> None:
        self._watch: Any = None
        if _CHEAP:
            watch = _getprofile()
            if getattr(watch, "watches", False):
                self._watch = watch
                _setprofile(None)

    def __exit__(self, *_: object) -> None:
        if self._watch is not None and self._watch.watches:
            _setprofile(self._watch)
