"""Python effects that a replay would not repeat: output, files, host random numbers, sleeping.

Changes of Python state are found by the guards, which are compared after the call; this watch sees what leaves no
trace in any object. It is a profile function, set for one traced call.
"""

from __future__ import annotations

import builtins
import io
import random
import sys
import time
from types import FrameType
from typing import Any

from ..model import Position
from ..tracing import PositionFinder, is_own_code

__all__ = ["EffectWatch"]

_FUNCTIONS = frozenset({builtins.print, builtins.input, builtins.open, time.sleep,})


class EffectWatch:
    """Context manager; `found` lists the effects as (name, position of the person's line).

    `blind` is set where another profiler is at work, which is left alone.
    """

    def __init__(self, positions: PositionFinder) -> None:
        self._positions = positions
        self.found: list[tuple[str, Position | None]] = []
        self.blind = False

    def __enter__(self) -> EffectWatch:
        self.blind = sys.getprofile() is not None
        if not self.blind:
            sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        if not self.blind:
            sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "c_call" or not _is_effect(argument):
            return
        at: FrameType | None = frame
        while at is not None and not is_own_code(at.f_code.co_filename):
            at = at.f_back
        self.found.append((getattr(argument, "__name__", "?"), self._positions.at(at) if at is not None else None))


def _is_effect(function: Any) -> bool:
    try:
        if function in _FUNCTIONS:
            return True
    except TypeError:  # unhashable callables
        return False
    owner = getattr(function, "__self__", None)
    if isinstance(owner, random.Random):
        return True
    if isinstance(owner, io.IOBase):
        return getattr(function, "__name__", "") in ("write", "writelines", "read", "readline", "flush")
    return type(owner).__module__.startswith("numpy.random")
