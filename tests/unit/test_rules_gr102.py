"""GR102: a tensor's value decides which way the Python code goes."""

from __future__ import annotations

import pytest

from grape.advisor.rules.gr1xx import gr102
from grape.model import Finding
from tests.unit.trace_builder import LIBRARY, at, cell, item, op, region, trace, view

SEEN = ", true 1 of 2 times in 2 traced calls"


def one(construct: str | None, *values: object, source: str = "", outcome: str = "refused") -> list[Finding]:
    calls = tuple(trace(item(), reads=[(0, construct, value, 20_000)]) for value in values)
    return list(gr102.check(cell(region(traces=calls, outcome=outcome), source=source)))


@pytest.mark.parametrize(
    ("construct", "source", "message", "advice"),
    [
        (
            "if",
            "if top > limit: x = x / top",
            "`if top > limit` needs a tensor's value: the CPU waits once per call (20 us)" + SEEN,
            "compute both sides and select with `torch.where(top > limit, a, b)`, or take the `if` out of the region",
        ),
        (
            "while",
            "while not done.all(): step()",
            "`while not done.all()` needs a tensor's value: the CPU waits once per call (20 us)" + SEEN,
            "test `not done.all()` only every n-th iteration, or run a fixed number of iterations with masked updates",
        ),
        (
            "assert",
            "assert x.isfinite()",
            "`assert x.isfinite()` needs a tensor's value: the CPU waits once per call (20 us)" + SEEN,
            "drop the assert from the hot path, or use `torch._assert_async(x.isfinite())`, which does not wait",
        ),
        (
            "ternary",
            "y = a if (x > 0).any() else b",
            "a conditional expression needs a tensor's value: the CPU waits once per call (20 us)" + SEEN,
            "select with `torch.where((x > 0).any(), a, b)`",
        ),
        (
            "bool-op",
            "ok = low and high",
            "`low and high` needs a tensor's value: the CPU waits once per call (20 us)",
            "use `&`, `|`, `~` (or `torch.logical_and`) so that the result stays a tensor",
        ),
    ],
)
def test_each_construct_is_named_with_its_condition(construct: str, source: str, message: str, advice: str) -> None:
    (finding,) = one(construct, True, False, source=source)
    assert (finding.message, finding.advice, finding.severity) == (message, advice, "blocker")


def test_evidence_says_how_often_each_way_was_taken() -> None:
    (finding,) = one("if", True, True, False, source="if x.any(): pass")
    evidence = dict(finding.evidence)
    assert (evidence["taken"], evidence["not_taken"], evidence["syncs_per_call"]) == (2, 1, 1.0)


@pytest.mark.parametrize(
    ("test", "values", "ways"),
    [
        ("not done.all()", (True, True, False), (1, 2)),
        ("not not done.all()", (True, True, False), (2, 1)),
        ("x.sum()", (0.0, 2.5), (1, 1)),
        ("x.sum() > 3", (False, True, True), (2, 1)),
        ("tok.item() == eos", (31, 4, 7), (None, None)),
        ("tok == eos", (31, 4), (None, None)),
        ("float(loss) < best", (0.5,), (None, None)),
        ("a.any() and b.any()", (True, False), (None, None)),
        ("f(not a.any())", (True,), (None, None)),
    ],
)
def test_a_value_is_the_condition_only_where_it_is_all_of_it(
    test: str, values: tuple[object, ...], ways: tuple[int | None, int | None]
) -> None:
    (finding,) = one("if", *values, source=f"if {test}: pass")
    evidence = dict(finding.evidence)
    assert (evidence["taken"], evidence["not_taken"]) == ways
    assert ("true" in finding.message) is (ways[0] is not None)


@pytest.mark.parametrize("construct", [None, "print", "call"])
def test_other_reads_are_no_branch(construct: str | None) -> None:
    assert one(construct, 1.0) == []


def test_a_value_that_was_not_recorded_leaves_the_ways_out() -> None:
    (finding,) = one("if", None)
    assert finding.message == "`if` needs a tensor's value: the CPU waits once per call (20 us)"


def test_a_branch_in_a_library_names_the_innermost_frame_and_not_the_persons_if() -> None:
    read = item(inner=at(30, file=LIBRARY, function="causal"))
    evidence = cell(region(traces=(trace(read, reads=[(0, "if", True, 0)]),)), source="if model(x): pass")
    (finding,) = gr102.check(evidence)
    assert finding.message.endswith("(in causal, somelib/masks.py, line 30)")
    assert dict(finding.evidence)["condition"] is None


@pytest.mark.parametrize("outcome", ["observed", "replayed", "refused"])
def test_in_a_library_there_is_no_line_of_the_persons_to_change(outcome: str) -> None:
    read = item(inner=at(30, file=LIBRARY, function="causal"))
    call = trace(read, reads=[(0, "if", True, 0)])
    (finding,) = gr102.check(cell(region(traces=(call,), outcome=outcome)))
    option = "this is code of `somelib`: look for an option of it that avoids this"
    assert finding.advice == (option if outcome == "refused" else None)


def test_a_function_of_torch_is_called_by_the_persons_own_line() -> None:
    inside = at(9, file="/usr/lib/python3.11/site-packages/torch/functional.py", function="unique")
    call = trace(item(inner=inside), reads=[(0, "if", True, 0)])
    (finding,) = gr102.check(cell(region(traces=(call,)), source="if f(x): pass"))
    assert finding.advice == (
        "compute on the device what decides, or look for an option of `unique` that skips the check"
    )
    assert "in_library" not in dict(finding.evidence)


def test_in_a_replayed_region_a_branch_blocks_nothing() -> None:
    (finding,) = one("if", True, outcome="replayed")
    assert finding.severity == "costly"


def test_a_break_in_the_cells_own_loop_is_reported_outside_of_regions() -> None:
    source = "for i in range(9):\n    t = step(t)\n    if t == end:\n        break\n"
    reads = trace(*[item(line=3)] * 4, reads=[(i, "if", i == 3, 1_000) for i in range(4)])
    (finding,) = gr102.check(cell(source=source, trace=reads))
    assert finding.message == (
        "`if t == end` needs a tensor's value: the CPU waits at each of 4 executions (1 us each), true 1 of 4 times"
    )
    assert finding.region is None
    assert finding.advice == (
        "test `t == end` only every n-th iteration, and drop what the iterations behind the last one added"
    )


def test_an_if_of_the_cell_cannot_be_taken_out_of_a_region() -> None:
    source = "for i in range(9):\n    if t > 0:\n        t = -t\n"
    (finding,) = gr102.check(
        cell(source=source, trace=trace(*[item(line=2)] * 2, reads=[(i, "if", True, 1) for i in (0, 1)]))
    )
    assert finding.advice == (
        "compute both sides and select with `torch.where(t > 0, a, b)`, or decide only every n-th iteration"
    )


def test_dynamic_operators_are_no_branch() -> None:
    dynamic = op("aten.nonzero.default", "dynamic", outputs=[view(1, (3, 1))])
    assert not list(gr102.check(cell(region(traces=(trace(dynamic, reads=[(0, "if", None, 5)]),)))))


def test_on_the_tape_nothing_waited() -> None:
    call = trace(item(), reads=[(0, "if", True, 20_000)])
    (finding,) = gr102.check(cell(region(traces=(call,)), cuda=False))
    assert finding.message == "`if` needs a tensor's value: the CPU would wait for a GPU once per call"


def test_a_branch_that_is_seldom_asked_outside_of_regions_is_no_finding() -> None:
    source = "for i in range(400):\n    if i % 100 == 0:\n        if loss < best: best = loss\n"
    asked = trace(*[item(line=3)] * 4, reads=[(n, "if", n == 0, 1_000) for n in range(4)])
    assert not list(gr102.check(cell(trace=asked, source=source)))
    often = source.replace("i % 100 == 0", "verbose")
    assert list(gr102.check(cell(trace=asked, source=often)))


def test_counts_are_those_of_the_traced_calls_unless_all_calls_were_traced() -> None:
    calls = tuple(trace(item(), reads=[(0, "if", value, 20_000)]) for value in (True, False))
    (finding,) = gr102.check(cell(region(traces=calls, calls=2, outcome="refused"), source="if x.any(): pass"))
    assert finding.message.endswith("true 1 of 2 times")
