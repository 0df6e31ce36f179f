"""GR101: the CPU waits for the GPU, and no branch needs the value."""

from __future__ import annotations

import pytest

from grape.advisor.rules.gr1xx import gr101
from grape.model import Reason, Refused
from tests.unit.trace_builder import LIBRARY, at, because, cell, item, op, region, timeline, trace, view

SOURCE = "for x in data:\n    total += loss(x).item()\nprint(total)\n"


def test_names_the_call_the_count_and_the_wait() -> None:
    calls = (
        trace(item(line=2), reads=[(0, "call", 0.5, 40_000)]),
        trace(item(line=2), reads=[(0, "call", 0.6, 60_000)]),
    )
    refused = Refused.because(Reason.HOST_READ, at(2), what="a number")
    (finding,) = gr101.check(cell(region(outcome="refused", refused=refused, traces=calls), source=SOURCE))
    assert finding.message == "`loss(x).item()` makes the CPU wait for the GPU once per call (50 us)"
    assert finding.predicted_ms_per_call == pytest.approx(0.05)
    assert (finding.severity, finding.at, finding.region) == ("blocker", at(2), "step")
    assert finding.advice == "keep the value as a tensor (`loss(x).detach()`), and read it once after the loop"


@pytest.mark.parametrize("outcome", ["observed", "replayed"])
def test_a_read_in_a_region_that_was_not_refused_costs_and_does_not_block(outcome: str) -> None:
    call = trace(item(line=2), reads=[(0, "call", 0.5, 40_000)])
    (finding,) = gr101.check(cell(region(outcome=outcome, traces=(call,)), source=SOURCE))
    assert (finding.severity, finding.predicted_ms_per_call) == ("costly", pytest.approx(0.04))
    assert "blocker" not in finding.message


def test_names_the_operator_where_the_line_is_not_in_the_cell() -> None:
    inner = at(9, file=LIBRARY, function="build")
    (finding,) = gr101.check(cell(region(traces=(trace(item(inner=inner), reads=[(0, None, 1, 1_000)]),))))
    assert finding.message == (
        "reading a value makes the CPU wait for the GPU once per call (1 us) (in build, somelib/masks.py, line 9)"
    )


def test_a_copy_to_the_cpu_without_a_recorded_read_counts_its_own_time() -> None:
    out = op("aten._to_copy.default", "transfer-out", args=[view(0)], outputs=[view(1, device="cpu")], host_ns=200_000)
    (finding,) = gr101.check(cell(region(outcome="replayed", traces=(trace(out),))))
    assert finding.message == "copying a tensor to the CPU makes the CPU wait for the GPU once per call (0.2 ms)"
    assert (finding.severity, finding.advice) == ("costly", "keep the tensor on the GPU; copy once after the loop")


def test_printing_gets_its_own_advice() -> None:
    (finding,) = gr101.check(cell(region(traces=(trace(item(), reads=[(0, "print", 1.0, 0)]),))))
    assert finding.message.startswith("printing a tensor makes the CPU wait")
    assert finding.advice is not None and finding.advice.startswith("print after the loop")


@pytest.mark.parametrize("construct", ["if", "while", "assert", "ternary", "bool-op"])
def test_leaves_branches_to_gr102(construct: str) -> None:
    assert not list(gr101.check(cell(region(traces=(trace(item(), reads=[(0, construct, True, 5)]),)))))


def test_leaves_dynamic_shapes_to_gr103() -> None:
    dynamic = op("aten.nonzero.default", "dynamic", outputs=[view(1, (3, 1))])
    assert not list(gr101.check(cell(region(traces=(trace(dynamic, reads=[(0, None, None, 5)]),)))))


def test_a_saving_includes_the_gap_behind_the_copy_but_is_never_more_than_the_idle_time() -> None:
    call = trace(item(), reads=[(0, "call", 1.0, 30_000)])
    # One call of 100 us: kernel, copy to the host, 20 us of nothing, kernel until the end.
    gap = timeline((0, 40), (40, 45, "Memcpy DtoH (Device -> Pageable)", 4), (65, 100), wall_us=100)
    (finding,) = gr101.check(cell(region(traces=(call,), before=gap)))
    assert dict(finding.evidence)["gap_ms_per_call"] == pytest.approx(0.02)
    assert finding.predicted_ms_per_call == pytest.approx(0.02)  # waiting 30 us behind 45 us of work is no loss
    idle = timeline((0, 10), (10, 15, "Memcpy DtoH (Device -> Pageable)", 4), (35, 40), wall_us=100)
    (finding,) = gr101.check(cell(region(traces=(call,), before=idle)))
    assert finding.predicted_ms_per_call == pytest.approx(0.05)


def test_claims_no_time_on_the_tape() -> None:
    call = trace(item(), reads=[(0, "call", 1.0, 30_000)])
    (finding,) = gr101.check(cell(region(traces=(call,)), cuda=False))
    assert finding.message == "reading a value would make the CPU wait for a GPU once per call"
    assert finding.predicted_ms_per_call is None
    assert dict(finding.evidence)["wait_ms_per_call"] is None


def test_in_the_cell_a_read_counts_when_its_line_repeats() -> None:
    loop = trace(*[item(line=2)] * 3, reads=[(i, "call", 1.0, 10_000) for i in range(3)])
    (finding,) = gr101.check(cell(source=SOURCE, trace=loop))
    assert finding.message == "`loss(x).item()` makes the CPU wait for the GPU at each of 3 executions (10 us each)"
    assert (finding.region, finding.severity) == (None, "costly")


def test_in_the_cell_a_read_after_the_loop_is_no_finding() -> None:
    after = "y = f(x)\nprint(y.item(), y.item())\n"
    twice = trace(*[item(line=2)] * 2, reads=[(i, "call", 1.0, 10_000) for i in range(2)])
    assert not list(gr101.check(cell(source=after, trace=twice)))
    assert not list(gr101.check(cell(source=SOURCE, trace=trace(item(line=2), reads=[(0, "call", 1.0, 10)]))))


def test_a_refusal_without_a_traced_read_is_still_reported() -> None:
    refused = because("GR101", "the host reads a value inside the call", at(7))
    (finding,) = gr101.check(cell(region(outcome="refused", refused=refused)))
    assert (finding.message, finding.at) == ("`step` stays eager: the host reads a value inside the call", at(7))


def test_a_refusal_at_a_traced_line_is_reported_once() -> None:
    refused = because("GR101", "the host reads a value inside the call", at(2))
    call = trace(item(line=2), reads=[(0, "call", 1.0, 10)])
    (finding,) = gr101.check(cell(region(outcome="refused", refused=refused, traces=(call,))))
    assert finding.message.startswith("reading a value makes")


@pytest.mark.parametrize(
    ("line", "subject"),
    [
        ("v = float(loss.item())", "`loss.item()`"),
        ("v = (a == b).float().mean().item()", "`(a == b).float().mean().item()`"),
        ("v = float(a.float().mean())", "`float(a.float().mean())`"),
        ("v = a.item() + b.item()", "reading a value"),
        ("v = a.item() - a.item()", "`a.item()`"),
        ("v = a_function(of_many, arguments, that_is_very_long, indeed).item()", "`item(...)`"),
        ("v = (", "reading a value"),
    ],
)
def test_the_call_is_named_only_where_there_is_no_doubt(line: str, subject: str) -> None:
    call = trace(item(), reads=[(0, "call", 1.0, 10)])
    (finding,) = gr101.check(cell(region(traces=(call,)), source=line))
    assert finding.message.startswith(f"{subject} makes the CPU wait")


PRINTS = "import torch\nx = torch.zeros(3)\nfor i in range(9):\n    x = x + 1\n    print(x)\n    y = x.tolist()\n"
RAN = trace(*[op("aten.add.Tensor", line=4) for _ in range(9)])


def test_reads_that_no_operator_shows_are_found_in_the_source_of_a_loop_that_ran() -> None:
    """torch prints with every mode switched off; a CPU tensor gives its values away without an operator."""
    found = list(gr101.check(cell(trace=RAN, source=PRINTS, cuda=False)))
    assert [(f.at.line if f.at else None, f.message) for f in found] == [
        (5, "printing `x` would make the CPU wait for a GPU at each iteration"),
        (6, "`x.tolist()` would make the CPU wait for a GPU at each iteration"),
    ]
    on_cuda = list(gr101.check(cell(trace=RAN, source=PRINTS)))  # there `tolist` is an operator
    assert [f.message for f in on_cuda] == ["printing `x` makes the CPU wait for the GPU at each iteration"]


def test_a_loop_that_did_not_run_is_not_spoken_of() -> None:
    elsewhere = trace(op("aten.add.Tensor", line=2))
    assert not list(gr101.check(cell(trace=elsewhere, source=PRINTS, cuda=False)))


def test_a_line_that_refused_the_region_is_not_reported_twice() -> None:
    refused = Refused.because(Reason.CALLS, at(5), call="print")
    found = gr101.check(cell(region(outcome="refused", refused=refused), trace=RAN, source=PRINTS))
    assert not list(found)


def test_an_index_of_one_element_is_read() -> None:
    reads = trace(item(line=2), item(line=2), reads=[(0, None, 3, 5), (1, None, 4, 5)])
    (finding,) = gr101.check(cell(trace=reads, source="for i in order:\n    y = boxes[i]\n"))
    assert finding.message.startswith("the index of `boxes[i]` makes the CPU wait for the GPU")


def test_a_slice_between_tensors_reads_them() -> None:
    reads = trace(item(line=2), item(line=2), reads=[(0, None, 3, 5), (1, None, 4, 5)])
    for index, subject in (("i:i+8", "the index of `data[i:i+8]`"), ("0:8", "reading a value")):
        (finding,) = gr101.check(cell(trace=reads, source=f"for i in order:\n    y = data[{index}]\n"))
        assert finding.message.startswith(f"{subject} makes the CPU wait for the GPU")
        assert ("`.tolist()`" in (finding.advice or "")) == (index == "i:i+8")


def test_what_torch_keeps_on_the_cpu_is_no_wait_on_the_tape() -> None:
    step = at(95, file="/usr/lib/python3.11/site-packages/torch/optim/optimizer.py", function="_get_value")
    reads = trace(item(line=2, inner=step), item(line=2, inner=step), reads=[(0, None, 1, 5), (1, None, 2, 5)])
    source = "for x in xs:\n    optimizer.step()\n"
    assert not list(gr101.check(cell(trace=reads, source=source, cuda=False)))
    assert len(list(gr101.check(cell(trace=reads, source=source)))) == 1


SELDOM = "for i in range(400):\n    step()\n    if i % 100 == 0:\n        print(loss.item())\n"


@pytest.mark.parametrize("test", ["i % 100 == 0", "not i % 100", "(i + 1) % 100 == 0 and verbose"])
def test_what_is_read_every_nth_time_already_is_no_finding_outside_of_regions(test: str) -> None:
    reads = trace(*[item(line=4)] * 4, reads=[(n, "print", 0.5, 1_000) for n in range(4)])
    source = SELDOM.replace("i % 100 == 0", test)
    assert not list(gr101.check(cell(trace=reads, source=source)))
    assert not list(gr101.check(cell(trace=reads, source=source, cuda=False)))


def test_what_padding_reads_is_behind_the_wait_of_the_list_itself() -> None:
    call = trace(item(line=1), reads=[(0, None, 1, 40_000)])
    source = "edges = grape.pad_edges(near.nonzero(), d, cutoff)\n"
    assert not list(gr101.check(cell(region(traces=(call,)), source=source)))
    assert len(list(gr101.check(cell(region(traces=(call,)), source="edges = pad_edges(near, d, cutoff)\n")))) == 1


def test_what_is_read_every_nth_time_in_a_region_has_to_leave_it() -> None:
    refused = Refused.because(Reason.HOST_READ, at(4), what="a number")
    call = trace(item(line=4), reads=[(0, "print", 0.5, 40_000)])
    (finding,) = gr101.check(cell(region(outcome="refused", refused=refused, traces=(call,)), source=SELDOM))
    assert finding.severity == "blocker"
    assert (
        finding.advice == "it is read seldom already: read it outside of what repeats, so that the rest can be captured"
    )
