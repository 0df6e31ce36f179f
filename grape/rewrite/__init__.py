"""Rewrites of a person's source: one fix per finding code, as differences that they can read, apply and undo.

What needs LibCST is imported when it is first used: the report of a cell needs none of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .result import Declined, Rewritten
from .source import digest, names_bound, names_in_functions, split_magic, unified_diff

if TYPE_CHECKING:
    from .registry import FIXES, fix, moved
    from .several import Combined, fix_all

__all__ = [
    "FIXES",
    "Combined",
    "Declined",
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

_HOMES = {"FIXES": "registry", "fix": "registry", "moved": "registry", "Combined": "several", "fix_all": "several"}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value
