"""The engine: severity by measured cost, one finding per cause, what matters most first."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from grape.advisor import advise
from grape.advisor.engine import _of_copies
from grape.model import (
    CellEvidence,
    CopyRecord,
    Decision,
    Finding,
    Reason,
    Refused,
    RegionEvidence,
    ScalarChange,
    Trace,
)
from grape.model.times.machine import H200
from tests.unit.test_reasons import fields
from tests.unit.trace_builder import LIBRARY, at, because, cell, item, ms, op, region, shapes, timeline, trace, view

# One call of 1 ms with 100 us of device work.
IDLE = timeline(*[(i * 100, i * 100 + 10) for i in range(10)], wall_us=1000)
BUSY = timeline((0, 990), wall_us=1000)


def reading(line: int, wait_ns: int = 10_000, construct: str | None = "call") -> Trace:
    return trace(item(line=line), reads=[(0, construct, 1.0, wait_ns)])


def stopped(name: str = "step", line: int = 1, **fields: Any) -> RegionEvidence:
    """A region that was refused for reading a value at its line."""
    refused = because("GR101", "the host waits in the middle of the region", at(line))
    return region(name, line=line, outcome="refused", refused=refused, **fields)


def codes(evidence: CellEvidence) -> list[str]:
    return [finding.code for finding in advise(evidence)]


def test_a_cell_without_regions_has_no_findings() -> None:
    assert advise(cell()) == ()
    assert advise(cell(region(outcome="replayed", traces=(trace(),), before=BUSY))) == ()


def test_a_line_in_two_splits_of_one_loop_is_one_finding() -> None:
    """A loop that was split again has a part of each split."""
    parts = [
        stopped(f"loop at line 2, from line {first}", line=first, loop_line=2, traces=(reading(5),)) for first in (4, 3)
    ]
    apart = stopped("loop at line 9, from line 5", line=5, loop_line=9, traces=(reading(5),))
    (at_five,) = (finding for finding in advise(cell(*parts, apart)) if finding.at == at(5))
    assert at_five.region == "loop at line 2, from line 3"
    assert dict(at_five.evidence)["alike_in"] == ("loop at line 9, from line 5",)


def test_a_line_of_a_function_is_told_once_where_who_calls_it_is_no_region_around_it() -> None:
    """It was called elsewhere first."""
    function = stopped("batch", line=4, end_line=7, traces=(reading(5),))
    calling = stopped("loop at line 12", line=12, end_line=17, loop_line=12, traces=(reading(5),))
    at_five = [finding.region for finding in advise(cell(calling, function)) if finding.at == at(5)]
    assert at_five == ["batch"]


def test_the_members_of_an_ensemble_share_a_finding() -> None:
    refused = Refused.because(Reason.NEEDS_GRADIENTS, more="")
    names = "Net #3", "Net", "Net #2", "Other #2"
    regions = [region(name, line=4, outcome="refused", refused=refused, calls=9 - i) for i, name in enumerate(names)]
    ensemble, other = advise(cell(*regions, region("Net #4", line=5, outcome="observed")))
    assert ensemble.message == "`Net` stays eager: its results need gradients; and 2 more like it"
    assert ensemble.advice is not None and "call `Net` under" in ensemble.advice
    assert (ensemble.severity, dict(ensemble.evidence)["regions"]) == ("blocker", 3)
    assert other.message == "`Other #2` stays eager: its results need gradients"


def test_copies_may_differ_in_what_was_counted() -> None:
    found = (
        Finding(code="GR201", severity="costly", message=f"`{name}` was called in {n} calls", at=at(3), region=name)
        for name, n in (("Net #2", 14), ("Net", 9), ("Net 2", 9))
    )
    assert [finding.message for finding in _of_copies(list(found))] == [
        "`Net` was called in 14 calls; and alike in `Net 2`",
    ]


def test_modules_that_share_a_helper_share_a_finding() -> None:
    """It names them: one line is read by all."""
    names = ["Encoder (enc)", "Decoder (dec)", "Head (head)"]
    often = ["once per call", "2 times per call", "once per call"]
    reads = [
        Finding(
            code="GR101", severity="costly", message=f"`x.item()` waits {n}", at=at(3), region=name, advice="keep it"
        )
        for name, n in zip(names, often, strict=True)
    ]
    (one,) = _of_copies(reads)
    alike = "alike in `Decoder (dec)` and `Head (head)`"
    assert one.message == f"`x.item()` waits once per call; in `Encoder (enc)`, and {alike}"
    assert dict(one.evidence)["alike_in"] == ("Decoder (dec)", "Head (head)")
    named = [replace(one, message=f"`{one.region}` stays eager: it reads", severity="blocker") for one in reads]
    assert [one.message for one in _of_copies(named)] == [f"`Encoder (enc)` stays eager: it reads; and {alike}"]
    many = [replace(reads[0], region=f"Net{n}") for n in range(6)]
    (one,) = _of_copies(many)
    assert one.message.endswith("; in `Net0`, and alike in `Net1`, `Net2` and 3 more")
    elsewhere = [replace(reads[0], at=at(4)), replace(reads[1], severity="hint"), *reads[2:]]
    assert _of_copies(elsewhere) == elsewhere


@pytest.mark.parametrize(
    ("wait_ns", "severity"),
    [(9_900, "hint"), (10_000, "costly"), (500_000, "costly")],
    ids=["below 1%", "exactly 1%", "above"],
)
def test_below_one_percent_of_the_call_is_a_hint(wait_ns: int, severity: str) -> None:
    evidence = cell(region(outcome="replayed", traces=(reading(1, wait_ns),), before_ms=ms(1.0), after_ms=ms(1.0)))
    (finding,) = advise(evidence)
    assert finding.severity == severity


def test_a_replayed_region_is_graded_by_what_a_call_takes_now() -> None:
    call = reading(1, 15_000)
    replayed = region(outcome="replayed", traces=(call,), before_ms=ms(10.0), after_ms=ms(1.0))
    assert advise(cell(replayed))[0].severity == "costly"


def test_outside_of_regions_the_whole_cell_is_the_measure() -> None:
    loop = trace(*[item(line=2)] * 4, reads=[(i, "call", 1.0, 2_000_000) for i in range(4)])
    source = "for x in y:\n    z += f(x).item()\n"
    assert advise(cell(source=source, trace=loop, wall_ms=801.0))[0].severity == "hint"
    assert advise(cell(source=source, trace=loop, wall_ms=800.0))[0].severity == "costly"


def test_what_was_not_measured_is_costly_and_predicts_nothing_on_the_tape() -> None:
    copies = (CopyRecord(argument="x", bytes=2**20, calls=9),)
    findings = advise(cell(region(outcome="replayed", copies=copies, traces=(reading(1),)), cuda=False))
    assert [(f.code, f.severity, f.predicted_ms_per_call) for f in findings] == [
        ("GR101", "costly", None),
        ("GR301", "costly", None),
    ]


def test_a_blocker_stays_one_however_little_it_costs() -> None:
    (finding,) = advise(cell(stopped(traces=(reading(1, 1),), before_ms=ms(100.0))))
    assert finding.severity == "blocker"


@pytest.mark.parametrize("outcome", ["observed", "replayed"])
@pytest.mark.parametrize("construct", ["call", "if"])
def test_a_read_that_a_replay_repeats_blocks_nothing(outcome: Any, construct: str) -> None:
    """Reads that follow from the inputs run again before each replay; what really blocks refuses the region."""
    call = reading(1, 500_000, construct)
    (finding,) = advise(cell(region(outcome=outcome, traces=(call,), before_ms=ms(1.0), after_ms=ms(1.0))))
    assert finding.severity == "costly"
    assert "blocker" not in f"{finding.message} {finding.advice}"
    assert finding.predicted_ms_per_call == pytest.approx(0.5)


def test_same_code_line_and_region_are_one_finding_with_a_count() -> None:
    first = item(inner=at(5, file=LIBRARY, function="a"))
    second = item(inner=at(9, file=LIBRARY, function="b"))
    call = trace(first, second, reads=[(0, None, 1, 10_000), (1, None, 1, 30_000)])
    (finding,) = advise(cell(region(traces=(call,))))
    assert finding.message == (
        "reading a value makes the CPU wait for the GPU once per call (30 us) (in b, somelib/masks.py, line 9)"
        "; and 1 more on this line"
    )
    assert dict(finding.evidence)["count"] == 2
    assert finding.predicted_ms_per_call == pytest.approx(0.04)


def test_one_place_in_a_library_is_one_cause_however_it_was_reached() -> None:
    """Traces of an earlier cell name that cell's line; the library's place is the same."""
    there = at(30, file=LIBRARY, function="causal")
    outer = region("generate", traces=(trace(item(line=2, inner=there), reads=[(0, "if", True, 5)]),))
    inner = region("forward", parent="generate", traces=(trace(item(line=9, inner=there), reads=[(0, "if", 1, 5)]),))
    (finding,) = advise(cell(outer, inner))
    assert (finding.region, finding.advice) == ("forward", None)
    assert dict(finding.evidence)["in_library"] == f"{LIBRARY}, line 30"


def test_what_blocks_an_outer_region_outweighs_what_only_costs_inside() -> None:
    outer = stopped("generate", line=7, traces=(reading(7),))
    inner = region("forward", parent="generate", traces=(reading(7),))
    assert [(f.region, f.severity) for f in advise(cell(outer, inner))] == [("generate", "blocker")]


def test_of_equal_findings_the_persons_own_lines_come_first() -> None:
    library = trace(item(line=3, inner=at(30, file=LIBRARY)), item(line=5), reads=[(0, "if", True, 0), (1, "if", 1, 0)])
    findings = advise(cell(region(traces=(library,)), cuda=False))
    assert [f.at for f in findings] == [at(5), at(3)]


def test_other_lines_and_codes_stay_apart() -> None:
    twice = trace(item(line=1), item(line=2), reads=[(0, "call", 1, 5), (1, "call", 1, 5)])
    branch = trace(item(line=1), item(line=1), reads=[(0, "call", 1, 5), (1, "if", True, 5)])
    first, second = advise(cell(region("a", traces=(twice,)), region("b", traces=(reading(1),))))
    assert (first.at, second.at) == (at(1), at(2)) and first.message.endswith("; in `b`, and alike in `a`")
    assert codes(cell(region(traces=(branch,)))) == ["GR101", "GR102"]


def test_a_line_in_nested_regions_is_reported_for_the_innermost() -> None:
    outer = region("generate", traces=(reading(7),))
    inner = region("forward", parent="generate", traces=(reading(7),))
    sibling = region("score", traces=(reading(7),))
    (one,) = advise(cell(outer, inner, sibling))
    assert (one.region, dict(one.evidence)["alike_in"]) == ("forward", ("score",))


def test_blockers_first_and_among_them_the_region_that_holds_most_time() -> None:
    small = stopped("small", line=1, calls=10, traces=(reading(1, 900_000),), before=BUSY, before_ms=ms(1.0))
    large = stopped("large", line=2, calls=10, traces=(reading(2, 1_000),), before=IDLE, before_ms=ms(1.0))
    applied = region("applied", line=3, calls=10, outcome="replayed", traces=(reading(3, 500_000),), after_ms=ms(1.0))
    findings = advise(cell(applied, small, large))
    assert [(f.code, f.region) for f in findings if f.severity == "blocker"] == [("GR101", "large"), ("GR101", "small")]
    assert [f.severity for f in findings] == sorted(
        (f.severity for f in findings), key=["blocker", "costly", "hint"].index
    )


def test_costly_findings_by_what_they_cost_in_the_whole_cell() -> None:
    rare = region("rare", line=1, calls=2, outcome="replayed", traces=(reading(1, 900_000),), after_ms=ms(1.0))
    often = region("often", line=2, calls=500, outcome="replayed", traces=(reading(2, 50_000),), after_ms=ms(1.0))
    assert [f.region for f in advise(cell(rare, often))] == ["often", "rare"]


def test_equal_findings_keep_their_order() -> None:
    regions = [region(name, line=i, traces=(reading(i),)) for i, name in enumerate("cab", start=1)]
    evidence = cell(*regions)
    assert [f.region for f in advise(evidence)] == ["c", "a", "b"]
    assert advise(evidence) == advise(evidence)


def test_the_only_blocker_gains_what_the_graph_would() -> None:
    (blocker, launches) = advise(cell(stopped(traces=(reading(1),), before=IDLE, before_ms=ms(1.0))))
    assert (blocker.code, launches.code) == ("GR101", "GR501")
    assert blocker.predicted_ms_per_call == pytest.approx(1.0 - (0.1 + 10 * H200.node_gap_us / 1e3))
    assert dict(blocker.evidence)["blockers_in_region"] == 1


def test_one_of_several_blockers_gains_its_own_cost_only() -> None:
    both = trace(item(line=1), item(line=2), reads=[(0, "call", 1, 10_000), (1, "if", True, 20_000)])
    findings = [f for f in advise(cell(stopped(traces=(both,), before=IDLE))) if f.severity == "blocker"]
    assert [(f.code, f.predicted_ms_per_call) for f in findings] == [
        ("GR102", pytest.approx(0.02)),
        ("GR101", pytest.approx(0.01)),
    ]


def test_every_refusal_has_a_finding_with_its_code() -> None:
    for reason in Reason:
        refused = Refused(reason=reason, at=at(3), details=tuple((name, "it") for name in fields(reason)))
        (found,) = advise(cell(region(outcome="refused", refused=refused), cuda=False))
        assert (found.code, found.severity) == (reason.code, reason.severity), reason


def test_findings_are_plain_values() -> None:
    """Everything at once; `json.dumps` takes it, each has a line, and an advice where there is something to do."""
    sent = op("aten._to_copy.default", "transfer-in", args=[view(8, (), device="cpu")], outputs=[view(9, ())])
    dynamic = op("aten.nonzero.default", "dynamic", outputs=[view(7, (3, 1))])
    moved = op("aten._to_copy.default", "transfer-in", args=[view(5, (4,), device="cpu")], outputs=[view(6, (4,))])
    call = trace(
        item(),
        item(),
        dynamic,
        sent,
        moved,
        arguments=[5],
        reads=[(0, "call", 1, 5), (1, "if", True, 5)],
        needs_grad=True,
    )
    decision = Decision(
        action="drop", shapes="x", seen=1, expected_calls=1.0, saving_ms=0.1, capture_ms=9.0, why="too few calls"
    )
    busy = region(
        traces=(call,),
        before=IDLE,
        before_ms=ms(1.0),
        shapes=shapes(*[{"past": (1, n), "x": (m,)} for n, m in zip(range(5, 9), (3, 9, 4, 4), strict=True)]),
        copies=(CopyRecord(argument="x", bytes=2**20, calls=1),),
        scalar_changes=(ScalarChange(operator="aten.mul.Tensor", values=(1, 2), at=None),),
        decisions=(decision,),
    )
    findings = advise(cell(busy, source="step(x)"))
    seen = {finding.code for finding in findings}
    assert seen >= {"GR101", "GR102", "GR103", "GR201", "GR202", "GR301", "GR302", "GR401", "GR403", "GR406", "GR501"}
    for finding in findings:
        json.dumps(finding.to_dict())
        assert finding.at is not None and finding.fix is None and "\n" not in finding.message
        assert bool(finding.advice) is (finding.code != "GR406")


def test_a_line_of_a_region_that_also_ran_outside_of_it_is_one_finding() -> None:
    """A refused region runs eagerly, and its operators are recorded as those of the cell from then on."""
    outside = trace(item(line=3), item(line=3), reads=[(0, "call", 1.0, 5), (1, "call", 2.0, 5)])
    inside = stopped(traces=(reading(3),), line=3)
    found = advise(cell(inside, trace=outside, source="\n\nfor x in xs: y = x.item()\n"))
    assert [(finding.code, finding.region) for finding in found] == [("GR101", "step")]


def test_what_stops_a_function_whose_loop_replays_is_no_blocker() -> None:
    outer = stopped("train", end_line=9)
    loop = region("loop at line 3", line=4, outcome="replayed", replays=20, loop_line=3)
    assert [f.severity for f in advise(cell(outer))] == ["blocker"]
    assert [f.severity for f in advise(cell(outer, loop))] == ["costly"]
    assert [f.severity for f in advise(cell(outer, region("model", line=4, replays=20)))] == ["blocker"]
    assert [f.severity for f in advise(cell(stopped("train", end_line=2), loop))] == ["blocker"]
    assert [f.severity for f in advise(cell(stopped("loop at line 3", line=4, loop_line=3, end_line=9), loop))] == [
        "blocker"
    ]


def test_a_line_beside_the_graph_of_its_loop_blocks_nothing() -> None:
    refused = Refused.because(Reason.ARGUMENT_CHANGES, at(2), argument="args[0][0]")
    part = region("loop at line 1", outcome="refused", refused=refused, loop_line=1)
    for replays, severity in ((5, "costly"), (0, "blocker")):
        rest = region("loop at line 1 #2", outcome="replayed" if replays else "observed", replays=replays, loop_line=1)
        (finding,) = [one for one in advise(cell(part, rest)) if one.code == "GR403"]
        assert finding.severity == severity
        assert finding.message.endswith("; the rest of the loop replays") is bool(replays)
        assert "the first argument" in finding.message, "the runtime's path has a name"
    other = region("loop at line 11", outcome="replayed", replays=5, loop_line=11)
    (finding,) = [one for one in advise(cell(part, other)) if one.code == "GR403"]
    assert finding.severity == "blocker"
