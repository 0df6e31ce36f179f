"""GR405: something that cannot be captured, by name."""

from __future__ import annotations

from grape.advisor.rules import gr405
from grape.model import Refused
from tests.unit.trace_builder import at, cell, region, trace

NO_GRAD = "if the gradients are not used, call `step` under `torch.inference_mode()` or `torch.no_grad()`"


def test_a_region_that_needs_gradients() -> None:
    (finding,) = gr405.check(cell(region(traces=(trace(needs_grad=True),))))
    assert finding.message == "`step` stays eager: its results need gradients"
    assert (finding.severity, finding.advice) == ("blocker", NO_GRAD)


def test_its_refusal_is_the_same_cause() -> None:
    refused = Refused(code="GR405", why="autograd needs the results of this call")
    (finding,) = gr405.check(cell(region(outcome="refused", refused=refused, traces=(trace(needs_grad=True),))))
    assert finding.message == "`step` stays eager: autograd needs the results of this call"
    assert finding.advice == NO_GRAD


def test_a_named_operator() -> None:
    refused = Refused(code="GR405", why="aten._foobar.default runs on a second device", at=at(4))
    (finding,) = gr405.check(cell(region(outcome="refused", refused=refused, traces=(trace(),))))
    assert (finding.message, finding.at) == ("`step` stays eager: aten._foobar.default runs on a second device", at(4))
    assert finding.advice == "move what is named out of the region, or leave the region eager"


def test_gradients_do_not_matter_where_another_code_refused() -> None:
    refused = Refused(code="GR404", why="the call changes self.steps")
    region_ = region(outcome="refused", refused=refused, traces=(trace(needs_grad=True),))
    assert not list(gr405.check(cell(region_)))


def test_a_replayed_region_and_one_without_gradients_are_fine() -> None:
    fine = region(outcome="replayed", traces=(trace(needs_grad=True),)), region("other", traces=(trace(),))
    assert not list(gr405.check(cell(*fine)))
