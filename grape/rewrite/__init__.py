"""Rewrites of a person's source: one fix per finding code, as differences that they can read, apply and undo."""

from __future__ import annotations

from .registry import FIXES, fix, moved
from .result import Refused, Rewritten
from .several import Combined, fix_all
from .source import digest, names_bound, names_in_functions, split_magic, unified_diff

__all__ = [
    "FIXES",
    "Combined",
    "Refused",
    "Rewritten",
    "digest",
    "fix",
    "fix_all",
    "moved",
    "names_bound",
    "names_in_functions",
    "split_magic",
    "unified_diff",
]
