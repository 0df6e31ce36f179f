"""GR402: other operators ran in the capture than eagerly."""

from __future__ import annotations

from grape.advisor.rules.gr4xx import gr402
from grape.model import Reason, Refused
from tests.unit.trace_builder import at, cell, region


def test_a_refusal_names_the_line_and_keeps_its_evidence() -> None:
    evidence = (("captured", "aten.triu.default"),)
    refused = Refused.because(Reason.DIVERGED, at(12), difference="expected a, found b", evidence=evidence)
    (finding,) = gr402.check(cell(region(outcome="refused", refused=refused)))
    assert finding.message == (
        "`step` stays eager: the capture ran other operators than the eager call: expected a, found b"
    )
    assert (finding.at, finding.severity) == (at(12), "blocker")
    assert finding.evidence == (("refused", "DIVERGED"), *evidence)


def test_other_refusals_are_not_this() -> None:
    refused = Refused.because(Reason.DEVICES, devices="cuda:0, cuda:1")
    assert not list(gr402.check(cell(region(outcome="refused", refused=refused), region("other"))))


QUESTION = """\
def step(x):
    y = x + 1
    if torch.cuda.is_current_stream_capturing():
        y = y * 2
    return y
"""


def test_the_line_that_asks_is_the_one_to_change() -> None:
    refused = Refused.because(Reason.DIVERGED, at(5, function="step"), difference="other operators")
    (finding,) = gr402.check(cell(region(outcome="refused", refused=refused), source=QUESTION))
    assert finding.at is not None and finding.at.line == 3
    assert finding.advice == (
        "do not ask `torch.cuda.is_current_stream_capturing()` here; choose the eager way by an argument"
    )
    assert dict(finding.evidence)["differs_at"] == "In[4], line 5"


def test_where_two_lines_ask_nobody_knows_which_decided() -> None:
    source = QUESTION.replace("    return y", "    if torch.compiler.is_compiling():\n        y = y * 3\n    return y")
    refused = Refused.because(Reason.DIVERGED, at(5, function="step"), difference="other operators")
    (finding,) = gr402.check(cell(region(outcome="refused", refused=refused), source=source))
    assert finding.at is not None and finding.at.line == 5
