"""What came of the levers, as data and as text."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from ..model import Measured
from ..render.units import duration, nbytes, ratio

__all__ = ["Tried", "WhatIf"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One lever. `time` is of a call; `ready_s` is what the first took, with what was built for it. `difference` is the
    largest of its results from those as written, over the largest absolute value there; None where that cannot be told,
    as the call draws random numbers. `failed` says why there is no time.
    """

    name: str
    write: str
    time: Measured | None = None
    ready_s: float | None = None
    difference: float | None = None
    peak_bytes: int | None = None
    failed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A call `as_written`, and what the levers made of it. `str` is a table; times are milliseconds a call."""

    what: str
    device: str
    trains: bool
    as_written: Tried
    tried: tuple[Tried, ...]

    def speedup(self, one: Tried) -> float | None:
        """Over the call as written; None where there is no time."""
        before, after = self.as_written.time, one.time
        return (
            before.median_ms / after.median_ms if before is not None and after is not None and after.median_ms else None
        )

    @property
    def best(self) -> Tried | None:
        """The fastest, where it is faster than 1.03x."""
        rows = [(speedup, one) for one in self.tried if (speedup := self.speedup(one)) is not None and speedup > 1.03]
        return max(rows, key=lambda row: row[0])[1] if rows else None

    def to_dict(self) -> dict[str, object]:
        """What JSON takes."""
        rows = [asdict(one) | {"speedup": self.speedup(one)} for one in self.tried]
        return {**asdict(self), "tried": rows}

    def __str__(self) -> str:
        kind = "forward and backward" if self.trains else "forward"
        width = max(len(one.name) for one in (self.as_written, *self.tried))
        lines = [f"{self.what}, {kind}, on {self.device}", ""]
        lines += [f"  {one.name:<{width}}  {self._row(one)}".rstrip() for one in (self.as_written, *self.tried)]
        best = self.best
        lines += ["", f"fastest: {best.write}" if best is not None else "nothing that was tried makes it faster"]
        return "\n".join(lines)

    def _row(self, one: Tried) -> str:
        if one.time is None:
            return one.failed or ""
        parts = [f"{duration(one.time.median_ms):>9}"]
        speedup = self.speedup(one)
        if one is not self.as_written and speedup is not None:
            parts.append(f"{ratio(speedup)}")
            parts.append(_apart(one.difference))
        if one.ready_s is not None and one.ready_s >= 1:
            parts.append(f"first call after {duration(one.ready_s * 1e3)}")
        if one.peak_bytes is not None:
            parts.append(f"peak {nbytes(one.peak_bytes)}")
        return "  ".join(parts)


def _apart(difference: float | None) -> str:
    if difference is None:
        return "draws random numbers"
    if difference == 0:
        return "same bits"
    return f"differs by {difference:.1e}" if math.isfinite(difference) else "not finite where it was"
