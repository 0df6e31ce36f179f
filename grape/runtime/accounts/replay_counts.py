"""Counts what a region's replays copied, spared, and could not do."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class ReplayCounts:
    """Counts of one cell. `copies` maps an argument's path to [times, bytes]."""

    copies: dict[str, list[int]] = field(default_factory=dict)
    alias_hits: int = 0
    """Arguments whose position had written them into their placeholder."""
    alias_misses: int = 0
    """Results that a position wrote into a placeholder, and that no replay read there."""
    blocked: int = 0
    """Calls that ran eagerly because a replay would have overwritten a result that somebody holds."""

    copy_ns: float = 0.0
    """Nanoseconds that copying one argument cost the host lately."""

    def copied(self, path: str, nbytes: int) -> None:
        count = self.copies.get(path)
        if count is None:
            count = self.copies[path] = [0, 0]
        count[0] += 1
        count[1] += nbytes

    @property
    def copied_bytes(self) -> int:
        return sum(nbytes for _, nbytes in self.copies.values())
