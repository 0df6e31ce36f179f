"""GR402 capture-divergence: the code runs other operators while it is captured than it runs eagerly.

Sees: the runtime's refusal after comparing both traces; in the person's own source, the line that asks whether a
capture is under way. Costs: the region stays eager, since a graph of the other operators could be slower (a mask that
eager code skips) or wrong. Fix: let the code not ask whether it is being captured. Wrong when: the question is there
because the eager way cannot be captured; then the region has to stay eager.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ....model import CellEvidence, Finding, Position
from ....model.times.machine import H200, MachineCosts
from ...code.parsed import last_name
from ...code.source import cell_source
from ...refusals import with_refusals

CODE = "GR402"

_ADVICE = (
    "find the branch at that line that asks `is_current_stream_capturing()` or `is_compiling()`, "
    "and choose the eager way by an argument"
)
_ASKED = "do not ask `{0}` here; choose the eager way by an argument"
_QUESTIONS = frozenset({"is_current_stream_capturing", "is_compiling", "is_dynamo_compiling", "is_capturing"})


def check(evidence: CellEvidence, costs: MachineCosts = H200) -> Iterable[Finding]:
    return (_at_question(evidence, finding) for finding in with_refusals(CODE, evidence, (), _ADVICE))


def _at_question(evidence: CellEvidence, finding: Finding) -> Finding:
    """The finding at the one line of the same function that asks, where there is one."""
    asked = tuple(_questions(evidence, finding.at)) if finding.at is not None else ()
    if finding.at is None or len(asked) != 1:
        return finding
    line, question = asked[0]
    return replace(
        finding,
        at=replace(finding.at, line=line, instruction=-1),
        evidence=(*finding.evidence, ("asks", question), ("differs_at", str(finding.at))),
        advice=_ASKED.format(question),
    )


def _questions(evidence: CellEvidence, at: Position) -> Iterator[tuple[int, str]]:
    source = cell_source(evidence)
    for file, function in source.functions(at.function.rpartition(".")[2]):
        if file != at.file:
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and last_name(node.func) in _QUESTIONS:
                yield node.lineno, ast.unparse(node)
