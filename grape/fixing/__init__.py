"""From findings to rewrites that were tried: fixes are offered with their differences, and compared where they can be.

All of it happens when somebody asks for a rewrite, never at the end of a cell; what it takes, LibCST too, is imported
then.

Stands above `advisor` and `rewrite`, which know neither torch nor each other.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .later import FixesLater

if TYPE_CHECKING:
    from .at_once import Offers, rewritten_cell
    from .offers import elsewhere, find_fix, source_of, with_fixes
    from .verification import Comparison, verify

__all__ = [
    "Comparison",
    "FixesLater",
    "Offers",
    "elsewhere",
    "find_fix",
    "rewritten_cell",
    "source_of",
    "verify",
    "with_fixes",
]

_HOMES = {
    "Offers": ".at_once",
    "Comparison": ".verification",
    "elsewhere": ".offers",
    "find_fix": ".offers",
    "rewritten_cell": ".at_once",
    "source_of": ".offers",
    "verify": ".verification",
    "with_fixes": ".offers",
}


def __getattr__(name: str) -> object:
    """At the end of a cell none of these is needed."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(home, __name__), name)
    return found
