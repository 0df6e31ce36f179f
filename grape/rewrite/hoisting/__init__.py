"""Finds the loops of a cell and cuts their bodies into runs that may become regions: pure functions of syntax trees."""

from __future__ import annotations

from .loops import Hoisted, LoopSource, RunSource, hoist_function, hoist_loops, is_work
from .marks import LOOP, RUN, mark_of
from .names import names_of
from .scopes import LocalNames

__all__ = [
    "LOOP",
    "RUN",
    "Hoisted",
    "LocalNames",
    "LoopSource",
    "RunSource",
    "hoist_function",
    "hoist_loops",
    "is_work",
    "mark_of",
    "names_of",
]
