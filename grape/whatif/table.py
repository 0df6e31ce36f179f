"""What came of the levers, as data and as text."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ..model import Measured
from ..render.units import duration
from .results import LOST

LEAST = 1.03
"""Less is not worth other results."""

BESIDE = 0.2
"""By less than this share, what the call as written takes may vary from lever to lever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One lever. `time` is that of a call, `plain` that of the call as written, measured in turn with it. `ready_s` is
    what the first call took, with what was built for it. `difference` is the largest of its results, each over the
    largest absolute value of its tensor, None where that cannot be said; `results` says it. `failed` says why there is
    no time.
    """

    name: str
    write: str
    time: Measured | None = None
    plain: Measured | None = None
    ready_s: float | None = None
    difference: float | None = None
    results: str = ""
    failed: str | None = None

    @property
    def speedup(self) -> float | None:
        """Over the call as written; None where there is no time."""
        if self.plain is None or self.time is None or not self.time.median_ms:
            return None
        return self.plain.median_ms / self.time.median_ms

    @property
    def helps(self) -> bool:
        """True where it is faster than all that is noise, with results that are comparable."""
        clear = self.time is not None and self.plain is not None and self.time.clearly_below(self.plain)
        lost = self.difference is None and self.results in LOST
        return clear and not lost and (self.speedup or 0.0) > LEAST


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A call `as_written`, and what the levers made of it. `str` is a table; times are milliseconds a call."""

    what: str
    device: str
    trains: bool
    as_written: Tried
    tried: tuple[Tried, ...]

    @property
    def best(self) -> Tried | None:
        """The fastest of those that help."""
        return max((one for one in self.tried if one.helps), key=lambda one: one.speedup or 0.0, default=None)

    def to_dict(self) -> dict[str, object]:
        """What JSON takes."""
        rows = [asdict(one) | {"speedup": one.speedup} for one in self.tried]
        return {**asdict(self), "tried": rows}

    def __str__(self) -> str:
        kind = "forward and backward" if self.trains else "forward without gradients"
        width = max(len(one.name) for one in (self.as_written, *self.tried))
        lines = [f"{self.what}, {kind}, on {self.device}", ""]
        alone = self.as_written.time
        lines += [f"  {one.name:<{width}}  {_row(one, alone)}".rstrip() for one in (self.as_written, *self.tried)]
        best = self.best
        lines += ["", f"fastest: {best.write}" if best is not None else "nothing that was tried makes it faster"]
        return "\n".join(lines)


def _row(one: Tried, alone: Measured | None) -> str:
    """`alone` is what the call as written took at first; a machine that is busy has other times for it later."""
    if one.time is None:
        return one.failed or ""
    plain_ms, alone_ms = (known.median_ms if known is not None else 0.0 for known in (one.plain, alone))
    parts = [f"{duration(one.time.median_ms):>9}"]
    if one.speedup is not None:
        parts += [f"{one.speedup:.2f}x", one.results]
    if plain_ms and alone_ms and abs(plain_ms / alone_ms - 1) > BESIDE:
        parts.append(f"as written then {duration(plain_ms)}")
    if one.ready_s is not None and one.ready_s >= 1:
        parts.append(f"first call after {duration(one.ready_s * 1e3)}")
    return "  ".join(parts)
