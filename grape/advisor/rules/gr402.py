"""GR402 capture-divergence: the code runs other operators while it is captured than it runs eagerly.

Sees: the runtime's refusal after comparing both traces. Costs: the region stays eager, since a graph of the other
operators could be slower (a mask that eager code skips) or wrong. Fix: let the code not ask whether it is being
captured. Wrong when: the question is there because the eager way cannot be captured; then the region has to stay
eager.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...model import CellEvidence, Finding
from ..cost import H200, MachineCosts
from ..refusals import with_refusals

CODE = "GR402"

_ADVICE = (
    "find the branch at that line that asks `is_current_stream_capturing()` or `is_compiling()`, "
    "and choose the eager way by an argument"
)


def check(evidence: CellEvidence, costs: MachineCosts = H200) -> Iterable[Finding]:
    return with_refusals(CODE, evidence, (), _ADVICE)
