"""GR203: eager code that takes longer when it meets a shape for the first time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from grape.advisor import advise
from grape.advisor.rules.gr2xx import gr203
from grape.fixing.verification import verify
from grape.model import Finding, OpRecord, Position, ShapeCount, Trace
from grape.model.times.cold import cold_operators, may_be_cold
from grape.rewrite import Declined, Rewritten
from grape.rewrite.registry import fix
from scripts.corpus import load, run_cell
from tests.unit.trace_builder import LIBRARY, at, cell, op, region, shapes, trace, view

ATTENTION = "aten._scaled_dot_product_cudnn_attention.default"
INSIDE = Position(file=LIBRARY, line=80, function="attend")


def visit(length: int, ms: float, *, name: str = ATTENTION, line: int = 1, inner: Position | None = None) -> OpRecord:
    return op(name, args=[view(0, (1, length, 8))], line=line, inner=inner, host_ns=int(ms * 1e6))


def step(length: int, first_ms: float, layers: int = 4, **fields: Any) -> Trace:
    """One call: each layer works on the same shape, the first one makes the plan."""
    return trace(visit(length, first_ms, **fields), *(visit(length, 0.1, **fields) for _ in range(layers - 1)))


def lengths(count: int, **fields: Any) -> tuple[ShapeCount, ...]:
    return shapes(*[{"x": (1, n)} for n in range(5, 5 + count)], **fields)


def found(*traces: Trace, new: int = 80, **fields: Any) -> list[Finding]:
    known = region(calls=80, traces=traces, shapes=lengths(new, **fields))
    return list(gr203.check(cell(known, wall_ms=5000.0)))


def test_a_plan_for_each_length() -> None:
    (finding,) = found(step(5, 234.1, inner=INSIDE), step(6, 34.1, inner=INSIDE))
    assert finding.message == (
        "`scaled_dot_product_cudnn_attention` takes 34 ms more the first time that it meets a shape; 80 shapes are new "
        "in this cell: about 2.72 s in all (in attend, somelib/masks.py, line 80)"
    )
    assert finding.advice is not None and finding.advice.startswith("run it under `sdpa_kernel` without cuDNN")
    assert dict(finding.evidence)["in_all_ms"] == pytest.approx(80 * 34.0)
    assert finding.predicted_ms_per_call == pytest.approx(34.0), "per call of the region: each brings a new length"
    assert (finding.at, finding.region) == (at(1), "step")


def test_of_several_traced_calls_the_first_tells_least() -> None:
    (finding,) = found(step(5, 234.1), step(6, 30.1), step(7, 34.1), step(8, 38.1))
    assert dict(finding.evidence)["ms_per_shape"] == pytest.approx(34.0)


@pytest.mark.parametrize(
    "traces",
    [
        (step(5, 234.1),),  # libraries were loaded
        (step(5, 234.1), step(5, 0.1)),
        (step(5, 0.9), step(6, 0.9)),
        (step(5, 34.1), step(6, 0.1)),  # that length was met earlier
        (
            trace(visit(5, 6.0), *[visit(5, 4.0)] * 3),
            trace(visit(6, 6.0), *[visit(6, 4.0)] * 3),
        ),  # nearly as long later
        (trace(*[visit(5, 34.0)] * 4), trace(*[visit(6, 34.0)] * 4)),  # it always takes so long
        (trace(visit(5, 34.0)), trace(visit(6, 34.0))),  # nothing tells what a later visit takes
        (
            trace(visit(5, 34.0), visit(5, 0.1), visit(5, 0.1), visit(5, 33.0)),  # it waits for something now and then
            trace(visit(6, 34.0), visit(6, 0.1)),
        ),
    ],
)
def test_what_tells_nothing(traces: tuple[Trace, ...]) -> None:
    assert not found(*traces)


def test_waits_for_the_device_are_no_plans() -> None:
    reads = [op("aten._local_scalar_dense.default", "host-read", args=[view(0, (n,))], host_ns=10**8) for n in (5, 6)]
    quick = op("aten._local_scalar_dense.default", "host-read", args=[view(0, (6,))], host_ns=10)
    assert not cold_operators((trace(*reads, quick, quick),), by_call=False)


def test_shapes_of_an_earlier_cell_are_warm() -> None:
    traces = step(5, 234.1), step(6, 34.1)
    assert not found(*traces, earlier_runs=1)
    assert found(*traces, new=3) and not found(*traces, new=2)


def test_what_nobody_waits_for_is_not_told() -> None:
    traces = step(5, 3.1), step(6, 3.1)
    assert found(*traces, new=40) and not found(*traces, new=30)


def test_the_first_call_of_a_shape_against_later_ones() -> None:
    counts = tuple(
        ShapeCount(shapes=(("x", (n, 80)),), calls=4, order=4 * i, first_ms=first, warm_ms=2.0)
        for i, (n, first) in enumerate([(40, 400.0), (50, 22.0), (60, 26.0), (70, 24.0)])
    )
    (finding,) = gr203.check(cell(region(calls=16, shapes=counts)))
    assert finding.message == (
        "the first call of `step` with a shape takes 22 ms more than a later one; 4 shapes are new in this cell: "
        "88 ms in all"
    )
    assert finding.predicted_ms_per_call == pytest.approx(88.0 / 16)
    assert finding.advice == "pad to a multiple, or bucket, with a mask, so that few shapes are met"


@pytest.mark.parametrize("firsts", [[9.0, 2.1, 2.2, 2.0], [400.0, 22.0, 2.0, 2.0], [400.0, None, None, 24.0]])
def test_first_calls_like_the_others(firsts: Sequence[float | None]) -> None:
    counts = tuple(
        ShapeCount(shapes=(("x", (n,)),), calls=4, order=n, first_ms=first, warm_ms=2.0)
        for n, first in enumerate(firsts)
    )
    assert not list(gr203.check(cell(region(calls=16, shapes=counts))))


def test_calls_after_looking_on_had_an_end_count() -> None:
    """One call was traced while the cell was looked at, one after that; the others were timed."""
    traces = step(5, 37.1), step(9, 34.1)
    known = region(calls=3, traces=traces, shapes=lengths(2), afterwards_ms=(60.0, *[44.0] * 70, *[9.0] * 6))
    (finding,) = gr203.check(cell(known, wall_ms=5000.0, looked_on=False))
    assert "73 shapes are new in this cell: about 2.48 s in all" in finding.message
    assert finding.predicted_ms_per_call == pytest.approx(73 * 34.0 / 80), "of all calls"


def test_where_looking_on_had_an_end_the_rest_is_not_known() -> None:
    known = region(calls=9, traces=(step(5, 37.1), step(9, 34.1)), shapes=lengths(9))
    (finding,) = gr203.check(cell(known, wall_ms=5000.0, looked_on=False))
    assert "9 shapes are new in this cell: at least 306 ms in all" in finding.message


@pytest.mark.parametrize(
    ("wall_ms", "firsts", "expected"),
    [
        (40.0, [None, 37.0, 36.0, 41.0], True),  # each new shape takes as long as the one that was traced
        (40.0, [None, 37.0, 2.0, 3.0, 2.5], False),  # libraries were loaded
        (90.0, [None, 37.0, 36.0, 41.0], False),  # the call takes long anyway
        (0.0, [None, 37.0, 36.0, 41.0], False),
    ],
)
def test_one_slow_visit_counts_where_other_calls_bear_it_out(
    wall_ms: float, firsts: list[float | None], *, expected: bool
) -> None:
    counts = tuple(
        ShapeCount(shapes=(("x", (n,)),), calls=1, order=n, first_ms=first) for n, first in enumerate(firsts)
    )
    traced = replace(step(5, 34.1), wall_ns=int(wall_ms * 1e6))
    assert bool(list(gr203.check(cell(region(calls=9, traces=(traced,), shapes=counts))))) is expected


def test_tracing_another_call_has_to_cost_less() -> None:
    assert may_be_cold((step(5, 34.1),)) and not may_be_cold(())
    assert not may_be_cold((step(5, 2.0, layers=100),))


def test_outside_of_regions_each_first_visit_counts() -> None:
    ops = [visit(n, ms, line=2) for n in range(5, 10) for ms in ([84.0] if n == 5 else [24.0]) + [0.1] * 3]
    (finding,) = gr203.check(cell(trace=trace(*ops), source="for n in sizes:\n    attend(x[:n])\n"))
    assert dict(finding.evidence)["in_all_ms"] == pytest.approx(5 * 23.9)
    assert (finding.at, finding.predicted_ms_per_call) == (at(2), pytest.approx(23.9))
    assert not list(gr203.check(cell(trace=trace(*ops), traced_earlier=True)))


def test_it_is_ordered_by_what_it_costs() -> None:
    known = region(calls=80, traces=(step(5, 234.1), step(6, 34.1)), shapes=lengths(80))
    first = next(iter(advise(cell(known, wall_ms=5000.0))))
    assert (first.code, first.severity) == ("GR203", "costly")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("aten.cudnn_convolution.default", "leave `torch.backends.cudnn.benchmark` off where shapes change"),
        ("mylib.plan.default", "pad to a multiple, or bucket"),
    ],
)
def test_the_advice_fits_the_operator(name: str, advice: str) -> None:
    (finding,) = found(step(5, 99.1, name=name), step(6, 34.1, name=name))
    assert finding.advice is not None and finding.advice.startswith(advice)


# -- the rewrite ---------------------------------------------------------------------------------------------------

UNDER = (
    "with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.FLASH_ATTENTION, "
    "torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION, torch.nn.attention.SDPBackend.MATH]):\n"
)


def rewritten(source: str, line: int, operator: str = ATTENTION) -> str | Declined:
    evidence = (("operator", operator), ("in_library", "somelib/masks.py, line 80"))
    finding = Finding(code="GR203", severity="costly", message="", at=at(line), evidence=evidence)
    assert finding.fixable
    made = fix(source, finding)
    return made.source if isinstance(made, Rewritten) else made


@pytest.mark.parametrize(
    ("source", "line", "expected"),
    [
        (
            "import torch\n# a sentence\nout = model.generate(x)  # greedy\n",
            3,
            f"import torch\n# a sentence\n{UNDER}    out = model.generate(x)  # greedy\n",
        ),
        (
            "import torch\nfor n in sizes:\n    y = model(x[:, :n])\n    if y is None:\n        break\nz = y\n",
            3,
            f"import torch\n{UNDER}    for n in sizes:\n        y = model(x[:, :n])\n        if y is None:\n"
            "            break\nz = y\n",
        ),
        (
            "import torch\ndef run(x):\n    x = x + 1\n    return attend(x)\n",
            4,
            f"import torch\ndef run(x):\n    x = x + 1\n    {UNDER}        return attend(x)\n",
        ),
    ],
)
def test_the_whole_statement_runs_without_cudnn(source: str, line: int, expected: str) -> None:
    assert rewritten(source, line) == expected


@pytest.mark.parametrize(
    ("source", "operator", "why"),
    [
        ("y = model(x)\n", "aten.convolution.default", "which shapes may be padded cannot be told from the source"),
        ("torch.backends.cuda.enable_cudnn_sdp(True)\ny = 1\n", ATTENTION, "the source chooses its attention kernels"),
        ("async def f():\n    y = await model(x)\n", ATTENTION, "it waits, and other code runs meanwhile"),
    ],
)
def test_what_is_refused(source: str, operator: str, why: str) -> None:
    declined = rewritten(source, source.count("\n"), operator)
    assert isinstance(declined, Declined) and declined.why.startswith(why), declined


SPACE: dict[str, Any] = {"__name__": "__main__", "torch": torch, "x": torch.randn(1, 2, 6, 8)}


def test_the_rewrite_is_compared() -> None:
    source = "import torch\nfor n in (3, 4):\n    y = torch.nn.functional.scaled_dot_product_attention(x, x, x)\n"
    new = rewritten(source, 3)
    space = dict(SPACE)
    exec(compile(source, "cell", "exec"), space)
    assert verify(source, str(new), space, tolerance=0.01).result in ("identical", "close")


@pytest.mark.parametrize(
    ("new", "tolerance", "result"),
    [
        ("y = x * 1.001", 0.01, "close"),
        ("y = x * 1.001", 0.0, "different"),
        ("y = x * 1.02", 0.01, "different"),
        ("y = x + 0.0", 0.01, "identical"),
        ("y = (x * 1.001) / 0.0", 0.01, "different"),
        ("y = (x * 1.001).double()", 0.01, "different"),
    ],
)
def test_results_stay_within_the_tolerance_that_is_stated(new: str, tolerance: float, result: str) -> None:
    space = {**SPACE, "y": SPACE["x"]}
    checked = verify("y = x * 1.0", new, space, tolerance=tolerance)
    assert checked.result == result
    if result == "close":
        assert checked.why == "results differ by up to 1.0e-03 of their largest value, within 0.01"


def test_whole_numbers_have_no_tolerance() -> None:
    space = {"torch": torch, "n": torch.arange(1000)}
    assert verify("m = n + 0", "m = n + 1", space, tolerance=0.5).result == "different"


# -- whole cells ---------------------------------------------------------------------------------------------------


def test_a_cell_in_which_each_length_is_planned_for() -> None:
    (known,) = (one for one in load() if one.name == "cold_lengths")
    (finding,) = (one for one in run_cell(known) if one.code == "GR203")
    evidence = dict(finding.evidence)
    assert evidence["shapes"] == 10 and evidence["warm_ms"] < 2.0
    assert evidence["in_all_ms"] == pytest.approx(10 * evidence["ms_per_shape"])
    assert 10.0 <= evidence["ms_per_shape"] + evidence["warm_ms"] < 20.0


CELLS = {
    "cold_lengths": '''"""A model over lengths that each come once: the operator plans for each of them."""
# cold: sin
# %% setup
import torch

w = torch.eye(8)

def forward(x):  # GR201
    for _ in range(4):
        x = torch.sin(x @ w)  # GR203
    return x

data = torch.randn(64, 8)
# %% cell
for n in (9, 4, 30, 7, 22, 15, 11, 40, 3, 27):
    y = forward(data[:n])
''',
    "cold_batches": '''"""Batches that are padded to their own longest text."""
# cold: sin
# %% setup
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.sin(layer(x))  # GR203
        return x

net = Net().eval()
batches = [torch.randn(4, n, 8) for n in (9, 4, 30, 7, 22, 15, 11, 40, 3, 27)]
# %% cell
with torch.no_grad():
    for batch in batches:
        y = net(batch)  # GR201
''',
    "cold_growing": '''"""Decoding without a cache: each step is one longer."""
# cold: sin
# %% setup
import torch

w = torch.eye(8)

def step(x):
    for _ in range(3):
        x = torch.sin(x @ w)  # GR203
    return x

x = torch.randn(4, 8)
# %% cell
for _ in range(12):
    y = step(x)
    x = torch.cat([x, y[-1:]])  # GR202
''',
    "cold_images": '''"""Images of many sizes, as they come."""
# cold: cos
# %% setup
import torch

def features(image):  # GR201
    for _ in range(3):
        image = torch.cos(image) * 2  # GR203
    return image.mean()

images = [torch.randn(3, n, n + 5) for n in (19, 14, 30, 17, 22, 15, 11, 40, 13, 27)]
# %% cell
with torch.no_grad():
    for image in images:
        mean = features(image)
''',
    "cold_few": '''"""Two lengths that come again and again: what each cost once is not worth a word."""
# cold: sin
# near-miss: GR203
# %% setup
import torch

w = torch.eye(8)

def forward(x):  # GR201
    for _ in range(4):
        x = torch.sin(x @ w)
    return x

data = torch.randn(64, 8)
# %% cell
for n in [8, 8, 8, 16] * 10:
    y = forward(data[:n])
''',
    "cold_warmed": '''"""The lengths were met in an earlier cell."""
# cold: sin
# near-miss: GR203
# %% setup
import torch

w = torch.eye(8)

def forward(x):  # GR201
    for _ in range(4):
        x = torch.sin(x @ w)
    return x

data = torch.randn(64, 8)
lengths = (9, 4, 30, 7, 22, 15, 11, 40, 3, 27)
for n in lengths:
    forward(data[:n])
# %% cell
for n in lengths:
    y = forward(data[:n])
''',
    "cold_second_run": '''"""The same cell again: its shapes repeat."""
# cold: sin
# near-miss: GR203
# runs: 2
# %% setup
import torch

w = torch.eye(8)

def forward(x):  # GR201
    for _ in range(4):
        x = torch.sin(x @ w)
    return x

data = torch.randn(64, 8)
# %% cell
for n in (9, 4, 30, 7, 22, 15, 11, 40, 3, 27):
    y = forward(data[:n])
''',
}
