"""Rewrites of a person's source: one fix per finding code, as differences that they can read, apply and undo.

What needs LibCST (`registry`, `at_once`) is imported where it is used: the report of a cell needs none of it.
"""

from .result import Declined, Rewritten
from .source import digest, names_bound, names_in_functions, split_magic, unified_diff

__all__ = ["Declined", "Rewritten", "digest", "names_bound", "names_in_functions", "split_magic", "unified_diff"]
