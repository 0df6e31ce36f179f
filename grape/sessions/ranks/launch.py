"""What a process that a cell started says of itself to the cell: where it would talk to the store of its group, it
keeps what it has to say, and the cell reads that when the process is over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...streams import Arrivals


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMessage:
    """`said` is what a rank tells the others, `met` are its arrivals at collectives; `rank`, `size` and `parts` (there
    are groups of some ranks only) are those of its group, None where it has none.
    """

    rank: int | None
    size: int | None
    parts: bool
    said: dict[str, Any]
    met: Arrivals | None


class _Kept:
    """Of this process; `keep` is None where nobody started it from a cell."""

    keep: Callable[[RankMessage], None] | None = None


kept = _Kept()
