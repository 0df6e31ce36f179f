"""Loops of a cell whose bodies become regions: compiled code with objects for its loops and runs, and their regions."""

from .code import on_code
from .outliner import Outliner

__all__ = ["Outliner", "on_code"]
