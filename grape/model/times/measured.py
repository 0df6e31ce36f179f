"""Numbers with their evidence. A speed-up is never a bare float."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median and third quartile (inclusive method) of at least one sample."""
    if len(samples) == 1:
        return samples[0], samples[0], samples[0]
    q1, q2, q3 = statistics.quantiles(samples, n=4, method="inclusive")
    return q1, q2, q3


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A median with its quartiles over `n` samples, in milliseconds."""

    median_ms: float
    q1_ms: float
    q3_ms: float
    n: int

    @property
    def iqr_ms(self) -> float:
        return self.q3_ms - self.q1_ms

    @classmethod
    def of(cls, samples_ms: Sequence[float]) -> Measured | None:
        """The median and quartiles of `samples_ms`, or None where there is no sample."""
        if not samples_ms:
            return None
        q1, q2, q3 = quartiles(samples_ms)
        return cls(median_ms=q2, q1_ms=q1, q3_ms=q3, n=len(samples_ms))

    def clearly_below(self, other: Measured) -> bool:
        """True where the interquartile ranges do not overlap and this one is lower (DESIGN section 8)."""
        return self.q3_ms < other.q1_ms

    def to_dict(self) -> dict[str, float | int]:
        return {"median": self.median_ms, "iqr": self.iqr_ms, "n": self.n}
