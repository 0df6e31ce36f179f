"""GR403: a Python number that reaches an operator changes from call to call."""

from __future__ import annotations

from grape.advisor.rules import gr403
from grape.model import Refused, ScalarChange
from tests.unit.trace_builder import at, cell, region

CHANGE = ScalarChange(operator="aten.mul.Tensor", values=(("float", 0.9), ("float", 0.81)), at=at(3))


def test_names_operator_and_values() -> None:
    (finding,) = gr403.check(cell(region(scalar_changes=(CHANGE,))))
    assert finding.message == "a Python number that reaches `mul` in `step` changes between calls: 0.9, 0.81"
    assert (finding.at, finding.severity) == (at(3), "costly")
    assert dict(finding.evidence) == {"operator": "aten.mul.Tensor", "values": ("0.9", "0.81"), "distinct": 2}


def test_many_values_are_cut_and_repeated_ones_shown_once() -> None:
    change = ScalarChange(operator="aten.add.Tensor", values=(1, 1, 2, 3, 4, 5), at=None)
    (finding,) = gr403.check(cell(region(scalar_changes=(change,), line=8)))
    assert finding.message.endswith("changes between calls: 1, 2, 3, 4, ...")
    assert finding.at == at(8)


def test_a_refusal_at_that_line_makes_it_a_blocker_and_adds_nothing() -> None:
    refused = Refused(code="GR403", why="a scalar changed", at=at(3))
    (finding,) = gr403.check(cell(region(outcome="refused", refused=refused, scalar_changes=(CHANGE,))))
    assert finding.severity == "blocker"


def test_a_refusal_elsewhere_is_a_finding_of_its_own() -> None:
    refused = Refused(code="GR403", why="the shift of aten.roll.default changed", at=at(9))
    findings = list(gr403.check(cell(region(outcome="refused", refused=refused, scalar_changes=(CHANGE,)))))
    assert [finding.at for finding in findings] == [at(3), at(9)]


def test_constant_scalars_are_no_finding() -> None:
    assert not list(gr403.check(cell(region())))


def test_the_step_of_an_optimizer_has_advice_of_its_own() -> None:
    source = "def step(x):\n    loss.backward()\n    optimizer.step()\n"
    (finding,) = gr403.check(cell(region(scalar_changes=(CHANGE,)), source=source))
    assert finding.advice is not None
    assert finding.advice.startswith("the optimizer keeps these numbers in Python: give it `capturable=True`")
    (other,) = gr403.check(cell(region(scalar_changes=(CHANGE,)), source="def step(x):\n    pass\n    x.mul_(k)\n"))
    assert other.advice is not None
    assert other.advice.startswith("keep the number in a tensor on the device")
