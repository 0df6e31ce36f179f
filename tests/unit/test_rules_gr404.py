"""GR404: the region writes Python state that a replay would not write."""

from __future__ import annotations

from grape.advisor.rules import gr404
from grape.model import Refused
from tests.unit.trace_builder import at, cell, region


def test_a_refusal_without_a_line_stands_at_the_region() -> None:
    refused = Refused(code="GR404", why="the call changes self.steps")
    (finding,) = gr404.check(cell(region(outcome="refused", refused=refused, line=6)))
    assert finding.message == "`step` stays eager: the call changes self.steps"
    assert (finding.at, finding.severity) == (at(6), "blocker")
    assert finding.advice == (
        "return the state from the call and pass it back in, or keep it in a tensor that is updated in place"
    )


def test_no_refusal_no_finding() -> None:
    assert not list(gr404.check(cell(region(outcome="replayed"))))
