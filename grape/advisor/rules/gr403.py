"""GR403 scalar-dynamism: a Python number that reaches an operator changes from call to call.

Sees: scalars that differ between calls with equal shapes. Costs: a graph would freeze the first value, so the region
stays eager or needs one graph per value. Fix: keep the number in a 0-dimensional tensor on the device and update it
in place. Wrong when: the number takes few values, each many times; then passing it as an argument gives each value
its own graph.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...model import CellEvidence, Finding, OpRecord, RegionEvidence, ScalarChange
from ..cost import H200, MachineCosts
from ..optimizers import advice_for_step
from ..refusals import severity_in, with_refusals
from ..source import cell_source
from ..words import operator_name

CODE = "GR403"

_ADVICE = (
    "keep the number in a tensor on the device, made once, and update it in place (`step.add_(1)`), "
    "or pass it as an argument if it takes few values"
)
_SHOWN = 4


def check(evidence: CellEvidence, costs: MachineCosts = H200) -> Iterable[Finding]:
    found = [_finding(region, change) for region in evidence.regions for change in region.scalar_changes]
    source = cell_source(evidence)
    for finding in with_refusals(CODE, evidence, found, _ADVICE):
        of_a_name = "is no tensor" in finding.message  # what the line does with it is another matter
        advice = advice_for_step(source, finding.at) if finding.advice == _ADVICE and not of_a_name else None
        yield replace(finding, advice=advice) if advice is not None else finding


def _finding(region: RegionEvidence, change: ScalarChange) -> Finding:
    values = tuple(dict.fromkeys(_plain(value) for value in change.values))
    shown = ", ".join(values[:_SHOWN]) + (", ..." if len(values) > _SHOWN else "")
    return Finding(
        code=CODE,
        severity=severity_in(region, CODE),
        message=f"a Python number that reaches {_spoken(change.operator)} in `{region.name}` changes between calls: "
        f"{shown}",
        at=change.at or region.at,
        region=region.name,
        evidence=(("operator", change.operator), ("values", values), ("distinct", len(values))),
        advice=_ADVICE,
    )


def _plain(value: object) -> str:
    """Traces keep a number as (type name, number), so that 1 and 1.0 and True differ."""
    if isinstance(value, tuple) and len(value) == 2 and value[0] in ("int", "float", "bool"):
        value = value[1]
    return str(value)


def _spoken(operator: str) -> str:
    return operator_name(OpRecord(0, operator, "compute", (), (), (), (), (), None, None))
