"""Time of the cell's own lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["FEWEST_LOOKS", "LineTime", "LineTimes"]

FEWEST_LOOKS = 20
"""Of fewer looks at a cell nothing is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineTime:
    """Time that passed while `line` of the cell was the innermost of its lines: with all that it called elsewhere.
    `replayed_ms` of it went by in replays of a region that begins there.
    """

    line: int
    ms: float
    replayed_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LineTimes:
    """Of one watched run, from `looks` at what ran, each of which stands for the time since the one before it.

    `work_ms` is what the cell's own work took, without Grape's: `share` of a line times this is what it took.
    """

    lines: tuple[LineTime, ...]
    looks: int
    work_ms: float
    run: int = 1
    """Of the cell, which was looked at."""

    @property
    def seen_ms(self) -> float:
        return sum(line.ms for line in self.lines)

    @property
    def replayed_share(self) -> float:
        return self.share(sum(line.replayed_ms for line in self.lines))

    def share(self, ms: float) -> float:
        """Of all that was seen, in [0, 1]; the shares of all lines add up to 1."""
        return ms / self.seen_ms if self.seen_ms > 0 else 0.0

    def took_ms(self, ms: float) -> float:
        """The milliseconds of the cell's own work that `ms` of what was seen stands for."""
        return self.share(ms) * self.work_ms

    def to_dict(self) -> dict[str, Any]:
        lines = [
            {"line": line.line, "ms": self.took_ms(line.ms), "replayed_ms": self.took_ms(line.replayed_ms)}
            for line in self.lines
        ]
        return {"run": self.run, "looks": self.looks, "lines": lines}
