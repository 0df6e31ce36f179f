"""Finds the loops of a cell and cuts their bodies into runs that may become regions: pure functions of syntax trees."""

from __future__ import annotations

from .loops import LoopSource, Outlined, RunSource, is_work, outline_function, outline_loops
from .marks import LOOP, RUN, mark_of
from .names import names_of
from .scopes import LocalNames

__all__ = [
    "LOOP",
    "RUN",
    "LocalNames",
    "LoopSource",
    "Outlined",
    "RunSource",
    "is_work",
    "mark_of",
    "names_of",
    "outline_function",
    "outline_loops",
]
