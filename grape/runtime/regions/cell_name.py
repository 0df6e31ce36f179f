"""The name of a cell."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CellName"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellName:
    """A cell that runs: its source, and the name that positions in it have."""

    source: str = ""
    shown: str = ""
