"""GR406 not-worthwhile: measured, the graph is not faster; the region was left as it was.

Sees: the decisions of the capture policy and the times before and after. Costs: nothing is lost, nothing is gained:
the GPU is the limit, or the calls are too few to earn the capture back. Fix: none needed; more calls of one shape, or
less work on the GPU. Wrong when: this run was shorter than the ones to come; then later cells decide again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ....model import CellEvidence, Finding, RegionEvidence
from ....model.times.machine import H200, MachineCosts
from ...words import milliseconds

CODE = "GR406"


def check(evidence: CellEvidence, costs: MachineCosts = H200) -> Iterable[Finding]:
    return (finding for region in evidence.regions for finding in _findings(region))


def _findings(region: RegionEvidence) -> Iterator[Finding]:
    refusal = region.refused if region.refused and region.refused.code == CODE else None
    dropped = [decision for decision in region.decisions if decision.action == "drop"]
    if refusal is None and not dropped:
        return
    before, after = region.before_ms, region.after_ms
    compared = before is not None and after is not None and not after.clearly_below(before)
    if compared and before is not None and after is not None:
        why = (
            f"the graph is not faster, {milliseconds(after.median_ms)} per call against "
            f"{milliseconds(before.median_ms)} eager"
        )
    else:
        why = refusal.why if refusal else dropped[-1].why
    some = f" for {len(dropped)} of {len(region.shapes)} shapes" if region.outcome == "replayed" else ""
    yield Finding(
        code=CODE,
        severity="hint",
        message=f"`{region.name}` was left eager{some}: {why}",
        at=(refusal.at if refusal else None) or region.at,
        end_line=region.end_line,
        region=region.name,
        evidence=(
            ("before_ms", before.to_dict() if before else None),
            ("after_ms", after.to_dict() if after else None),
            ("dropped", len(dropped)),
            ("saving_ms", dropped[-1].saving_ms if dropped else None),
            ("capture_ms", dropped[-1].capture_ms if dropped else None),
            ("expected_calls", dropped[-1].expected_calls if dropped else None),
            *(refusal.evidence if refusal else ()),
        ),
    )
