"""The report of a cell that is not looked at any more: what is known of it, and what this run took."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ...failures import failure_notes
from ...model import CellEvidence, Finding, MemoryCurve
from ...model.codes import ONCE
from ...render import Report, build_report
from ..streamed.stream_evidence import findings_beside
from .told import evidence_as, findings_as

if TYPE_CHECKING:
    from ..engine import Engine
    from .history import Past

_LOOKED_AT = "looked at in run {runs}; since then {stance}; %grape reset has it looked at again"
_RECALLED = "known from %grape recall; {stance}; %grape reset has it looked at"


def why_no_graphs(past: Past) -> str:
    """Why graphs do not serve a cell that was left; why streams do not, where regions have not looked at it."""
    if past.evidence.engine == "streams" and past.streamless is not None:
        return past.streamless
    return past.why or ("graphs were not waited for" if past.outbid else "nothing in it gets faster")


def evidence_again(past: Past, name: str, *, stance: str, wall_ms: float, error: str | None) -> CellEvidence:
    """The evidence of the last watched run, as of a run of the cell that is called `name` now. `stance`: what serves
    it.
    """
    return replace(
        evidence_as(past.evidence, name, traces=False),
        wall_ms=wall_ms,
        error=error,
        notes=((_RECALLED if past.recalled else _LOOKED_AT).format(runs=past.runs, stance=stance), *failure_notes()),
        captured_at_ms=(),
        memory=MemoryCurve(),
        as_written=None,
        engine="regions",
        streams=(),
    )


def report_again(
    owner: Engine,
    past: Past,
    evidence: CellEvidence,
    namespace: dict[str, object] | None,
    more: Iterable[Finding] = (),
) -> Report:
    """The report made of `evidence`, with findings and fixes of the run that was watched, and `more` of this one."""
    from ...fixing.later import FixesLater

    name, error = evidence.file, evidence.error
    known = [finding for finding in past.findings if finding.code not in ONCE]
    findings = findings_beside(findings_as(known, past.evidence.file, name), more)
    fixes = FixesLater(
        lambda: evidence_as(replace(past.evidence, error=error), name, traces=True),
        findings,
        namespace,
        busy=lambda: owner.session is not None,
    )
    report = owner.report = build_report(evidence, findings, fixes)
    return report
