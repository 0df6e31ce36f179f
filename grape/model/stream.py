"""Counts of what operator streams did in a cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["StreamEvidence"]


WAITING = "not worth a capture yet"
"""Why operators run as written that will be deferred once there were enough of them: a reason in `as_written`."""
NO_ROOM = "no room for its results"
"""The same of those whose results are larger than the memory budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvidence:
    """One stream in one cell, counted in operators unless named otherwise. `as_written` is by reason."""

    name: str
    operators: int
    matched: int
    issued: int
    recorded: int
    as_written: tuple[tuple[str, int], ...]
    segments: int
    partial: int
    """Segments that something cut short."""
    iterations: int
    """Times that a fragment began: operators that were recorded one behind the other."""
    diverged: int
    last_divergence: str | None
    fragments: int
    """All that are known now, also from other cells."""
    steps: int
    """Operators of all fragments."""
    bytes: int
    """Of the memory that their results have."""
    copies: int
    copied_bytes: int
    kept: int
    """Results that outlived a pass, whose memory was given away."""
    own_ms: float
    """Milliseconds that comparing, observing and recording took: an estimate."""
    captured: int = 0
    """Segments, in `capture_ms`."""
    capture_ms: float = 0.0
    lost: int = 0
    """Fragments that were slower than code as written, and serve no more."""

    @property
    def waiting(self) -> int:
        """Operators that repeat, and will be deferred once there were enough of them."""
        return dict(self.as_written).get(WAITING, 0)

    @property
    def without_room(self) -> int:
        """Operators that repeat, and whose results are too large for the memory budget."""
        return dict(self.as_written).get(NO_ROOM, 0)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "operators": self.operators,
            "matched": self.matched,
            "issued": self.issued,
            "recorded": self.recorded,
            "as_written": dict(self.as_written),
            "segments": self.segments,
            "partial": self.partial,
            "iterations": self.iterations,
            "diverged": self.diverged,
            "last_divergence": self.last_divergence,
            "fragments": self.fragments,
            "steps": self.steps,
            "bytes": self.bytes,
            "copies": self.copies,
            "copied_bytes": self.copied_bytes,
            "kept": self.kept,
            "own_ms": self.own_ms,
            "captured": self.captured,
            "capture_ms": self.capture_ms,
            "lost": self.lost,
        }
