"""Why a cell's time did not change, and what comes next."""

from __future__ import annotations

from collections.abc import Sequence

from ...model import CODES, CellEvidence, Decision, Finding, RegionReport
from ..units import count, one_line, plural
from .said import RARELY, Said, busy_text, evidence_of, given_up, looked_at, region_name, times_text


def why_no_change(evidence: CellEvidence, main: RegionReport, findings: Sequence[Finding]) -> str:
    busy = busy_text(main.gpu_busy_share)
    if busy:
        return busy
    known = evidence_of(evidence, main)
    if known and known.refused and known.refused.code == "GR406":
        return one_line(known.refused.why)
    return next((one_line(f.message) for f in findings if f.code == "GR406" and f.region in (main.name, None)), "")


def because(evidence: CellEvidence, main: RegionReport) -> str:
    if main.reason is None:
        return ""
    known = evidence_of(evidence, main)
    at = known.refused.at if known and known.refused else None
    place = f", {one_line(str(at), 60)}" if at else ""
    if known and known.refused and known.refused.recording and not known.refused.detail("more"):
        return f" ({known.refused.why}{place})"  # no fault of the code's, and what a cell that trains is mostly told
    return f" ({main.reason} {CODES.get(main.reason, '')}".rstrip() + f"{place})"


def refused_text(evidence: CellEvidence, main: RegionReport, findings: Sequence[Finding]) -> Said:
    if main.reason == "GR406" or busy_text(main.gpu_busy_share):
        why = why_no_change(evidence, main, findings) or "the graph was not faster"
        return Said(f"{why}{times_text(main, ' per call')}", unchanged=True)
    return Said(f"not accelerated: {region_name(main)} stays eager{because(evidence, main)}")


def last_decision(evidence: CellEvidence, region: RegionReport) -> Decision | None:
    """The last decision of the capture policy about the region; None where it was not asked."""
    known = evidence_of(evidence, region)
    return known.decisions[-1] if known and known.decisions else None


def new_shapes(evidence: CellEvidence, region: RegionReport) -> str:
    """Said of a first run in which hardly any shapes came again; empty for any other."""
    known = evidence_of(evidence, region)
    counts = [shape.calls for shape in known.shapes] if known else []
    if len(counts) < 2 or max(counts) > RARELY or sum(counts) != region.calls or captured_text(evidence, region):
        return ""
    if known and any(shape.earlier_runs for shape in known.shapes):
        return ""
    return ", each with new shapes" if max(counts) == 1 else f" with {count(len(counts))} different shapes"


def captured_text(evidence: CellEvidence, region: RegionReport) -> str:
    """Said of a region that was captured and not replayed yet; empty for any other."""
    known = evidence_of(evidence, region)
    graphs = sum(shape.captured for shape in known.shapes) if known else 0
    if not graphs:
        return ""
    shapes = len(known.shapes) if known else 0
    if graphs == shapes:
        return ", captured" if shapes == 1 else f", all {count(shapes)} shapes captured"
    return f", {count(graphs)} of {plural(shapes, 'shape')} captured"


def _is_about(finding: Finding, region: RegionReport) -> bool:
    return finding.region in (region.name, None) or region.name in dict(finding.evidence).get("alike_in", ())


def observed_text(evidence: CellEvidence, main: RegionReport, findings: Sequence[Finding]) -> Said:
    last, busy = last_decision(evidence, main), busy_text(main.gpu_busy_share)
    if busy and last and last.action == "drop" and not evidence.profile_only:
        return Said(busy, unchanged=True)
    return Said(f"observed {looked_at(evidence, main)}{_what_next(evidence, main, findings)}")


def _what_next(evidence: CellEvidence, main: RegionReport, findings: Sequence[Finding]) -> str:
    """Why nothing was replayed of a region that was observed, and when it will be."""
    if evidence.given_up:
        return given_up(evidence)
    last = last_decision(evidence, main)
    if evidence.profile_only:
        return "; nothing applied (--profile)"
    if last and last.action == "drop":
        return f"; left eager: {one_line(last.why)}"
    if any(finding.severity == "blocker" and _is_about(finding, main) for finding in findings):
        return "; blockers keep it from being accelerated"
    captured, new = captured_text(evidence, main), new_shapes(evidence, main)
    if captured:
        return f"{captured}; run the cell again to have them replayed"
    if new and (last is None or last.action == "wait"):
        return f"{new}; run the cell again to have them captured"
    if last and last.action == "wait":
        return f"; not captured yet: {one_line(last.why)}"
    return "; accelerated when it is called again"
