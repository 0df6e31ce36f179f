"""Code positions: which line of the person's own code, and which line of all, is running now."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Callable
from types import CodeType, FrameType

from ..model import Position
from .busy import Unwatched

_PLUMBING = ("_dynamo/eval_frame.py", "torch/_compile.py", "torch/_ops.py", "torch/utils/_python_dispatch.py")
OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def _library_roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    roots = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    roots.update(site.getsitepackages() if hasattr(site, "getsitepackages") else ())
    roots.add(site.getusersitepackages())
    roots.update(p for p in sys.path if p.endswith(("site-packages", "dist-packages")) or _is_installed(p))
    return tuple(os.path.join(os.path.abspath(root), "") for root in roots)


def _is_installed(path: str) -> bool:
    """True for a folder that pip has installed into (``pip install --target``)."""
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(path or "."))
    except OSError:
        return False


_ROOTS = _library_roots()
_GRAPE, _LIBRARY, _OWN = 0, 1, 2
_places: dict[str, int] = {}
"""Whose code a file holds: Grape's (and what torch puts around it), a library's, or the person's."""


def is_own_code(filename: str) -> bool:
    """True for code the person wrote: notebook cells and files outside the standard library and site-packages."""
    return _place(filename) == _OWN


def is_grape_code(filename: str) -> bool:
    """True for code of this package."""
    return filename.startswith(OWN_FOLDER)


def _place(filename: str) -> int:
    known = _places.get(filename)
    if known is None:
        plumbing = filename.startswith(OWN_FOLDER) or filename.endswith(_PLUMBING)
        with Unwatched():  # calls of the path's functions are none of the code that is watched
            known = _places[filename] = _OWN if _is_own(filename) else _GRAPE if plumbing else _LIBRARY
    return known


def _is_own(filename: str) -> bool:
    if filename.startswith("<"):
        return filename.startswith(("<ipython-input", "<timed exec>"))
    path = os.path.abspath(filename)
    return not path.startswith(OWN_FOLDER) and not path.startswith(_ROOTS)


def is_between(frame: FrameType) -> bool:
    """True if a plain call would not have this frame: it is Grape's, or torch's one by which Grape calls operators."""
    filename = frame.f_code.co_filename
    if filename.startswith(OWN_FOLDER):
        return True
    caller = frame.f_back
    return (
        caller is not None and filename.endswith("torch/_ops.py") and caller.f_code.co_filename.startswith(OWN_FOLDER)
    )


class PositionFinder:
    """Finds positions from frames, one object per code position so that repeated look-ups cost little.

    `name_of` turns a code object's file name into the name to show (``In[4]`` for a cell).
    """

    def __init__(self, name_of: Callable[[str], str] | None = None) -> None:
        self._name_of = name_of or (lambda filename: filename)
        self._cache: dict[tuple[int, int], Position] = {}
        self._codes: dict[int, CodeType] = {}  # keeps the ids in the cache from being reused

    def at(self, frame: FrameType) -> Position:
        """The position that `frame` executes now."""
        code = frame.f_code
        key = (id(code), frame.f_lasti)
        position = self._cache.get(key)
        if position is None:
            position = Position(
                file=self._name_of(code.co_filename),
                line=frame.f_lineno or code.co_firstlineno,
                function=code.co_qualname,
                instruction=frame.f_lasti,
            )
            self._cache[key] = position
            self._codes[id(code)] = code
        return position

    def find(self, depth: int = 1) -> tuple[FrameType | None, FrameType | None]:
        """The innermost frame of the person's own code, and the innermost frame outside Grape.

        `depth` frames above the caller are skipped.
        """
        try:
            frame: FrameType | None = sys._getframe(depth + 1)
        except ValueError:  # autograd's own thread calls operators with nothing of Python below
            return None, None
        inner: FrameType | None = None
        while frame is not None:
            filename = frame.f_code.co_filename
            place = _places.get(filename)
            if place is None:
                place = _place(filename)
            if place == _OWN:
                return frame, inner or frame
            if inner is None and place == _LIBRARY:
                inner = frame
            frame = frame.f_back
        return None, inner

    def first_own(self, frame: FrameType | None) -> FrameType | None:
        """The innermost frame of the person's own code from `frame` on."""
        while frame is not None and not is_own_code(frame.f_code.co_filename):
            frame = frame.f_back
        return frame
