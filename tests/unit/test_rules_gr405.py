"""GR405: something that cannot be captured, by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from grape.advisor.rules import gr405
from grape.model import Refused
from tests.unit.trace_builder import at, cell, region, trace

NO_GRAD = "if the gradients are not used, call `step` under `torch.inference_mode()` or `torch.no_grad()`"


def test_a_region_that_needs_gradients() -> None:
    refused = Refused(code="GR405", why="its results need gradients")
    (finding,) = gr405.check(cell(region(outcome="refused", refused=refused, traces=(trace(needs_grad=True),))))
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


def test_a_step_that_trains_is_no_finding_by_itself() -> None:
    assert not list(gr405.check(cell(region(outcome="observed", traces=(trace(needs_grad=True),)))))


def test_a_step_that_trains_and_draws_other_numbers_gets_the_advice_for_that() -> None:
    refused = Refused(code="GR405", why="the replay consumed another random stream than the eager call")
    (finding,) = gr405.check(cell(region(outcome="refused", refused=refused, traces=(trace(needs_grad=True),))))
    assert finding.advice == "move what is named out of the region, or leave the region eager"


def test_a_replayed_region_and_one_without_gradients_are_fine() -> None:
    fine = region(outcome="replayed", traces=(trace(needs_grad=True),)), region("other", traces=(trace(),))
    assert not list(gr405.check(cell(*fine)))


@pytest.mark.parametrize(
    ("why", "advice"),
    [
        ("the replay's result[0] differs from the eager result", "nothing is to change: results stay those of eager"),
        ("ticks holds more state than can be guarded", "pass the values that it needs as arguments"),
        ("its tensors are in CPU memory: move the model", "move the model and its inputs to the GPU: `.to('cuda')`"),
        ("a torch.vmap is active", "move what is named out of the region, or leave the region eager"),
    ],
)
def test_the_advice_is_that_for_the_reason(why: str, advice: str) -> None:
    refused = Refused(code="GR405", why=why, at=at(3))
    (finding,) = gr405.check(cell(region(outcome="refused", refused=refused)))
    assert finding.advice is not None and finding.advice.startswith(advice)


@pytest.mark.parametrize(
    ("body", "advice"),
    [
        ("    loss = net(x)\n    loss.backward()\n", "its gradients are used outside of it"),
        ("    return torch.autograd.grad(net(x), x)\n", "its gradients are used outside of it"),
        ("    return net(x)\n", "if the gradients are not used, call `step` under"),
    ],
)
def test_gradients_that_are_used_are_no_mistake(body: str, advice: str) -> None:
    recording = region(
        traces=(trace(needs_grad=True),), refused=Refused(code="GR405", why="its results need gradients")
    )
    (finding,) = gr405.check(cell(replace(recording, outcome="refused"), source="def step(x):\n" + body))
    assert finding.advice is not None and finding.advice.startswith(advice)


def test_a_module_that_a_training_function_of_another_cell_calls_needs_its_gradients() -> None:
    refused = Refused(code="GR405", why="its results need gradients")
    inner = region("Net (net)", line=3, traces=(trace(needs_grad=True),), refused=refused, outcome="refused")
    inner = replace(inner, at=replace(inner.at, file="In[2]"))
    train = "def train(xs):\n    for x in xs:\n        loss = net(x)\n        loss.backward()\n"
    for text, advice in (
        (train, "its gradients are used outside of it"),
        (train.replace("        loss.backward()\n", "") + "loss.backward()\n", "if the gradients are not used"),
    ):
        (finding,) = gr405.check(replace(cell(inner, source="train(xs)"), sources=(("In[2]", text),)))
        assert finding.advice is not None and finding.advice.startswith(advice)


def test_a_region_inside_of_one_that_records_gradients_is_the_same_finding() -> None:
    refused = Refused(code="GR405", why="its results need gradients")
    fields = {"traces": (trace(needs_grad=True),), "refused": refused, "outcome": "refused"}
    inner = region("Net (net)", line=7, parent="step", **fields)
    found = list(gr405.check(cell(region("step", line=2, **fields), inner)))
    assert [finding.region for finding in found] == ["step"]
