"""From findings to rewrites that were tried: fixes are offered with their differences, and compared where they can be.

Stands above `advisor` and `rewrite`, which know neither torch nor each other.
"""

from __future__ import annotations

from .at_once import Offers, rewritten_cell
from .offers import elsewhere, find_fix, source_of, with_fixes
from .verify import Verification, verify

__all__ = ["Offers", "Verification", "elsewhere", "find_fix", "rewritten_cell", "source_of", "verify", "with_fixes"]
