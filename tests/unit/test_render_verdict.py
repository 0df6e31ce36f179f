"""The verdict, word for word."""

from __future__ import annotations

from typing import Any

import pytest

from grape.model import CellEvidence, Decision, Finding, OwnTime, ShapeCount
from grape.render import build_report
from tests.unit.sample_evidence import (
    FORWARD,
    at,
    cell,
    eager_timeline,
    host_sync,
    launch_bound,
    measured,
    memory_curve,
    operators,
    refused,
    region,
    sample,
    tape_cell,
    took,
)

BUSY = eager_timeline(kernel_us=17.0)
SYNC = host_sync()
GR406 = Finding(code="GR406", severity="hint", message="the graph saves 1% of a call.", at=at(7), region=FORWARD)


def drop(why: str) -> Decision:
    return Decision(
        action="drop", shapes="x (1,)", seen=3, expected_calls=2.0, saving_ms=1.0, capture_ms=400.0, why=why
    )


def wait(why: str = "1 expected calls would save 2 ms, less than 65 ms") -> Decision:
    return Decision(action="wait", shapes="x (1,)", seen=1, expected_calls=1.0, saving_ms=2.0, capture_ms=65.0, why=why)


def observed(**changes: Any) -> Any:
    """Called with one set of shapes in all calls, unless told otherwise."""
    return region(outcome="observed", **changes)


def growing(*calls: int, captured: int = 0, earlier: int = 0) -> dict[str, Any]:
    """`calls[i]` calls with the i-th shape of a growing argument; the first `captured` shapes have a graph."""
    shapes = tuple(
        ShapeCount(shapes=(("past", (1, 5 + i)),), calls=n, order=i, captured=i < captured, earlier_runs=earlier)
        for i, n in enumerate(calls)
    )
    return {"shapes": shapes, "calls": sum(calls)}


OWN = "; Grape itself took 0.02 s"
FASTER = "cell 2.9x faster (0.86 -> 0.30 s)"
SAME = "no significant change (0.86 -> 0.86 s)"
TOO_LITTLE = "graphs would save 1% of the cell, too little to stand between"

CASES: list[tuple[str, CellEvidence, tuple[Finding, ...], str]] = [
    ("design's line", cell(region()), (launch_bound(),), f"{FASTER}, outputs identical{OWN}"),
    ("a blocker left", *sample(), f"{FASTER}, outputs identical, 1 blocker left{OWN}"),
    (
        "tolerance",
        cell(region(verified="within 0.001")),
        (SYNC, SYNC),
        f"{FASTER}, outputs within 0.001, 2 blockers left{OWN}",
    ),
    (
        "one of two not compared: nothing is claimed",
        cell(region(), region("embed", before_ms=measured(0.5), after_ms=measured(0.2), verified=None)),
        (),
        f"replayed 58 of 64 calls of {FORWARD}; no change claimed (0.86 -> 0.30 s), 1 more region replayed, "
        f"outputs not compared in 1 of them{OWN}",
    ),
    (
        "the larger part of the cell stayed eager",
        cell(region(), refused("GR101", "sync", name="sample_token", before_ms=measured(20.0))),
        (SYNC,),
        f"{FASTER}, sample_token stays eager, outputs identical, 1 blocker left{OWN}",
    ),
    (
        "a caller of the main region does not count as another one",
        cell(region(parent="generate"), observed(name="generate", before_ms=measured(900.0))),
        (),
        f"{FASTER}, outputs identical{OWN}",
    ),
    (
        "a short cell is slower by a time, of which no ratio is told",
        cell(region(), time=took(1.0, 20.0)),
        (),
        f"cell 19.0 ms slower (1 -> 20 ms), outputs identical{OWN}",
    ),
    (
        "slower is said to be slower, whatever its calls took",
        cell(region(), time=took(300.0, 860.0)),
        (),
        f"cell 2.9x slower (0.30 -> 0.86 s), outputs identical{OWN}",
    ),
    (
        "a little slower",
        cell(region(), time=took(300.0, 312.0)),
        (),
        f"cell 4% slower (0.30 -> 0.31 s), outputs identical{OWN}",
    ),
    (
        "slower, with nothing replayed",
        cell(refused("GR101", ".item()"), time=took(300.0, 420.0)),
        (SYNC,),
        f"cell 1.4x slower (0.30 -> 0.42 s); not accelerated: {FORWARD} stays eager (GR101 host-sync, In[4], line 11), "
        f"1 blocker left{OWN}",
    ),
    (
        "first calls are not Grape's",
        cell(region(), time=took(300.0, 450.0, cold_ms=120.0)),
        (),
        f"cell 1.1x slower (0.30 -> 0.45 s, first calls 0.12 s of it), outputs identical{OWN}",
    ),
    (
        "a change too small to matter",
        cell(region(), time=took(305.0, 300.0)),
        (),
        f"no significant change (0.30 -> 0.30 s), outputs identical{OWN}",
    ),
    (
        "graphs that save too little",
        cell(region(), time=took(305.0, 300.0), given_up=TOO_LITTLE),
        (),
        f"no significant change (0.30 -> 0.30 s), outputs identical; {TOO_LITTLE}: it runs as written from now on{OWN}",
    ),
    (
        "graphs that save less than operator streams do",
        cell(
            observed(),
            time=took(305.0, 300.0),
            given_up="graphs would save 20% of the cell",
            left_to="streams serve it",
        ),
        (),
        f"no significant change (0.30 -> 0.30 s); observed 64 calls of {FORWARD}; graphs would save 20% of the cell: "
        f"streams serve it from now on{OWN}",
    ),
    (
        "graphs that save too little, and replayed nothing yet",
        cell(observed(), time=took(305.0, 300.0), given_up=TOO_LITTLE),
        (),
        f"no significant change (0.30 -> 0.30 s); observed 64 calls of {FORWARD}; {TOO_LITTLE}: it runs as written "
        f"from now on{OWN}",
    ),
    (
        "GPU-bound",
        cell(region(before=BUSY), time=took(300.0, 301.0)),
        (),
        f"no significant change (0.30 -> 0.30 s): the GPU is already busy 98% of the time, outputs identical{OWN}",
    ),
    (
        "a finding explains it",
        cell(region(), time=took(300.0, 301.0)),
        (GR406,),
        f"no significant change (0.30 -> 0.30 s): the graph saves 1% of a call, outputs identical{OWN}",
    ),
    (
        "outputs not compared: nothing is claimed",
        cell(region(verified=None)),
        (),
        f"replayed 58 of 64 calls of {FORWARD}; no change claimed (0.86 -> 0.30 s), outputs not compared{OWN}",
    ),
    (
        "too few calls as written were timed",
        cell(region(), time=took(860.0, 300.0, samples=19)),
        (),
        f"replayed 58 of 64 calls of {FORWARD}; ratio not claimed: only 19 calls as written timed, 20 are needed "
        f"(0.86 -> 0.30 s), outputs identical{OWN}",
    ),
    ("twenty are enough", cell(region(), time=took(860.0, 300.0, samples=20)), (), f"{FASTER}, outputs identical{OWN}"),
    (
        "slower is said from fewer",
        cell(region(), time=took(300.0, 860.0, samples=2)),
        (),
        f"cell 2.9x slower (0.30 -> 0.86 s), outputs identical{OWN}",
    ),
    (
        "the plain time is not known",
        cell(region(), time=took(None, 300.0, basis="no warm call of step as written was timed")),
        (),
        f"replayed 58 of 64 calls of {FORWARD}; what the plain cell takes is not known: "
        f"no warm call of step as written was timed, outputs identical{OWN}",
    ),
    (
        "a short cell, and hardly any own time",
        cell(region(), time=took(86.0, 30.0, own=OwnTime(observe_ms=0.2))),
        (),
        "cell 2.9x faster (86 -> 30 ms), outputs identical",
    ),
    (
        "not worthwhile",
        cell(refused("GR406", "the graph saves 1% of a call")),
        (),
        f"{SAME}; the graph saves 1% of a call{OWN}",
    ),
    (
        "refused",
        cell(refused("GR101", ".item()")),
        (SYNC,),
        f"{SAME}; not accelerated: {FORWARD} stays eager (GR101 host-sync, In[4], line 11), 1 blocker left{OWN}",
    ),
    (
        "observed",
        cell(observed(calls=1)),
        (launch_bound(),),
        f"{SAME}; observed 1 call of {FORWARD}; accelerated when it is called again{OWN}",
    ),
    (
        "observed with a blocker of its own",
        cell(observed(calls=3)),
        (SYNC,),
        f"{SAME}; observed 3 calls of {FORWARD}; blockers keep it from being accelerated, 1 blocker left{OWN}",
    ),
    (
        "observed with a blocker elsewhere",
        cell(observed(calls=3)),
        (host_sync(region="sample_token"),),
        f"{SAME}; observed 3 calls of {FORWARD}; accelerated when it is called again, 1 blocker left{OWN}",
    ),
    (
        "each call had new shapes",
        cell(observed(**growing(*[1] * 123))),
        (),
        f"{SAME}; observed 123 calls of {FORWARD}, each with new shapes; run the cell again to have them captured{OWN}",
    ),
    (
        "shapes that came twice at most, and a policy that waits",
        cell(observed(**growing(2, 1, 1), decisions=(wait(),))),
        (host_sync(region="sample_token"),),
        f"{SAME}; observed 4 calls of {FORWARD} with 3 different shapes; run the cell again to have them captured, "
        f"1 blocker left{OWN}",
    ),
    (
        "one shape is not new shapes",
        cell(observed(**growing(2))),
        (),
        f"{SAME}; observed 2 calls of {FORWARD}; accelerated when it is called again{OWN}",
    ),
    (
        "a shape that came often is waited for with its reason",
        cell(observed(**growing(9, 1), decisions=(wait("9 expected calls would save 18 ms, less than 65 ms."),))),
        (),
        f"{SAME}; observed 10 calls of {FORWARD}; not captured yet: 9 expected calls would save 18 ms, "
        f"less than 65 ms{OWN}",
    ),
    (
        "shapes known from an earlier run are not new",
        cell(observed(**growing(1, 1, 1, earlier=1), decisions=(wait("it costs more than it saves"),))),
        (),
        f"{SAME}; observed 3 calls of {FORWARD}; not captured yet: it costs more than it saves{OWN}",
    ),
    (
        "the second run captured them",
        cell(observed(**growing(*[1] * 30, captured=30, earlier=1), verified="identical")),
        (),
        f"{SAME}; observed 30 calls of {FORWARD}, all 30 shapes captured; "
        f"run the cell again to have them replayed{OWN}",
    ),
    (
        "captured by its last call",
        cell(observed(**growing(6, captured=1))),
        (),
        f"{SAME}; observed 6 calls of {FORWARD}, captured; run the cell again to have them replayed{OWN}",
    ),
    (
        "not expected to pay",
        cell(observed(calls=1019, decisions=(drop("2 expected calls save 2 ms, a capture costs 400 ms."),))),
        (),
        f"{SAME}; observed 1,019 calls of {FORWARD}; left eager: 2 expected calls save 2 ms, "
        f"a capture costs 400 ms{OWN}",
    ),
    (
        "not expected to pay because the GPU is busy",
        cell(observed(before=BUSY, decisions=(drop("saves nothing"),))),
        (),
        f"{SAME}; the GPU is already busy 98% of the time{OWN}",
    ),
    (
        "--profile",
        cell(observed(), profile_only=True),
        (SYNC,),
        f"{SAME}; observed 64 calls of {FORWARD}; nothing applied (--profile), 1 blocker left{OWN}",
    ),
    (
        "no GPU, replayed on the tape",
        tape_cell(region()),
        (SYNC, SYNC),
        "no GPU here: nothing gets faster; checked: 1 part of this cell could be a CUDA graph, same results; "
        f"cell 1.4x slower (0.30 -> 0.42 s), 2 blockers left{OWN}",
    ),
    (
        "no GPU, and no faster, whatever was measured",
        tape_cell(region(), region("embed"), time=took(860.0, 300.0)),
        (),
        f"no GPU here: nothing gets faster; checked: 2 parts of this cell could be a CUDA graph, same results{OWN}",
    ),
    (
        "no GPU, within a tolerance",
        tape_cell(region(verified="within 0.001"), time=took(300.0, 301.0)),
        (),
        "no GPU here: nothing gets faster; checked: 1 part of this cell could be a CUDA graph, "
        f"results within their tolerances{OWN}",
    ),
    (
        "no GPU, observed",
        tape_cell(observed(calls=3), time=None),
        (),
        f"no GPU here: nothing gets faster; observed 3 calls of {FORWARD}",
    ),
    (
        "no GPU, looking had an end: later calls were not counted",
        tape_cell(observed(calls=3), time=None, looked_on=False),
        (),
        f"no GPU here: nothing gets faster; observed the first 3 calls of {FORWARD}",
    ),
    (
        "the same after one call",
        cell(observed(calls=1), looked_on=False),
        (),
        f"{SAME}; observed the first call of {FORWARD}; accelerated when it is called again{OWN}",
    ),
    (
        "iterations of a loop",
        tape_cell(observed(name="loop at line 5", calls=97), time=None),
        (),
        "no GPU here: nothing gets faster; observed 97 iterations of the loop at line 5",
    ),
    (
        "no GPU, each call had new shapes",
        tape_cell(observed(**growing(1, 1, 1)), time=None),
        (),
        f"no GPU here: nothing gets faster; observed 3 calls of {FORWARD}, each with new shapes",
    ),
    (
        "no GPU, refused",
        tape_cell(refused("GR405", "autograd"), time=None),
        (),
        f"no GPU here: nothing gets faster; {FORWARD} stays eager (GR405 unsupported, In[4], line 11)",
    ),
    (
        "no GPU, no region",
        tape_cell(trace=operators(), time=None),
        (),
        "no GPU here: nothing gets faster; no PyTorch work in it repeats",
    ),
    (
        "no GPU, no region, one operator again and again",
        tape_cell(trace=operators(40), time=None),
        (),
        "no GPU here: nothing gets faster; what repeats in it is too small to be a CUDA graph",
    ),
    (
        "no GPU, no region, a small function again and again",
        tape_cell(trace=operators(), time=None, called_again=34),
        (),
        "no GPU here: nothing gets faster; what repeats in it is too small to be a CUDA graph",
    ),
    (
        "model on the CPU of a CUDA machine",
        tape_cell(region(), cuda=True, time=None),
        (),
        "the work ran on the CPU: nothing gets faster; checked: 1 part of this cell could be a CUDA graph, "
        "same results",
    ),
    ("no tensors", cell(time=None), (), "no PyTorch work in this cell"),
    ("no tensors, no GPU", tape_cell(time=None), (), "no PyTorch work in this cell"),
    (
        "too little to tell of, no GPU",
        tape_cell(time=None, torch_ran=True),
        (),
        "no GPU here: nothing gets faster; its PyTorch work is too small to gain",
    ),
    ("too little to tell of", cell(time=None, torch_ran=True), (), "its PyTorch work is too small to gain"),
    (
        "no tensors, and slower all the same",
        cell(time=took(300.0, 360.0)),
        (),
        f"cell 1.2x slower (0.30 -> 0.36 s); no PyTorch work in this cell{OWN}",
    ),
    (
        "operators but nothing twice",
        cell(trace=operators()),
        (),
        f"{SAME}; no GPU work in it repeats, so there is nothing to replay{OWN}",
    ),
    (
        "a busy GPU and no region",
        cell(timeline=BUSY, time=None),
        (),
        "no significant change: the GPU is already busy 98% of the time",
    ),
    (
        "only an error",
        cell(error="ValueError: boom", time=None),
        (),
        "stopped by ValueError; no PyTorch work in this cell",
    ),
    (
        "an error after replays",
        cell(region(), error="torch.OutOfMemoryError: CUDA out of memory"),
        (),
        f"stopped by torch.OutOfMemoryError; {FASTER}, outputs identical{OWN}",
    ),
    ("an error without a name", cell(error="?", time=None), (), "stopped by an error; no PyTorch work in this cell"),
    (
        "a name that is no name",
        cell(region("<lambda>\x1b[31m" + "x" * 90, verified=None, calls=1_000_000), time=None),
        (),
        "replayed 58 of 1,000,000 calls of <lambda>\ufffd[31m" + "x" * 34 + "\u2026; the cell's time was not measured, "
        "outputs not compared",
    ),
]


@pytest.mark.parametrize(("evidence", "findings", "verdict"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_verdict(evidence: CellEvidence, findings: tuple[Finding, ...], verdict: str) -> None:
    assert build_report(evidence, findings).verdict == verdict


@pytest.mark.parametrize("evidence", [c[1] for c in CASES], ids=[c[0] for c in CASES])
def test_a_verdict_is_one_line_and_agrees_with_speedup(evidence: CellEvidence) -> None:
    report = build_report(evidence, ())
    assert len(report.verdict.splitlines()) == 1
    faster = "faster" in report.verdict.replace("nothing gets faster", "")
    assert faster <= (report.speedup is not None and report.speedup > 1)


def test_the_tape_claims_no_speedup_anywhere() -> None:
    report = build_report(tape_cell(region(), memory=memory_curve()), ())
    assert report.speedup is None
    assert [r["speedup"] for r in report.to_dict()["regions"]] == [None]


@pytest.mark.parametrize(("before", "after", "claimed"), [(19, 40, False), (40, 19, False), (20, 20, True)])
def test_a_regions_speedup_needs_twenty_timed_calls_on_each_side(before: int, after: int, claimed: bool) -> None:
    report = build_report(cell(region(before_ms=measured(4.68, n=before), after_ms=measured(1.14, n=after))), ())
    speedup = report.regions[0].speedup
    assert (speedup == pytest.approx(4.105, abs=1e-3)) if claimed else (speedup is None)


def test_the_speedup_of_a_report_is_that_of_the_cell() -> None:
    report = build_report(cell(region()), ())
    assert report.speedup == pytest.approx(860 / 300)
    cell_of_it = report.to_dict()["cell"]
    assert (cell_of_it["wall_ms"], cell_of_it["plain_ms"], cell_of_it["slower"]) == (300.0, 860.0, False)
    assert cell_of_it["plain_basis"] == "measured in run 2 of this cell"
    assert cell_of_it["own_ms"] == {"observe": 8.0, "record": 0.0, "capture": 0.0, "verify": 0.0, "report": 12.0}
    assert cell_of_it["served"] == {"streams": 0.0, "regions": 0.75, "as_written": 0.25}
