"""GR403: a Python number that reaches an operator changes from call to call."""

from __future__ import annotations

from dataclasses import replace

import pytest

from grape.advisor.rules.gr1xx import gr101
from grape.advisor.rules.gr4xx import gr403
from grape.model import Reason, Refused, ScalarChange
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
    refused = Refused.because(Reason.NUMBER_CHANGES, at(3), operator="aten.add.Tensor")
    (finding,) = gr403.check(cell(region(outcome="refused", refused=refused, scalar_changes=(CHANGE,))))
    assert finding.severity == "blocker"


def test_a_refusal_elsewhere_is_a_finding_of_its_own() -> None:
    refused = Refused.because(Reason.NUMBER_CHANGES, at(9), operator="aten.roll.default")
    findings = list(gr403.check(cell(region(outcome="refused", refused=refused, scalar_changes=(CHANGE,)))))
    assert [finding.at for finding in findings] == [at(3), at(9)]


def test_constant_scalars_are_no_finding() -> None:
    assert not list(gr403.check(cell(region())))


def test_the_step_of_an_optimizer_has_advice_of_its_own() -> None:
    source = "def step(x):\n    loss.backward()\n    optimizer.step()\n"
    (finding,) = gr403.check(cell(region(scalar_changes=(CHANGE,)), source=source))
    assert finding.advice is not None
    assert finding.advice.startswith(
        "give the optimizer `fused=True` (Adam, AdamW, SGD) or `capturable=True`: then the step"
    )
    assert finding.by_hand and not finding.fixable, "no rewrite knows it: there is no difference to be shown"
    (other,) = gr403.check(cell(region(scalar_changes=(CHANGE,)), source="def step(x):\n    pass\n    x.mul_(k)\n"))
    assert other.fixable
    assert other.advice is not None
    assert other.advice.startswith("keep the number in a tensor on the device")


def test_the_step_of_a_sampler_is_none_of_an_optimizer() -> None:
    source = "def step(x):\n    t = t + 1\n    x = sampler.step(net(x, t), t, x)\n"
    (finding,) = gr403.check(cell(region(scalar_changes=(CHANGE,)), source=source))
    assert finding.advice is not None and finding.advice.startswith("keep the number in a tensor on the device")


def test_a_name_on_the_line_of_a_step_has_no_advice_for_optimizers() -> None:
    refused = Refused.because(Reason.NAME_CHANGES, at(1), argument="i")
    source = "for i in range(9): net(x * i).backward(); optimizer.step()\n"
    (finding,) = gr403.check(cell(region(outcome="refused", refused=refused), source=source))
    assert finding.advice is not None
    assert finding.advice.startswith("keep the number in a tensor on the device")


INDEXES = {
    "in a line with others": (
        "for i in range(0, 80, 8):\n    y = net(X[i : i + 8])\n    z = y.exp()\n",
        "take `X[i : i + 8]` in a line of its own, so that what works with it replays",
    ),
    "through another index": (
        "for i in range(0, 80, 8):\n    y = net(X[perm[i : i + 8]])\n",
        "take `X[perm[i : i + 8]]` in a line of its own, so that what works with it replays",
    ),
    "and a number": ("for i in range(9):\n    y = net(X[i]) * i\n", None),
    "of what a call returns": (
        "for i in range(9):\n    x = load()[i]\n    y = net(x)\n",
        "take `load()[i]` in a line of its own, so that what works with it replays",
    ),
}


@pytest.mark.parametrize("name", INDEXES)
def test_a_number_that_only_indexes_is_not_to_be_a_tensor(name: str) -> None:
    source, advice = INDEXES[name]
    refused = Refused.because(Reason.NAME_CHANGES, at(2), argument="i")
    part = region("loop at line 1", line=2, end_line=3, loop_line=1, outcome="refused", refused=refused)
    (finding,) = gr403.check(cell(part, source=source))
    assert finding.advice is not None
    assert finding.severity == "blocker"
    if advice is None:
        assert finding.advice.startswith("keep the number in a tensor on the device")
    else:
        assert finding.advice == advice


def test_a_slice_beside_a_loop_that_replays_is_a_hint() -> None:
    source = "for i in range(0, 80, 8):\n    x, y = X[i : i + 8], Y[i : i + 8]\n    z = net(x) - y\n"
    refused = Refused.because(Reason.NAME_CHANGES, at(2), argument="i")
    whole = region("loop at line 1", line=2, end_line=3, loop_line=1, outcome="refused", refused=refused)
    rest = region("loop at line 1 #2", line=3, end_line=3, loop_line=1, outcome="replayed", replays=8)
    (finding,) = gr403.check(cell(whole, rest, source=source))
    assert (finding.severity, finding.advice) == ("hint", None)
    assert finding.message == (
        "`X[i : i + 8]` and `Y[i : i + 8]` run as written, because `i` changes; the rest of the loop replays"
    )


DECIDES = {
    "if step % 10 == 0:\n        i, j = neighbours(x)": "`if step % 10 == 0` runs as written, because `step` changes; "
    "the rest of the loop replays",
    "if step % 10 == 0:\n        y = net(x * step)": None,
    "z = neighbours(x) if step > 5 else z": "`if step > 5` runs as written, because `step` changes; "
    "the rest of the loop replays",
}


@pytest.mark.parametrize("statement", DECIDES)
def test_a_number_that_only_decides_what_runs_is_not_to_be_a_tensor(statement: str) -> None:
    source = f"for step in range(80):\n    {statement}\n    x = net(x)\n"
    end = source.count("\n") - 1
    refused = Refused.because(Reason.NAME_CHANGES, at(2), argument="step")
    whole = region("loop at line 1", line=2, end_line=end, loop_line=1, outcome="refused", refused=refused)
    rest = region("loop at line 1 #2", line=end + 1, end_line=end + 1, loop_line=1, outcome="replayed", replays=8)
    message = DECIDES[statement]
    (finding,) = gr403.check(cell(whole, rest, source=source))
    if message is None:
        assert finding.advice is not None and finding.advice.startswith("keep the number in a tensor on the device")
    else:
        assert (finding.severity, finding.message, finding.advice) == ("hint", message, None)
    (alone,) = gr403.check(cell(whole, source=source))
    assert alone.severity == "blocker", "nothing of the loop replays"
    assert message is None or alone.advice == (
        "leave it: `step` only decides what runs, and what stands behind that can replay by itself"
    )


def test_a_function_that_indexes_with_its_argument_gets_the_slice_instead() -> None:
    source = "def step(i):\n    return net(X[i : i + 8])\nfor i in range(0, 80, 8):\n    step(i)\n"
    refused = Refused.because(Reason.ARGUMENT_CHANGES, at(1), argument="args[0][0]")
    (finding,) = gr403.check(cell(region(line=1, end_line=2, outcome="refused", refused=refused), source=source))
    assert finding.advice == "take `X[i : i + 8]` before the call, and pass that instead of `i`"


MADE = {
    "opt = optim.Adam(net.parameters(), lr=1e-3)": "opt = optim.Adam(net.parameters(), lr=1e-3, fused=True)",
    "opt = AdamW(net.parameters(), foreach=True)": "opt = AdamW(net.parameters(), fused=True)",
    "self.opt = optim.RMSprop(groups)": "self.opt = optim.RMSprop(groups, capturable=True)",
    "opt = Adam(p, fused=True)": None,
    "opt = Adam(p, **options)": None,
    "opt = Adam(p)\nopt = SGD(p)": None,
    "opt = Muon(p)": None,
    "other = Adam(p)": None,
}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("call", ["opt.step()", "scaler.step(opt)", "self.opt.step()"])
def test_the_line_that_makes_the_optimizer_is_shown_as_it_has_to_be(made: str, call: str) -> None:
    source = f"def step(x):\n    loss.backward()\n    {call}\n"
    evidence = cell(region(scalar_changes=(CHANGE,)), source=source, sources=(("In[1]", made),))
    (finding,) = gr403.check(evidence)
    written = MADE[made]
    assert finding.advice is not None
    assert finding.advice.startswith(f"write `{written}`: then" if written else "give the optimizer `fused=True`")


@pytest.mark.parametrize("call", ["opt.step(closure)", "opt.step(lambda: closure(x))", "scaler.step(opt)"])
def test_an_optimizer_that_has_no_such_line_gets_none(call: str) -> None:
    source = f"opt = torch.optim.LBFGS([x], max_iter=6)\ndef closure():\n    return loss(x)\n{call}\n"
    (finding,) = gr403.check(cell(region(scalar_changes=(replace(CHANGE, at=at(4)),)), source=source))
    assert finding.advice == (
        "leave it: `LBFGS` takes neither `fused=True` nor `capturable=True`, its numbers are the host's"
    )


def test_an_optimizer_whose_step_takes_a_closure_is_found() -> None:
    source = "opt = Adam([x])\ndef closure():\n    return loss(x)\nopt.step(closure)\n"
    (finding,) = gr403.check(cell(region(scalar_changes=(replace(CHANGE, at=at(4)),)), source=source))
    assert finding.advice is not None and finding.advice.startswith("write `opt = Adam([x], fused=True)`")


def test_a_host_read_in_an_optimizers_step_has_the_same_advice() -> None:
    refused = Refused.because(Reason.HOST_READ, at(3), what="a number of a tensor")
    source = "opt = Adam(p)\nfor x in xs:\n    opt.step()\n"
    (finding,) = gr101.check(cell(region(outcome="refused", refused=refused), source=source))
    assert finding.advice is not None and finding.advice.startswith("write `opt = Adam(p, fused=True)`")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("opt = torch.optim.AdamW(p)", "AdamW's step counter lives on the CPU"),
        ("opt = Lion(p)", "it reads a number from a tensor that each call changes"),
        ("opt = SGD(p)", "it reads a number from a tensor that each call changes"),
    ],
)
def test_an_optimizer_that_counts_its_steps_is_named(made: str, said: str) -> None:
    refused = Refused.because(Reason.CHANGED_NUMBER, at(3))
    source = f"{made}\nfor x in xs:\n    opt.step()\n"
    (finding,) = gr403.check(cell(region(outcome="refused", refused=refused), source=source))
    assert finding.message == f"`step` stays eager: {said}"
