"""Finds the loops of a cell and cuts their bodies into runs that may become regions: pure functions of syntax trees."""

from __future__ import annotations

from .loops import Hoisted, LoopSource, RunSource, hoist_loops
from .marks import LOOP, RUN, mark_of

__all__ = ["LOOP", "RUN", "Hoisted", "LoopSource", "RunSource", "hoist_loops", "mark_of"]
