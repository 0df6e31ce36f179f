"""Gains of fixes that were taken: a region's time per call in the report that offered them, and now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..model import RegionEvidence, RegionReport
from ..render.units import duration


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenFixes:
    """Fixes of one region in one cell. `source` is the cell's with them; milliseconds are of one call of `region`.

    `before_ms` is what the report that offered them had measured, `predicted_ms` what they should save, None where that
    was not known.
    """

    fixes: str
    source: str
    region: str
    before_ms: float
    predicted_ms: float | None


def time_per_call(region: RegionEvidence | RegionReport) -> float | None:
    """Median milliseconds of a call as most of them ran: of replays, or of eager calls. None where none was timed."""
    measured = region.after_ms if 2 * region.replays > region.calls else region.before_ms
    return measured.median_ms if measured is not None else None


def gains(
    taken: Iterable[TakenFixes],
    regions: Sequence[RegionEvidence],
    sources: Iterable[tuple[str, str]],
    *,
    backend: str,
) -> list[str]:
    """A sentence for each region that stands in a source with its fixes and was measured. `sources`: text by file name.

    None for the tape, whose times claim no gain.
    """
    if backend != "cuda":
        return []
    written = {name: _body(text) for name, text in sources}
    told = []
    for fixes in taken:
        region = next((one for one in regions if one.name == fixes.region), None)
        now = time_per_call(region) if region is not None else None
        if region is None or now is None or written.get(region.at.file) != _body(fixes.source):
            continue
        predicted = f"; about {duration(fixes.predicted_ms)} were predicted" if fixes.predicted_ms is not None else ""
        change = f"{duration(fixes.before_ms)} a call before it and {duration(now)} now"
        told.append(f"{fixes.fixes}: {fixes.region} took {change}{predicted}")
    return told


def _body(source: str) -> str:
    """A cell's source without its line of magic, which may be put above it or left out."""
    first, _, rest = source.partition("\n")
    return (rest if first.startswith("%%grape") else source).strip()
