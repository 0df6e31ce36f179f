"""Time of the cell's own lines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LineTime:
    """Time that passed while `line` of the cell was the innermost of its lines: with all that it called elsewhere.
    `replayed_ms` of it went by in replays of a region that begins there.
    """

    line: int
    ms: float
    replayed_ms: float = 0.0
    grown_bytes: int | None = None
    """The most by which one pass of the line let the memory grow that torch has handed out on the device, until the
    next line began; 0 where it never grew. None where that was not measured, as on the CPU.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class LineTimes:
    """Of run `run` of the cell, which was watched, from `looks` events of lines, each of which ends the time of the one
    before it. Together the lines took what the cell's own work took, without Grape's.
    """

    lines: tuple[LineTime, ...]
    looks: int
    run: int = 1

    @property
    def total_ms(self) -> float:
        return sum(line.ms for line in self.lines)

    def share(self, ms: float) -> float:
        """Of all lines, in [0, 1]; the shares of all lines add up to 1."""
        total_ms = self.total_ms
        return ms / total_ms if total_ms > 0 else 0.0

    @property
    def replayed_share(self) -> float:
        return self.share(sum(line.replayed_ms for line in self.lines))

    def to_dict(self) -> dict[str, object]:
        lines = [
            {
                "line": line.line,
                "end_line": line.line,
                "ms": line.ms,
                "replayed_ms": line.replayed_ms,
                "grown_bytes": line.grown_bytes,
            }
            for line in self.lines
        ]
        return {"run": self.run, "looks": self.looks, "lines": lines}
