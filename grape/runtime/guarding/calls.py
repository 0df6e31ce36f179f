"""Sees, for one traced call, the functions of libraries that it calls and that are not known to be pure.

A profile function names every Python function that is entered and every C function that is called. It makes the traced
call slower, up to twice; what runs after it is as fast as before (measured with CPython 3.11, 3.12 and 3.13, which
takes its instructions back when code is entered next).
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

from ...tracing import is_grape_code, is_own_code
from ..state.own_code import is_followed
from .purity import pure_builtin, pure_library

EVENT_NS = 200
"""Nanoseconds that it takes to see one call begin or end."""
_LOADS = "_find_and_load"
_PASSED = frozenset({_LOADS, "_handle_fromlist", "finalize.__call__"})
"""Code that runs once: what a module does when it is loaded, no later call does. Finalizers, as `__del__` of libraries,
run when the garbage collector comes, which may be in any call."""
_NO_CALLS = ("<module>", "__del__")
"""Code of the person's that runs in a call and is not called by it: the cell around its loop, and what died then."""
_ENOUGH = 32
"""So many calls are told of; where there are more, the call is slow enough."""
_GRAPE, _OWN, _LIBRARY = range(3)
_places: dict[str, int] = {}
_pure_codes: set[CodeType] = set()
_pure_functions: set[object] = set()
"""C functions, and of methods (class, name): what was found to be pure stays so."""
_BY_OWN_CODE = frozenset({"setattr", "delattr", "exec", "eval", "compile"})
"""Builtin functions by which code changes, or does, what it does not mention. Libraries make classes with them."""


class CallWatch:
    """`note` is called with the name of a function, and whether the person's own code calls it."""

    def __init__(self, note: Callable[[str, bool], None]) -> None:
        self._note = note
        self._passed: FrameType | None = None
        """The frame below which nothing is looked at: an import, or what Grape asks of a library."""
        self._left = _ENOUGH
        self.watches = False
        """True where it is the profile function of the thread; the tracer takes it out for its own work."""
        self.beside_another = False
        """True where the person watches calls: a replay would show none of them."""
        self.ends_at_imports = False
        """True where it stops where a module is loaded, and says so in `loaded`: under it that takes twice as long."""
        self.loaded = False
        self._collector: int | None = None
        """The thread that collects garbage: what finalizers and abandoned generators call there, no later call does."""
        self.events = 0
        self.limit = float("inf")
        """After so many events `on_limit` is asked, at each call, to stop the watch, until it does."""
        self.on_limit: Callable[[], bool] = lambda: False
        self.cut = False
        self.own: set[CodeType] = set()
        """Code of the person's that ran, but for what was made of text, as constructors of dataclasses are."""

    def start(self) -> None:
        self.beside_another = sys.getprofile() is not None
        gc.callbacks.insert(0, self._collecting)
        if not self.beside_another:
            self.watches = True
            sys.setprofile(self)

    def stop(self) -> None:
        self._passed = None
        self.watches, self._collector = False, None
        with contextlib.suppress(ValueError):  # it may have been stopped before
            gc.callbacks.remove(self._collecting)
        if sys.getprofile() is self:
            sys.setprofile(None)

    def _collecting(self, phase: str, _: object) -> None:
        self._collector = get_ident() if phase == "start" else None

    def collects(self) -> bool:
        """True where this thread collects garbage."""
        return self._collector is not None and self._collector == get_ident()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        self.events += 1
        if self.collects():
            return
        if self._passed is not None:
            if event == "return" and frame is self._passed:
                self._passed = None
        elif event == "c_call":
            self._called(frame, argument)
        elif event == "call" and frame.f_code not in _pure_codes:
            self._entered(frame)

    def _called(self, frame: FrameType, function: Any) -> None:
        place = _place(frame.f_code)
        if place == _GRAPE:
            return
        if self.events > self.limit and self.on_limit():
            self.cut = True
            return
        key: Any = function
        if function.__module__ is None:
            owner = function.__self__
            key = owner if isinstance(owner, type) else type(owner), function.__name__
        if key in _pure_functions:
            return
        name = pure_builtin(function)
        if name is None and place == _OWN and function.__name__ in _BY_OWN_CODE:
            name = function.__name__ if function.__module__ == "builtins" else None
        elif name is None and function.__name__ not in _BY_OWN_CODE:
            _pure_functions.add(key)
        if name is not None:
            self._tell(name, place == _OWN)

    def _tell(self, name: str, direct: bool) -> None:
        self._left -= 1
        if not self._left:
            self.stop()
        self._note(name, direct)

    def _entered(self, frame: FrameType) -> None:
        code, caller = frame.f_code, frame.f_back
        here = _place(code)
        if here != _LIBRARY:
            if here == _GRAPE:
                _pure_codes.add(code)
            elif is_own_code(code.co_filename) and code.co_name not in _NO_CALLS:
                self.own.add(code)
            return
        if code.co_qualname in _PASSED or code.co_name == "__del__" or _is_of_collector(code):
            self._passed = frame
            if self.ends_at_imports and code.co_qualname == _LOADS:
                self.loaded = True
                self.stop()
            return
        place = _place(caller.f_code) if caller is not None else _GRAPE
        if place == _GRAPE:
            if not str(frame.f_globals.get("__name__")).startswith("torch"):  # which may call the person's code
                self._passed = frame
            return
        name = pure_library(code, frame.f_globals)
        if name is None:
            _pure_codes.add(code)
        else:
            self._tell(name, place == _OWN)


def _is_of_collector(code: CodeType) -> bool:
    """True where the garbage collector calls it when it comes, as it may in any call."""
    return any(getattr(callback, "__code__", None) is code for callback in gc.callbacks)


def is_of_the_person(code: CodeType) -> bool:
    """True where it is none of a library's and none of Grape's."""
    return _place(code) == _OWN


def _place(code: CodeType) -> int:
    known = _places.get(code.co_filename)
    if known is None:
        grape = is_grape_code(code.co_filename)
        known = _GRAPE if grape else _OWN if is_followed(code) else _LIBRARY
        _places[code.co_filename] = known
    return known
