"""GR405 unsupported: something that cannot be captured, by name.

Sees: the runtime's refusal (an operator, a stream, a second device, a hook, ...), and regions that need gradients.
Costs: the region stays eager. Fix: run inference under `torch.inference_mode()` or `torch.no_grad()`; move what is
named out of the region. Wrong when: the gradients are used; then eager is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...model import CellEvidence, Finding, RegionEvidence
from ..cost import H200, MachineCosts
from ..refusals import refused, with_refusals

CODE = "GR405"

_NO_GRAD = "if the gradients are not used, call `{0}` under `torch.inference_mode()` or `torch.no_grad()`"
_MOVE = "move what is named out of the region, or leave the region eager"


def check(evidence: CellEvidence, costs: MachineCosts = H200) -> Iterable[Finding]:
    return with_refusals(CODE, evidence, _needing_grad(evidence), _MOVE)


def _needing_grad(evidence: CellEvidence) -> Iterator[Finding]:
    named = {id(region) for region in refused(evidence, CODE)}
    for region in evidence.regions:
        if region.outcome == "replayed" or not any(trace.needs_grad for trace in region.traces):
            continue
        if region.refused is not None and (id(region) not in named or not _for_grad(region)):
            continue
        refusal = region.refused
        yield Finding(
            code=CODE,
            severity="blocker",
            message=f"`{region.name}` stays eager: " + (refusal.why if refusal else "its results need gradients"),
            at=(refusal.at if refusal else None) or region.at,
            end_line=region.end_line,
            region=region.name,
            evidence=(("needs_grad", True), ("calls", region.calls), *(refusal.evidence if refusal else ())),
            advice=_NO_GRAD.format(region.name),
        )


def _for_grad(region: RegionEvidence) -> bool:
    """A refusal that names no line of its own inside the region is about the region as a whole: its gradients."""
    refusal = region.refused
    return refusal is not None and (refusal.at is None or refusal.at == region.at)
