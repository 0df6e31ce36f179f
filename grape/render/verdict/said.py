"""Sentences about one region, of which the verdict is made."""

from __future__ import annotations

from typing import NamedTuple

from ...model import CellEvidence, RegionEvidence, RegionReport
from ..units import count, one_line, pair, percent, plural

LOOP = "loop at line "
"""So names of regions begin that are parts of a loop's body."""

RARELY = 2
"""Calls with one set of shapes, up to which a first run says nothing but that shapes keep changing."""


BUSY_SHARE = 0.85
"""From here on the GPU is what limits a call: at most 1 / 0.85 could be gained by removing launches."""


def _samples(region: RegionReport) -> int:
    return min(region.before_ms.n, region.after_ms.n) if region.before_ms and region.after_ms else 0


class Said(NamedTuple):
    """The end of a verdict; `unchanged`: why nothing changed."""

    text: str
    unchanged: bool = False


def region_name(region: RegionReport) -> str:
    return one_line(region.name, 48)


def calls_text(region: RegionReport) -> str:
    if region.name.startswith(LOOP):
        return f"{plural(region.calls, 'iteration')} of the {region_name(region)}"
    return f"{plural(region.calls, 'call')} of {region_name(region)}"


def looked_at(evidence: CellEvidence, region: RegionReport) -> str:
    """The calls that were looked at: all of them, or those before looking had an end, behind which nobody counts."""
    if evidence.looked_on or any(known.replays for known in evidence.regions):
        return calls_text(region)
    return f"the first {calls_text(region).removeprefix('1 ')}"


def evidence_of(evidence: CellEvidence, region: RegionReport) -> RegionEvidence | None:
    """The evidence that the row `region` of a report was made from."""
    for candidate in evidence.regions:
        if (candidate.name, candidate.at.file, candidate.at.line) == (region.name, region.file, region.line):
            return candidate
    return None


def busy_text(share: float | None) -> str | None:
    return f"the GPU is already busy {percent(share)} of the time" if share and share >= BUSY_SHARE else None


def times_text(region: RegionReport, suffix: str = "") -> str:
    if region.before_ms is None or region.after_ms is None:
        return ""
    times = pair(region.before_ms.median_ms, region.after_ms.median_ms, suffix)
    return f" ({times}, n={count(_samples(region))})"


def given_up(evidence: CellEvidence) -> str:
    return f"; {evidence.given_up}: {evidence.left_to} from now on" if evidence.given_up else ""
