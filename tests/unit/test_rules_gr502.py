"""GR502: operators that need nothing of each other, one behind the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from grape.advisor.rules.gr5xx import gr502
from grape.model import OpRecord, Trace
from grape.model.overlap import Overlapped, expected_gain, longest_chain, plan_overlap
from tests.unit.trace_builder import cell, op, region, trace, view


def make(made: int, *given: int, kind: str = "compute", written: tuple[int, ...] = ()) -> OpRecord:
    one = op("aten.mm.default", kind, args=[view(number) for number in given], outputs=[view(made)], born=[made])
    return replace(one, written=written)


def towers(height: int = 5, count: int = 3) -> list[OpRecord]:
    """Storage 0 goes into each tower."""
    ops = []
    for tower in range(count):
        for level in range(height):
            made = 1 + tower * height + level
            ops.append(make(made, made - 1 if level else 0))
    return ops


def built(*ops: OpRecord, needs_grad: bool = False) -> Trace:
    return trace(*ops, arguments=(0,), needs_grad=needs_grad)


def test_towers_get_a_lane_each_and_join() -> None:
    plan = plan_overlap(built(*towers(), make(16, 5, 10, 15)))
    assert plan is not None
    assert (plan.lanes, plan.operators, plan.chain) == (3, 16, 6)
    assert {plan.lane[ordinal] for ordinal in range(5)} == {0}
    assert plan.waits == {15: (14, 9)}
    assert plan.held == {9, 14}


def test_a_chain_has_no_plan() -> None:
    assert plan_overlap(built(*towers(20, 1))) is None
    assert expected_gain(built(*towers(20, 1))) == 1.0 and longest_chain(built(*towers(20, 1))) == 20


def test_what_writes_waits_for_who_reads() -> None:
    """Two towers read storage 1, which is changed in place behind them: a third may read it only then."""
    ops = [make(1, 0), *(make(2 + n, 1) for n in range(8))]
    change = replace(op("aten.add_.Tensor", args=[view(1)], outputs=[view(1)]), written=(1,))
    plan = plan_overlap(built(*ops, change, *(make(20 + n, 1) for n in range(8))))
    assert plan is not None
    lane, waits = plan.lane, plan.waits
    before = {plan.lane[n]: n for n in range(1, 9)}
    others = {n for one, n in before.items() if one != lane[9]}
    assert set(waits[9]) == others
    assert all(
        n == 9 or lane[n] == lane[9] or 9 in waits.get(n, ()) or later_waits(plan.lane, waits, n) for n in range(10, 18)
    )


def later_waits(lane: object, waits: object, number: int) -> bool:
    """An operator before it in its lane has waited."""
    assert isinstance(lane, dict) and isinstance(waits, dict)
    return any(9 in waits.get(n, ()) for n in range(10, number) if lane[n] == lane[number])


def test_memory_is_free_once_its_own_lane_has_waited() -> None:
    """Storage 1 is read by both towers; its own lane waits for the other where they join, and goes on behind that."""
    left, right = (
        [make(2, 1), *(make(n, n - 1) for n in range(3, 8))],
        [make(12, 1), *(make(n, n - 1) for n in range(13, 18))],
    )
    plan = plan_overlap(built(make(1, 0), *left, *right, make(20, 7, 17), make(21, 20), make(22, 21)))
    assert plan is not None and plan.lanes == 2
    join = 13
    other = next(number for number in (6, 12) if plan.lane[number] != plan.lane[join])
    assert plan.waits[join] == (other,)
    if plan.lane[0] == plan.lane[join]:
        assert 0 in plan.freed[join]
    assert all(ordinal > made for ordinal, freed in plan.freed.items() for made in freed)


@pytest.mark.parametrize("kind", ["random", "dynamic", "transfer-out", "host-random"])
def test_no_plan_where_it_could_not_be_right(kind: str) -> None:
    assert plan_overlap(built(*towers(), make(16, 5, kind=kind))) is None
    assert plan_overlap(built(*towers(), needs_grad=True)) is None
    assert plan_overlap(built(*towers(), make(16, 5, written=(0,)))) is None


def test_a_constant_is_there_before_it_is_read() -> None:
    """It is brought to the device on the stream of the capture, and its memory is that stream's."""
    lift = make(1, kind="view")
    ops = [lift, *towers(5, 3)[1:], *(make(20 + n, 1) for n in range(8))]
    plan = plan_overlap(built(*ops))
    assert plan is not None and plan.lane[0] == 0 and 0 in plan.held
    for lane in range(1, plan.lanes):
        first = min((n for n in range(15, 23) if plan.lane[n] == lane), default=None)
        assert first is None or any(0 in plan.waits.get(n, ()) for n in range(first + 1) if plan.lane[n] == lane)


def test_an_operator_that_is_none_of_torch_comes_where_it_stands() -> None:
    """It may write memory of its own that the next one reads."""
    foreign = replace(make(16, 0), name="mine.keeps.default")
    plan = plan_overlap(built(*towers(), foreign, *(make(20 + n, 0) for n in range(9))))
    assert plan is not None and plan.lane[15] == 0
    assert {plan.lane[n] for n in plan.waits[15]} == {1, 2}


def test_factorizations_keep_their_order() -> None:
    ops = [replace(make(1 + n, 0), name="aten.linalg_cholesky_ex.default") for n in range(4)]
    plan = plan_overlap(built(*ops, *towers()[5:]))
    assert plan is not None and [plan.lane[n] for n in range(4)] == [0, 0, 0, 0]


def test_no_plan_where_memory_grows() -> None:
    """A block is given up, and another one taken, inside of an operator that may be in another lane."""
    larger = replace(op("aten.resize_.default", args=[view(5)], outputs=[view(5, (64, 64))]), written=(5,))
    same = replace(op("aten.add_.Tensor", args=[view(5)], outputs=[view(5)]), written=(5,))
    assert plan_overlap(built(*towers(), same)) is not None
    assert plan_overlap(built(*towers(), larger)) is None


def test_an_operator_alone_comes_behind_all_and_before_all() -> None:
    plan = plan_overlap(built(*towers(), make(16, 0), *(make(20 + n, 0) for n in range(9))), alone=(15,))
    assert plan is not None and plan.lane[15] == 0
    assert {plan.lane[n] for n in plan.waits[15]} == {1, 2}
    for lane in range(1, plan.lanes):
        first = min((n for n in range(16, 25) if plan.lane[n] == lane), default=None)
        assert first is None or 15 in plan.waits[first]


def test_branches_that_were_measured_are_told() -> None:
    found = Overlapped(operators=312, chain=158, lanes=4, chained_ms=1.8, branched_ms=1.2, applied=True)
    (finding,) = gr502.check(cell(region(outcome="replayed", overlapped=found)))
    assert finding.message == (
        "operators of `step` run beside each other in its graph: 312 in 4 lanes, 1.50x faster on the device "
        "(1.8 ms -> 1.2 ms)"
    )
    assert (finding.severity, finding.advice) == ("hint", None)
    lost = replace(found, applied=False)
    assert not list(gr502.check(cell(region(outcome="replayed", overlapped=lost))))


def test_a_call_that_records_gradients_hears_why_it_has_none() -> None:
    (finding,) = gr502.check(cell(region(traces=(built(*towers(), needs_grad=True),), outcome="replayed")))
    assert finding.message == (
        "operators of `step` that need nothing of each other wait for each other: of 15 the longest chain has 5, and "
        "its graph has no branches, because the call records gradients"
    )
    assert finding.advice == "where nobody asks for them, call it under `torch.no_grad()`"
    assert dict(finding.evidence)["expected_at_most"] == pytest.approx(3, rel=0.05)
    (drawn,) = gr502.check(cell(region(traces=(built(*towers(), make(16, 0, kind="random")),), outcome="replayed")))
    assert drawn.message.endswith("because the call draws random numbers")
    (written,) = gr502.check(cell(region(traces=(built(*towers(), make(16, 0, written=(0,))),), outcome="replayed")))
    assert written.message.endswith("because the call writes a tensor from outside") and written.advice is None


def test_says_nothing_of_chains_of_plain_calls_and_without_cuda() -> None:
    grads = built(*towers(20, 1), needs_grad=True)
    assert not list(gr502.check(cell(region(traces=(grads,), outcome="replayed"))))
    assert not list(gr502.check(cell(region(traces=(built(*towers()),), outcome="replayed"))))
    branched = built(*towers(), needs_grad=True)
    assert not list(gr502.check(cell(region(traces=(branched,), outcome="replayed"), cuda=False)))
    assert not list(gr502.check(cell(region(traces=(branched,), outcome="observed"))))


CELLS = {
    "cuda_heads_with_dropout": '''"""Heads of a detector on one trunk, dropout left on while nothing is trained."""
# device: cuda
# regions: step
# launch-us: 8
# kernel-us: 8
# %% setup
import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda:0")
heads = [nn.Sequential(*(nn.Linear(64, 64) for _ in range(6))).to(device) for _ in range(4)]

def step(x):  # GR502
    return [head(F.dropout(x, 0.1, True)) for head in heads]

x = torch.zeros(8, 64, device=device)
# %% cell
with torch.no_grad():
    for _ in range(1000):
        scores = step(x)
''',
    "cuda_towers_noise": '''"""Two towers whose inputs are disturbed."""
# device: cuda
# regions: match
# launch-us: 8
# kernel-us: 8
# %% setup
import torch
from torch import nn

device = torch.device("cuda:0")
query, item = (nn.Sequential(*(nn.Linear(64, 64) for _ in range(10))).to(device) for _ in range(2))

def match(a, b):  # GR502
    return (query(a + 0.01 * torch.randn_like(a)) * item(b + 0.01 * torch.randn_like(b))).sum(-1)

a, b = torch.zeros(16, 64, device=device), torch.zeros(16, 64, device=device)
# %% cell
with torch.no_grad():
    for _ in range(1000):
        scores = match(a, b)
''',
    "cuda_experts_buffer": '''"""Small experts, the sum of which is kept in a buffer of the caller's."""
# device: cuda
# regions: mix
# launch-us: 8
# kernel-us: 8
# %% setup
import torch
from torch import nn

device = torch.device("cuda:0")
experts = [nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).to(device) for _ in range(6)]
out = torch.zeros(8, 64, device=device)

def mix(x):  # GR502
    for expert in experts:
        out.add_(expert(x))
    return out

x = torch.zeros(8, 64, device=device)
# %% cell
with torch.no_grad():
    for _ in range(1000):
        y = mix(x)
''',
    "cuda_ensemble_dropout": '''"""Monte Carlo dropout over the members of an ensemble."""
# device: cuda
# regions: predict
# launch-us: 8
# kernel-us: 8
# %% setup
import torch
from torch import nn

device = torch.device("cuda:0")
member = (nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
members = [nn.Sequential(*member).to(device) for _ in range(5)]

def predict(x):  # GR502
    return torch.stack([member(x) for member in members]).mean(0)

x = torch.zeros(32, 32, device=device)
# %% cell
with torch.no_grad():
    for _ in range(1000):
        y = predict(x)
''',
    "cuda_chain_dropout": '''"""A chain of layers with dropout: nothing could run beside anything."""
# device: cuda
# near-miss: GR502
# regions: step
# launch-us: 8
# kernel-us: 8
# %% setup
import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda:0")
layers = [nn.Linear(64, 64).to(device) for _ in range(12)]

def step(x):
    for layer in layers:
        x = F.dropout(layer(x), 0.1, True)
    return x

x = torch.zeros(8, 64, device=device)
# %% cell
with torch.no_grad():
    for _ in range(1000):
        y = step(x)
''',
    "cuda_residual_noise": '''"""Residual blocks with noise: none has a branch worth a lane."""
# device: cuda
# near-miss: GR502
# regions: step
# launch-us: 8
# kernel-us: 8
# %% setup
import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda:0")
blocks = [nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).to(device) for _ in range(6)]

def step(x):
    for block in blocks:
        x = x + block(F.dropout(x, 0.1, True))
    return x

x = torch.zeros(8, 64, device=device)
# %% cell
with torch.no_grad():
    for _ in range(1000):
        y = step(x)
''',
}
