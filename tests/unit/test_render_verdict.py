"""The verdict, word for word."""

from __future__ import annotations

from typing import Any

import pytest

from grape.model import CellEvidence, Decision, Finding, ShapeCount
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


def growing(*calls: int, captured: int = 0) -> dict[str, Any]:
    """`calls[i]` calls with the i-th shape of a growing argument; the first `captured` shapes have a graph."""
    shapes = tuple(
        ShapeCount(shapes=(("past", (1, 5 + i)),), calls=n, order=i, captured=i < captured) for i, n in enumerate(calls)
    )
    return {"shapes": shapes, "calls": sum(calls)}


CASES: list[tuple[str, CellEvidence, tuple[Finding, ...], str]] = [
    ("issue's line", *sample(), "4.1x faster per call (4.68 -> 1.14 ms, n=40), outputs identical, 1 blocker left"),
    (
        "no blocker",
        cell(region()),
        (launch_bound(),),
        "4.1x faster per call (4.68 -> 1.14 ms, n=40), outputs identical",
    ),
    (
        "tolerance",
        cell(region(verified="within 0.001")),
        (SYNC, SYNC),
        "4.1x faster per call (4.68 -> 1.14 ms, n=40), outputs within 0.001, 2 blockers left",
    ),
    (
        "two replayed regions are told apart by name",
        cell(region(), region("embed", before_ms=measured(0.5), after_ms=measured(0.2), verified="within 0.001")),
        (),
        f"4.1x faster per call of {FORWARD} (4.68 -> 1.14 ms, n=40), 1 more region replayed, outputs within 0.001",
    ),
    (
        "one of two not compared",
        cell(region(), region("embed", before_ms=measured(0.5), after_ms=measured(0.2), verified=None)),
        (),
        f"4.1x faster per call of {FORWARD} (4.68 -> 1.14 ms, n=40), 1 more region replayed, "
        "outputs not compared in 1 of them",
    ),
    (
        "the larger part of the cell stayed eager",
        cell(region(), refused("GR101", "sync", name="sample_token", before_ms=measured(20.0))),
        (SYNC,),
        f"4.1x faster per call of {FORWARD} (4.68 -> 1.14 ms, n=40), sample_token stays eager, outputs identical, "
        "1 blocker left",
    ),
    (
        "a caller of the main region does not count as another one",
        cell(region(parent="generate"), observed(name="generate", before_ms=measured(900.0))),
        (),
        "4.1x faster per call (4.68 -> 1.14 ms, n=40), outputs identical",
    ),
    (
        "slower is said to be slower",
        cell(region(before_ms=measured(1.14), after_ms=measured(4.68))),
        (),
        "4.1x slower per call (1.14 -> 4.68 ms, n=40), outputs identical",
    ),
    (
        "clear, but too small to matter",
        cell(region(before_ms=measured(4.68), after_ms=measured(4.58))),
        (),
        "no significant change (4.68 -> 4.58 ms per call, n=40), outputs identical",
    ),
    (
        "ranges overlap",
        cell(region(before_ms=measured(4.68, spread=0.5), after_ms=measured(3.0, spread=0.5))),
        (),
        "no significant change (4.68 -> 3.00 ms per call, n=40), outputs identical",
    ),
    (
        "outputs not compared: nothing is claimed",
        cell(region(verified=None)),
        (),
        "no change claimed (4.68 -> 1.14 ms per call, n=40), outputs not compared",
    ),
    (
        "GPU-bound",
        cell(region(before=BUSY, before_ms=measured(4.68), after_ms=measured(4.67, n=20))),
        (),
        "no significant change: the GPU is already busy 98% of the time (4.68 -> 4.67 ms per call, n=20), "
        "outputs identical",
    ),
    (
        "a finding explains it",
        cell(region(before_ms=measured(4.68), after_ms=measured(4.67))),
        (GR406,),
        "no significant change: the graph saves 1% of a call (4.68 -> 4.67 ms per call, n=40), outputs identical",
    ),
    (
        "too few eager calls were timed",
        cell(region(before_ms=measured(4.68, n=19))),
        (),
        f"replayed 58 of 64 calls of {FORWARD}; ratio not claimed: only 19 eager calls timed, 20 are needed "
        "(4.68 -> 1.14 ms), outputs identical",
    ),
    (
        "too few replays were timed, and nothing is said of a change either",
        cell(region(before_ms=measured(1.14), after_ms=measured(1.14, n=1), verified=None)),
        (),
        f"replayed 58 of 64 calls of {FORWARD}; ratio not claimed: only 1 replayed call timed, 20 are needed "
        "(1.14 -> 1.14 ms), outputs not compared",
    ),
    (
        "twenty on both sides are enough",
        cell(region(before_ms=measured(4.68, n=20), after_ms=measured(1.14, n=20))),
        (),
        "4.1x faster per call (4.68 -> 1.14 ms, n=20), outputs identical",
    ),
    (
        "a median of nothing is no ratio",
        cell(region(after_ms=measured(0.0))),
        (),
        "no significant change (4.68 -> 0 ms per call, n=40), outputs identical",
    ),
    (
        "replayed, not timed",
        cell(region(after_ms=None)),
        (),
        f"replayed 58 of 64 calls of {FORWARD}; its time was not measured, outputs identical",
    ),
    (
        "not worthwhile",
        cell(refused("GR406", "the graph saves 1% of a call")),
        (),
        "no significant change: the graph saves 1% of a call",
    ),
    (
        "not worthwhile, GPU-bound",
        cell(refused("GR406", "not faster", before=BUSY, after_ms=measured(4.7), verified="identical")),
        (),
        "no significant change: the GPU is already busy 98% of the time (4.68 -> 4.70 ms per call, n=40)",
    ),
    (
        "refused",
        cell(refused("GR101", ".item()")),
        (SYNC,),
        f"not accelerated: {FORWARD} stays eager (GR101 host-sync, In[4], line 11), 1 blocker left",
    ),
    (
        "observed",
        cell(observed(calls=1)),
        (launch_bound(),),
        f"observed: 1 call of {FORWARD}; accelerated when it is called again",
    ),
    (
        "observed with a blocker of its own",
        cell(observed(calls=3)),
        (SYNC,),
        f"observed: 3 calls of {FORWARD}; 1 blocker to remove before it can be accelerated",
    ),
    (
        "observed with a blocker elsewhere",
        cell(observed(calls=3)),
        (host_sync(region="sample_token"),),
        f"observed: 3 calls of {FORWARD}; accelerated when it is called again, 1 blocker left",
    ),
    (
        "each call had new shapes",
        cell(observed(**growing(*[1] * 123))),
        (),
        f"observed: 123 calls of {FORWARD}, each with new shapes; run the cell again to have them captured",
    ),
    (
        "shapes that came twice at most, and a policy that waits",
        cell(observed(**growing(2, 1, 1), decisions=(wait(),))),
        (host_sync(region="sample_token"),),
        f"observed: 4 calls of {FORWARD} with 3 different shapes; run the cell again to have them captured, "
        "1 blocker left",
    ),
    (
        "one shape is not new shapes",
        cell(observed(**growing(2))),
        (),
        f"observed: 2 calls of {FORWARD}; accelerated when it is called again",
    ),
    (
        "a shape that came often is waited for with its reason",
        cell(observed(**growing(9, 1), decisions=(wait("9 expected calls would save 18 ms, less than 65 ms."),))),
        (),
        f"observed: 10 calls of {FORWARD}; not captured yet: 9 expected calls would save 18 ms, less than 65 ms",
    ),
    (
        "shapes known from an earlier run are not new",
        cell(observed(**{**growing(2, 2, 2), "calls": 3}, decisions=(wait("it costs more than it saves"),))),
        (),
        f"observed: 3 calls of {FORWARD}; not captured yet: it costs more than it saves",
    ),
    (
        "the second run captured them",
        cell(observed(**{**growing(*[2] * 30, captured=30), "calls": 30}, verified="identical")),
        (),
        f"observed: 30 calls of {FORWARD}, all 30 shapes captured; run the cell again to have them replayed",
    ),
    (
        "captured by its last call",
        cell(observed(**growing(6, captured=1))),
        (),
        f"observed: 6 calls of {FORWARD}, captured; run the cell again to have them replayed",
    ),
    (
        "a blocker comes before new shapes",
        cell(observed(**growing(1, 1, 1))),
        (SYNC,),
        f"observed: 3 calls of {FORWARD}; 1 blocker to remove before it can be accelerated",
    ),
    (
        "no GPU, each call had new shapes",
        tape_cell(observed(**growing(1, 1, 1))),
        (),
        f"not measured: no CUDA device; observed 3 calls of {FORWARD}, each with new shapes",
    ),
    (
        "no GPU, captured",
        tape_cell(observed(**{**growing(2, 2, captured=1), "calls": 2})),
        (),
        f"not measured: no CUDA device; observed 2 calls of {FORWARD}, 1 of 2 shapes captured",
    ),
    (
        "not expected to pay",
        cell(observed(calls=1019, decisions=(drop("2 expected calls save 2 ms, a capture costs 400 ms."),))),
        (),
        f"observed: 1,019 calls of {FORWARD}; left eager: 2 expected calls save 2 ms, a capture costs 400 ms",
    ),
    (
        "not expected to pay because the GPU is busy",
        cell(observed(before=BUSY, decisions=(drop("saves nothing"),))),
        (),
        "no significant change: the GPU is already busy 98% of the time",
    ),
    (
        "--profile",
        cell(observed(), profile_only=True),
        (SYNC,),
        f"observed: 64 calls of {FORWARD}; nothing applied (--profile), 1 blocker left",
    ),
    (
        "no GPU, replayed on the tape",
        tape_cell(region()),
        (SYNC, SYNC),
        "not measured: no CUDA device; 1 region replayed on the CPU reference, outputs identical, 2 blockers left",
    ),
    (
        "no GPU, two replayed",
        tape_cell(region(), region("embed")),
        (),
        "not measured: no CUDA device; 2 regions replayed on the CPU reference, outputs identical",
    ),
    (
        "no GPU, observed",
        tape_cell(observed(calls=3)),
        (),
        f"not measured: no CUDA device; observed 3 calls of {FORWARD}",
    ),
    (
        "no GPU, refused",
        tape_cell(refused("GR405", "autograd")),
        (),
        f"not measured: no CUDA device; {FORWARD} stays eager (GR405 unsupported, In[4], line 11)",
    ),
    (
        "no GPU, no region",
        tape_cell(trace=operators()),
        (),
        "not measured: no CUDA device; no device work was seen to repeat",
    ),
    (
        "model on the CPU of a CUDA machine",
        tape_cell(region(), cuda=True),
        (),
        "not measured: the work ran on the CPU; 1 region replayed on the CPU reference, outputs identical",
    ),
    ("no tensors", cell(), (), "no PyTorch work in this cell"),
    ("no tensors, no GPU", tape_cell(), (), "no PyTorch work in this cell"),
    (
        "operators but nothing twice",
        cell(trace=operators()),
        (),
        "no significant change: no device work repeats, so there is nothing to replay",
    ),
    (
        "a busy GPU and no region",
        cell(timeline=BUSY),
        (),
        "no significant change: the GPU is already busy 98% of the time",
    ),
    ("only an error", cell(error="ValueError: boom"), (), "stopped by ValueError; no PyTorch work in this cell"),
    (
        "an error after replays",
        cell(region(), error="torch.OutOfMemoryError: CUDA out of memory"),
        (),
        "stopped by torch.OutOfMemoryError; 4.1x faster per call (4.68 -> 1.14 ms, n=40), outputs identical",
    ),
    ("an error without a name", cell(error="?"), (), "stopped by an error; no PyTorch work in this cell"),
    (
        "microseconds and a large factor",
        cell(region(before_ms=measured(0.09), after_ms=measured(0.0004))),
        (),
        "225x faster per call (90.0 -> 0.400 us, n=40), outputs identical",
    ),
    (
        "a name that is no name",
        cell(region("<lambda>\x1b[31m" + "x" * 90, after_ms=None, calls=1_000_000)),
        (),
        "replayed 58 of 1,000,000 calls of <lambda>\ufffd[31m" + "x" * 34 + "\u2026; its time was not measured, "
        "outputs identical",
    ),
]


@pytest.mark.parametrize(("evidence", "findings", "verdict"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_verdict(evidence: CellEvidence, findings: tuple[Finding, ...], verdict: str) -> None:
    assert build_report(evidence, findings).verdict == verdict


@pytest.mark.parametrize("evidence", [c[1] for c in CASES], ids=[c[0] for c in CASES])
def test_a_verdict_is_one_line_and_agrees_with_speedup(evidence: CellEvidence) -> None:
    report = build_report(evidence, ())
    assert len(report.verdict.splitlines()) == 1
    assert ("faster" in report.verdict) <= (report.speedup is not None and report.speedup > 1)


def test_the_tape_claims_no_speedup_anywhere() -> None:
    report = build_report(tape_cell(region(), memory=memory_curve()), ())
    assert report.speedup is None
    assert [r["speedup"] for r in report.to_dict()["regions"]] == [None]


@pytest.mark.parametrize(("before", "after", "claimed"), [(19, 40, False), (40, 19, False), (20, 20, True)])
def test_a_speedup_needs_twenty_timed_calls_on_each_side(before: int, after: int, claimed: bool) -> None:
    report = build_report(cell(region(before_ms=measured(4.68, n=before), after_ms=measured(1.14, n=after))), ())
    assert (report.speedup == pytest.approx(4.105, abs=1e-3)) if claimed else (report.speedup is None)
