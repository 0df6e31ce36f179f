"""GR103: an operator's output shape depends on values."""

from __future__ import annotations

import pytest

from grape.advisor.rules.gr1xx import gr103
from grape.model import OpRecord, Reason, Refused
from tests.unit.trace_builder import at, cell, op, region, trace, view


def dynamic(name: str, rows: int, *, line: int = 1) -> OpRecord:
    return op(name, "dynamic", args=[view(0)], outputs=[view(1, (rows, 1))], line=line, host_ns=30_000)


@pytest.mark.parametrize(
    ("name", "subject", "advice"),
    [
        ("aten.nonzero.default", "`nonzero`", "use `torch.nonzero_static(x, size=n)`"),
        (
            "aten.index.Tensor",
            "boolean-mask indexing",
            "keep the full tensor and select with `torch.where(mask, x, 0)`",
        ),
        ("aten.index_put_.default", "`index_put_`", "write with `torch.where(mask, value, x)`"),
        ("aten.masked_select.default", "`masked_select`", "keep the full tensor and select"),
        ("aten._unique2.default", "`torch.unique`", "compute `unique` once before the loop"),
        ("aten.unique_dim.default", "`torch.unique`", "compute `unique` once before the loop"),
        ("aten.repeat_interleave.Tensor", "`repeat_interleave`", "pass `output_size=n`"),
        ("aten.bincount.default", "`bincount`", "use a form whose result has a fixed size"),
    ],
)
def test_names_the_operator_and_its_fix(name: str, subject: str, advice: str) -> None:
    refused = Refused.because(Reason.DATA_SHAPE, at(1), operator=name)
    (finding,) = gr103.check(cell(region(outcome="refused", refused=refused, traces=(trace(dynamic(name, 3)),))))
    assert finding.message == f"the output shape of {subject} depends on data: the CPU waits once per call (30 us)"
    assert finding.advice is not None and finding.advice.startswith(advice)
    assert finding.severity == "blocker"


def test_a_list_that_is_padded_needs_no_other_form() -> None:
    source = "i, j = grape.pad_edges((d < cutoff).nonzero(as_tuple=True), d, cutoff)\n"
    (finding,) = gr103.check(cell(region(traces=(trace(dynamic("aten.nonzero.default", 3)),)), source=source))
    assert "`(d < cutoff).nonzero(as_tuple=True)`" in finding.message
    assert finding.advice == (
        "the list is padded, so that what takes it replays; make it seldom, with a radius that leaves room for steps"
    )


def test_in_a_region_that_was_not_refused_it_blocks_nothing() -> None:
    (finding,) = gr103.check(cell(region(traces=(trace(dynamic("aten.nonzero.default", 3)),))))
    assert finding.severity == "costly"


def test_shows_the_expression_and_the_shapes_that_came_out() -> None:
    calls = tuple(trace(dynamic("aten.index.Tensor", rows, line=2)) for rows in (3, 5, 3))
    (finding,) = gr103.check(cell(region(traces=calls), source="def f(x):\n    return x[x > 0].sum() + x[0]\n"))
    assert finding.message == (
        "the output shape of `x[x > 0]` depends on data: the CPU waits once per call (30 us), shapes [3, 1], [5, 1]"
    )
    assert dict(finding.evidence)["output_shapes"] == ("[3, 1]", "[5, 1]")


def test_the_wait_is_counted_once_where_the_read_was_recorded_too() -> None:
    call = trace(dynamic("aten.nonzero.default", 3), reads=[(0, None, None, 70_000)])
    (finding,) = gr103.check(cell(region(traces=(call,))))
    assert finding.predicted_ms_per_call == pytest.approx(0.07)


def test_indexing_of_fixed_shape_is_no_finding() -> None:
    plain = op("aten.index.Tensor", "compute", args=[view(0)], outputs=[view(1)])
    assert not list(gr103.check(cell(region(traces=(trace(plain),)))))


def test_one_use_outside_of_a_loop_is_no_finding() -> None:
    assert not list(gr103.check(cell(source="i = x.nonzero()", trace=trace(dynamic("aten.nonzero.default", 3)))))
