"""GR404 hidden-state: the region writes Python state that a replay would not write.

Sees: the runtime's refusal: an attribute, list or closure changed during the call, or two traces of equal calls
differ. Costs: the region stays eager, since a replay runs no Python. Fix: return the state, or keep it in a tensor
that is updated in place. Wrong when: the state does not matter (a debug counter); remove it from the hot path and the
region can be captured.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...model import CellEvidence, Finding
from ..cost import H200, MachineCosts
from ..refusals import with_refusals

CODE = "GR404"

_ADVICE = "return the state from the call and pass it back in, or keep it in a tensor that is updated in place"


def check(evidence: CellEvidence, costs: MachineCosts = H200) -> Iterable[Finding]:
    return with_refusals(CODE, evidence, (), _ADVICE)
