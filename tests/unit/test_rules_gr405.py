"""GR405: something that cannot be captured, by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from grape.advisor.rules.gr4xx import gr405
from grape.model import Reason, Refused, Trace
from tests.unit.trace_builder import at, cell, region, trace

NO_GRAD = "if the gradients are not used, call `step` under `torch.inference_mode()` or `torch.no_grad()`"


def test_a_region_that_needs_gradients() -> None:
    refused = Refused.because(Reason.NEEDS_GRADIENTS, more="")
    (finding,) = gr405.check(cell(region(outcome="refused", refused=refused, traces=(trace(needs_grad=True),))))
    assert finding.message == "`step` stays eager: its results need gradients"
    assert (finding.severity, finding.advice) == ("blocker", NO_GRAD)


def test_the_advice_stays_where_a_later_cell_traced_nothing() -> None:
    refused = Refused.because(Reason.NEEDS_GRADIENTS, more="")
    (finding,) = gr405.check(cell(region(outcome="refused", refused=refused, traces=())))
    assert finding.advice == NO_GRAD


@pytest.mark.parametrize("traces", [(trace(needs_grad=True),), ()], ids=["traced", "a later run"])
def test_what_a_region_records_inside_of_one_that_does_is_the_same_finding(traces: tuple[Trace, ...]) -> None:
    refused = Refused.because(Reason.NEEDS_GRADIENTS, more="")
    outer = region("Net", outcome="refused", refused=refused, traces=traces)
    inner = region("Dropout", outcome="refused", refused=refused, traces=traces, parent="Net")
    between = region("Block", outcome="replayed", parent="Net")  # in calls that need no gradients
    deep = region("Mix", outcome="refused", refused=refused, traces=traces, parent="Block")
    (finding,) = gr405.check(cell(outer, inner, between, deep))
    assert finding.region == "Net"


def test_a_loop_is_put_under_no_grad() -> None:
    refused = Refused.because(Reason.NEEDS_GRADIENTS, more="")
    loop = region("loop at line 2", outcome="refused", refused=refused, loop_line=2)
    (finding,) = gr405.check(cell(loop))
    assert finding.advice == "if the gradients are not used, put the loop at line 2 under `with torch.no_grad():`"


def test_its_refusal_is_the_same_cause() -> None:
    refused = Refused.because(Reason.OWN_GRADIENT)
    (finding,) = gr405.check(cell(region(outcome="refused", refused=refused, traces=(trace(needs_grad=True),))))
    assert finding.message == (
        "`step` stays eager: an argument or a result that is no parameter has a gradient of its own"
    )
    assert finding.advice == NO_GRAD


def test_a_named_operator() -> None:
    refused = Refused.because(Reason.HIDDEN_KERNEL, at(4), operator="own.foobar.default")
    (finding,) = gr405.check(cell(region(outcome="refused", refused=refused, traces=(trace(),))))
    assert "torch does not show the Python code of own.foobar.default" in finding.message and finding.at == at(4)
    assert finding.advice == "move what is named out of it, or leave it: it runs as you wrote it"


def test_gradients_do_not_matter_where_another_code_refused() -> None:
    refused = Refused.because(Reason.CHANGES, changed="self.steps")
    region_ = region(outcome="refused", refused=refused, traces=(trace(needs_grad=True),))
    assert not list(gr405.check(cell(region_)))


def test_a_step_that_trains_is_no_finding_by_itself() -> None:
    assert not list(gr405.check(cell(region(outcome="observed", traces=(trace(needs_grad=True),)))))


def test_a_step_that_trains_and_draws_other_numbers_gets_the_advice_for_that() -> None:
    refused = Refused.because(Reason.REPLAY_DRAWS)
    (finding,) = gr405.check(cell(region(outcome="refused", refused=refused, traces=(trace(needs_grad=True),))))
    assert finding.advice == "move what is named out of it, or leave it: it runs as you wrote it"


def test_a_replayed_region_and_one_without_gradients_are_fine() -> None:
    fine = region(outcome="replayed", traces=(trace(needs_grad=True),)), region("other", traces=(trace(),))
    assert not list(gr405.check(cell(*fine)))


@pytest.mark.parametrize(
    ("refused", "advice"),
    [
        (
            Refused.because(Reason.REPLAY_DIFFERS, at(3), where="`result[0]`", because=""),
            "nothing is to change: results stay those of eager",
        ),
        (Refused.because(Reason.STATE_SIZE, at(3), what="ticks"), "pass the values that it needs as arguments"),
        (Refused.because(Reason.ON_THE_CPU, at(3)), "move the model and its inputs to the GPU: `.to('cuda')`"),
        (
            Refused.because(Reason.MODE, at(3), mode="torch.vmap"),
            "move what is named out of it, or leave it: it runs as you wrote it",
        ),
    ],
)
def test_the_advice_is_that_for_the_reason(refused: Refused, advice: str) -> None:
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
    recording = region(traces=(trace(needs_grad=True),), refused=Refused.because(Reason.NEEDS_GRADIENTS, more=""))
    (finding,) = gr405.check(cell(replace(recording, outcome="refused"), source="def step(x):\n" + body))
    assert finding.advice is not None and finding.advice.startswith(advice)


def test_a_module_that_a_training_function_of_another_cell_calls_needs_its_gradients() -> None:
    refused = Refused.because(Reason.NEEDS_GRADIENTS, more="")
    inner = region("Net (net)", line=3, traces=(trace(needs_grad=True),), refused=refused, outcome="refused")
    inner = replace(inner, at=replace(inner.at, file="In[2]"))
    train = "def train(xs):\n    for x in xs:\n        loss = net(x)\n        loss.backward()\n"
    for text, advice in (
        (train, "its gradients are used outside of it"),
        (train.replace("        loss.backward()\n", "") + "loss.backward()\n", "if the gradients are not used"),
    ):
        (finding,) = gr405.check(replace(cell(inner, source="train(xs)"), sources=(("In[2]", text),)))
        assert finding.advice is not None and finding.advice.startswith(advice)


def test_a_module_inside_of_one_that_is_trained_needs_its_gradients() -> None:
    refused = Refused.because(Reason.NEEDS_GRADIENTS, more="")
    outer = region("Net (net)", line=3, outcome="observed", calls=3)
    inner = region("Linear", line=9, traces=(trace(needs_grad=True),), refused=refused, outcome="refused")
    inner = replace(inner, parent="Net (net)", at=replace(inner.at, file="In[2]"))
    train = "def train(xs):\n    for x in xs:\n        net(x).backward()\n"
    (finding,) = gr405.check(cell(outer, inner, source=train))
    assert finding.advice is not None and finding.advice.startswith("its gradients are used outside of it")


def test_a_region_inside_of_one_that_records_gradients_is_the_same_finding() -> None:
    refused = Refused.because(Reason.NEEDS_GRADIENTS, more="")
    fields = {"traces": (trace(needs_grad=True),), "refused": refused, "outcome": "refused"}
    inner = region("Net (net)", line=7, parent="step", **fields)
    found = list(gr405.check(cell(region("step", line=2, **fields), inner)))
    assert [finding.region for finding in found] == ["step"]
