"""How long a cell took, and what it would have taken without Grape."""

from __future__ import annotations

from dataclasses import dataclass

SIGNIFICANT = 0.03
"""A change of a cell's time by less than this share of it is none (DESIGN section 1)."""
LEAST_MS = 5.0
"""Nor is it slower for so few milliseconds: a cell that is over at once takes another time at each run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTime:
    """Time that Grape took of a cell: looking on, tracing and profiling calls, capturing, comparing, reporting."""

    observe_ms: float = 0.0
    record_ms: float = 0.0
    capture_ms: float = 0.0
    verify_ms: float = 0.0
    report_ms: float = 0.0

    @property
    def total_ms(self) -> float:
        return self.observe_ms + self.record_ms + self.capture_ms + self.verify_ms + self.report_ms

    def to_dict(self) -> dict[str, float]:
        return {
            "observe": self.observe_ms,
            "record": self.record_ms,
            "capture": self.capture_ms,
            "verify": self.verify_ms,
            "report": self.report_ms,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Shares of the time that the cell's own work took: what streams and regions replayed, and what ran as written."""

    streams: float = 0.0
    regions: float = 0.0

    @property
    def as_written(self) -> float:
        return 1.0 - self.streams - self.regions

    def to_dict(self) -> dict[str, float]:
        return {"streams": self.streams, "regions": self.regions, "as_written": self.as_written}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsAccount:
    """The replays of a cell. `eager_ms` is what the same calls take as written, where that is known of all: else
    `unknown` names a region. `samples` is the least number of calls as written that a region's time rests on. `paired`:
    backward passes were replayed too, whose time as written nobody measured, so that `eager_ms` is too small. `cold_ms`
    is what first calls took beyond later ones.
    """

    replays: int = 0
    replayed_ms: float = 0.0
    eager_ms: float = 0.0
    samples: int = 0
    unknown: str | None = None
    paired: bool = False
    cold_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTime:
    """`wall_ms` is what the person waited until the report was there; `plain_ms` what the plain cell takes, warm, as
    `basis` says; None where it is not known. `cold_ms` is what first calls took beyond later ones of their shape, which
    is nobody's fault: the plain cell pays it as well, once. `samples`: so many calls as written an estimate rests on;
    None where nothing was replayed, and where an earlier run was measured.
    """

    wall_ms: float
    plain_ms: float | None
    basis: str
    own: OwnTime = OwnTime()
    served: Served = Served()
    cold_ms: float = 0.0
    samples: int | None = None

    @property
    def ratio(self) -> float | None:
        """Plain over now, where the change is significant; above 1 the cell became faster."""
        if self.plain_ms is None or self.plain_ms <= 0 or self.wall_ms <= 0:
            return None
        change = self.wall_ms - self.plain_ms
        change = max(0.0, change - self.cold_ms) if change > 0 else change
        if abs(change) <= SIGNIFICANT * self.plain_ms or 0 < change <= LEAST_MS:
            return None
        return self.plain_ms / (self.plain_ms + change)

    @property
    def slower(self) -> bool:
        return self.ratio is not None and self.ratio < 1
