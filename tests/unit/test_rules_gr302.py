"""GR302: a tensor comes from the CPU's memory at each call."""

from __future__ import annotations

from dataclasses import replace

import pytest

from grape.advisor.rules.gr3xx import gr302
from grape.model.times.machine import MachineCosts
from tests.unit.trace_builder import cell, op, region, timeline, trace, view

SENT = op(
    "aten._to_copy.default", "transfer-in", args=[view(0, (256,), device="cpu")], outputs=[view(1, (256,))], line=2
)


def test_an_argument_sent_inside_the_region() -> None:
    before = timeline((0, 10, "Memcpy HtoD (Pageable -> Device)", 1024), (20, 60), wall_us=100)
    evidence = cell(
        region(traces=(trace(SENT, arguments=[0]),), before=before), source="def step(x):\n    x = x.to('cuda')\n"
    )
    (finding,) = gr302.check(evidence)
    assert finding.message == "`x.to('cuda')` sends 1 KB to the GPU once per call, 10 us"
    assert finding.predicted_ms_per_call == pytest.approx(0.01)


def test_copies_of_another_size_do_not_price_it() -> None:
    before = timeline((0, 10, "Memcpy HtoD (Pageable -> Device)", 4), (20, 60), wall_us=100)
    (finding,) = gr302.check(cell(region(traces=(trace(SENT, arguments=[0]),), before=before)))
    assert finding.message == "a CPU tensor sends 1 KB to the GPU once per call"
    assert finding.predicted_ms_per_call is None


def test_a_calibrated_rate_prices_it_without_a_timeline() -> None:
    (finding,) = gr302.check(cell(region(traces=(trace(SENT, arguments=[0]),))), MachineCosts(host_copy_gb_per_s=1.024))
    assert finding.predicted_ms_per_call == pytest.approx(0.001)


def test_what_is_no_argument_belongs_to_gr401() -> None:
    assert not list(gr302.check(cell(region(traces=(trace(SENT),)))))


def test_in_a_loop_of_the_cell_any_tensor_counts() -> None:
    source = "for x in data:\n    y = step(x.to('cuda'))\n"
    (finding,) = gr302.check(cell(source=source, trace=trace(SENT, SENT, SENT)))
    assert finding.message == "`x.to('cuda')` sends 1 KB to the GPU at each of 3 executions"
    assert finding.region is None


def test_moving_once_before_the_loop_is_no_finding() -> None:
    source = "\nmodel.cuda()\nfor x in data:\n    step(x)\n"
    assert not list(gr302.check(cell(source=source, trace=trace(SENT, SENT, SENT))))


def test_a_copy_that_does_not_block_is_no_finding() -> None:
    sent = replace(SENT, kwargs=(("non_blocking", ("bool", True)),))
    assert not list(gr302.check(cell(trace=trace(sent, sent), source="for x in xs:\n    x.to('cuda')\n")))
    assert len(list(gr302.check(cell(trace=trace(SENT, SENT), source="for x in xs:\n    x.to('cuda')\n")))) == 1
