"""From findings to rewrites that were tried: fixes are offered with their differences, and compared where they can be.

All of it happens when somebody asks for a rewrite, never at the end of a cell, and LibCST is imported then.

Stands above `advisor` and `rewrite`, which know neither torch nor each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .later import FixesLater
from .offers import elsewhere, find_fix, source_of, with_fixes
from .verify import Verification, verify

if TYPE_CHECKING:
    from .at_once import Offers, rewritten_cell

__all__ = [
    "FixesLater",
    "Offers",
    "Verification",
    "elsewhere",
    "find_fix",
    "rewritten_cell",
    "source_of",
    "verify",
    "with_fixes",
]


def __getattr__(name: str) -> object:
    if name not in ("Offers", "rewritten_cell"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import at_once

    found: object = getattr(at_once, name)
    return found
