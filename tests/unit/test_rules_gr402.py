"""GR402: other operators ran in the capture than eagerly."""

from __future__ import annotations

from grape.advisor.rules import gr402
from grape.model import Refused
from tests.unit.trace_builder import at, cell, region


def test_a_refusal_names_the_line_and_keeps_its_evidence() -> None:
    why = "the capture ran aten.triu.default where eager ran aten.add.Tensor"
    refused = Refused(code="GR402", why=why, at=at(12), evidence=(("captured", "aten.triu.default"),))
    (finding,) = gr402.check(cell(region(outcome="refused", refused=refused)))
    assert finding.message == f"`step` stays eager: {why}"
    assert (finding.at, finding.severity, finding.evidence) == (at(12), "blocker", (("captured", "aten.triu.default"),))


def test_other_refusals_are_not_this() -> None:
    refused = Refused(code="GR405", why="a second device")
    assert not list(gr402.check(cell(region(outcome="refused", refused=refused), region("other"))))
