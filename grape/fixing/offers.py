"""Which findings of a cell have a rewrite, with its difference, and whether both were seen to compute the same."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import replace

from ..failures import HOW, log_failure, said
from ..model import CellEvidence, Finding, Fix, TensorView
from ..model.codes import REWRITTEN
from ..model.location import line_of
from ..originals import perf_counter
from ..rewrite import Declined, Rewritten, names_in_functions
from ..rewrite.likely import source_of
from ..rewrite.source import mask
from .verification import verify

_SECONDS = 10.0
"""For the verifications of one cell: it runs twice more in each."""

TOLERANCE = {"GR203": 0.01}
"""Of rewrites that choose other kernels, the share of a tensor's largest value by which results may differ. Such a fix
is never called verified."""

NOT_OFFERED = "not_offered"
"""In the evidence of a finding: why the rewrite that its source would have is not offered."""

_ADVICE = {"GR102": "let the device decide, as in the rewrite below; what is around it can then be one graph"}
"""The advice of a finding where it has a rewrite: the rewrite, and nothing else."""

_PADDED = "pad the list to a few lengths, as in the rewrite below; what takes it can then be one graph for each"
"""Likewise, where the rewrite had to be compared."""

_MASKED = ("aten.index.", "aten.index_put.", "aten.index_put_.")


def elsewhere(evidence: CellEvidence, file: str) -> frozenset[str]:
    """The global names that functions of the person's other cells use."""
    others = [source for name, source in (*evidence.sources, (evidence.file, evidence.source)) if name != file]
    return frozenset().union(*map(names_in_functions, others))


def find_fix(evidence: CellEvidence, finding: Finding) -> Rewritten | Declined:
    """The rewrite for one finding, with what the traces say about its line."""
    if finding.code not in REWRITTEN:
        return Declined(why=f"there is no rewrite for {finding.code}")
    if finding.at is None:
        return Declined(why="the finding names no line")
    source = source_of(evidence, finding.at.file)
    if source is None:
        return Declined(why=f"the source of {finding.at.file} is not known as it was typed")
    from ..rewrite.registry import fix

    try:
        return fix(source, finding, elsewhere=elsewhere(evidence, finding.at.file))
    except Exception as error:  # the report must not be lost with it
        log_failure(f"it made the rewrite for {finding.code}")
        return Declined(why=f"Grape failed while it made the rewrite ({said(error)}); {HOW}")


def with_fixes(
    evidence: CellEvidence,
    findings: tuple[Finding, ...],
    namespace: Mapping[str, object] | None,
    *,
    ran: Collection[Finding] = (),
    may_not: str = "it is part of a script",
) -> tuple[Finding, ...]:
    """`findings`, each with its fix where there is one. Fixes are numbered from 1 in the order of the findings.

    The cell runs again on copies of `namespace`, with and without each rewrite, where that is safe and quick; a
    rewrite that computes something else is not offered. None as namespace verifies nothing, because `may_not`. `ran`
    are findings whose rewrites the cell ran with: they get no fix.
    """
    deadline = perf_counter() + _SECONDS
    offered: dict[str, Fix | str] = {}
    result = []
    lines = {(finding.code, line_of(finding.at)) for finding in ran if finding.at is not None}
    for finding in findings:
        if (finding.code, line_of(finding.at)) in lines:
            result.append(finding)
            continue
        finding = _with_shapes(evidence, finding)
        made = find_fix(evidence, finding)
        if isinstance(made, Rewritten):
            if made.diff not in offered:
                number = sum(1 for known in offered.values() if isinstance(known, Fix)) + 1
                offered[made.diff] = _offer(evidence, finding, made, number, namespace, deadline, may_not)
            found = offered[made.diff]
            if isinstance(found, Fix):
                advice = _ADVICE.get(finding.code, finding.advice) if made.tolerance is None else _PADDED
                finding = replace(finding, fix=found, evidence=_with_region(finding), advice=advice)
            else:
                finding = replace(finding, evidence=(*_with_region(finding), (NOT_OFFERED, found)))
        result.append(finding)
    return tuple(result)


def _with_region(finding: Finding) -> tuple[tuple[str, object], ...]:
    """`grape apply` makes the fix again from the report's JSON, which has no other place for the region."""
    return (*finding.evidence, ("region", finding.region)) if finding.region else finding.evidence


def _offer(
    evidence: CellEvidence,
    finding: Finding,
    made: Rewritten,
    number: int,
    namespace: Mapping[str, object] | None,
    deadline: float,
    may_not: str,
) -> Fix | str:
    """The fix, or why it is not offered."""
    why = None
    if namespace is None:
        why = may_not
    elif evidence.error is not None:
        why = "the cell raised"
    elif 2e-3 * evidence.wall_ms > deadline - perf_counter():
        why = "running the cell twice more would take too long"
    if why is not None and made.tolerance is not None:
        return f"it is offered only where both were compared, and {why}"
    if why is not None or namespace is None:
        return Fix(id=number, diff=made.diff, verified=False, why=why or "")
    lengthened = made.tolerance is not None
    tolerance = TOLERANCE.get(finding.code, 0.0) if made.tolerance is None else made.tolerance
    if finding.at is not None and finding.at.file == evidence.file:
        checked = verify(evidence.source, made.source, namespace, tolerance=tolerance, lengthened=lengthened)
    else:
        old = source_of(evidence, finding.at.file) if finding.at is not None else None
        functions = _changed_functions(old, made.source) if old is not None else None
        if functions is None:
            why = "it changes more than functions of another cell"
            if lengthened:
                return f"it is offered only where both were compared, and {why}"
            return Fix(id=number, diff=made.diff, verified=False, why=why)
        checked = verify(
            *(evidence.source, evidence.source, namespace),
            functions=functions,
            tolerance=tolerance,
            lengthened=lengthened,
        )
    if checked.result == "different":
        return f"the rewrite computed something else when both ran: {checked.why}"
    if lengthened and checked.result == "not verified":
        return f"it is offered only where both were compared, and {checked.why}"
    return Fix(id=number, diff=made.diff, verified=checked.result == "identical", why=checked.why)


def _changed_functions(old: str, new: str) -> str | None:
    """The functions of another cell that a rewrite changes; None where it changes anything else there."""
    masked = [mask(source) for source in (old, new)]
    if any(isinstance(item, Declined) for item in masked):
        return None
    from ..rewrite.control_flow import FLOW_IMPORT

    imported = (FLOW_IMPORT, "import grape")  # by rewrites
    before, after = (ast.parse(item.text).body for item in masked if not isinstance(item, Declined))
    known = {ast.unparse(item) for item in before}
    support = [item for item in after if (text := ast.unparse(item)) in imported and text not in known]
    after = [item for item in after if item not in support]
    if len(before) != len(after):
        return None
    changed = [ast.unparse(item) for item in support]
    for one, other in zip(before, after, strict=True):
        if ast.unparse(one) == ast.unparse(other):
            continue
        if not isinstance(one, ast.FunctionDef) or not isinstance(other, ast.FunctionDef) or one.name != other.name:
            return None
        changed.append(ast.unparse(other))
    return "\n".join(changed) if len(changed) > len(support) else None


def _with_shapes(evidence: CellEvidence, finding: Finding) -> Finding:
    """A finding about a mask with the shapes of tensor and mask, each time the line wrote or read through one."""
    if finding.code not in ("GR103", "GR401") or finding.at is None:
        return finding
    found, dtypes = [], set()
    for op in (op for _, trace in evidence.all_traces() for op in trace.ops):
        at = op.inner if op.inner is not None and op.inner.file == finding.at.file else op.user
        if line_of(at) != line_of(finding.at) or not op.name.startswith(_MASKED):
            continue
        views: list[TensorView] = list(op.tensors())[:2]
        if len(views) < 2 or views[1].dtype != "bool":
            return finding
        dtypes.add(views[0].dtype)
        found.append(tuple(tuple(view.shape) for view in views))
    if not found:
        return finding
    seen = (("operand_shapes", tuple(dict.fromkeys(found))), ("operand_dtypes", tuple(sorted(dtypes))))
    return replace(finding, evidence=(*finding.evidence, *seen))
