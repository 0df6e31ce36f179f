"""Finds the loops of a cell and cuts their bodies into runs that may become regions: pure functions of syntax trees."""

from .loops import Outlined, RunSource, is_work, outline_function, outline_loops
from .marks import LOOP, mark_of
from .names import names_of

__all__ = ["LOOP", "Outlined", "RunSource", "is_work", "mark_of", "names_of", "outline_function", "outline_loops"]
