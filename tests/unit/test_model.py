"""The frozen data that crosses layers: what it computes and the contract of `to_dict`."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import grape.model
from grape.model import (
    CODES,
    CellEvidence,
    CellTime,
    Decision,
    Event,
    Finding,
    Fix,
    GraphMemory,
    Measured,
    MemoryCurve,
    OpRecord,
    Position,
    Reason,
    Refused,
    RegionEvidence,
    RegionReport,
    ReportData,
    ShapeCount,
    TensorView,
    Timeline,
    Trace,
)
from grape.model.sizes import size_text
from grape.model.times.measured import quartiles
from grape.model.times.timeline import covered_ns

HERE = Position(file="In[4]", line=7, function="step", instruction=12)


def view(storage: int, *, offset: int = 0, shape: tuple[int, ...] = (2, 3)) -> TensorView:
    return TensorView(
        storage=storage, offset=offset, shape=shape, stride=(3, 1), dtype="float32", device="cpu", nbytes=24
    )


def op(name: str = "aten.add.Tensor", *, ordinal: int = 0, args: tuple[Any, ...] = (), **changes: Any) -> OpRecord:
    record = OpRecord(
        ordinal=ordinal,
        name=name,
        kind="compute",
        args=args,
        kwargs=(("alpha", 1),),
        outputs=(view(9),),
        written=(),
        born=(9,),
        user=HERE,
        inner=HERE,
        host_ns=10,
    )
    return replace(record, **changes)


def trace(*ops: OpRecord) -> Trace:
    return Trace(ops=ops)


# Measured


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([3.0], (3.0, 3.0, 3.0)),
        ([1.0, 3.0], (1.5, 2.0, 2.5)),
        ([5.0, 1.0, 3.0], (2.0, 3.0, 4.0)),
        ([1.0, 2.0, 3.0, 4.0, 5.0], (2.0, 3.0, 4.0)),
    ],
)
def test_quartiles(samples: list[float], expected: tuple[float, float, float]) -> None:
    assert quartiles(samples) == expected


def test_measured_keeps_its_evidence() -> None:
    measured = Measured.of([5.0, 1.0, 3.0])
    assert measured == Measured(median_ms=3.0, q1_ms=2.0, q3_ms=4.0, n=3)
    assert measured.iqr_ms == 2.0
    assert measured.to_dict() == {"median": 3.0, "iqr": 2.0, "n": 3}


def test_nothing_measured_is_none_and_not_zero() -> None:
    assert Measured.of([]) is None


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_the_median_lies_between_its_quartiles_and_these_among_the_samples(samples: list[float]) -> None:
    measured = Measured.of(samples)
    assert measured is not None
    slack = 1e-9 * max(samples)
    assert min(samples) - slack <= measured.q1_ms <= measured.median_ms + slack
    assert measured.median_ms <= measured.q3_ms + slack <= max(samples) + 2 * slack
    assert measured.n == len(samples)


@pytest.mark.parametrize(
    ("first", "second", "below"),
    [
        ((1.0, 2.0), (3.0, 4.0), True),
        ((1.0, 3.0), (3.0, 4.0), False),
        ((1.0, 3.5), (3.0, 4.0), False),
        ((3.0, 4.0), (1.0, 2.0), False),
    ],
)
def test_clearly_below_means_that_the_interquartile_ranges_do_not_touch(
    first: tuple[float, float], second: tuple[float, float], below: bool
) -> None:
    a, b = (Measured(median_ms=(q1 + q3) / 2, q1_ms=q1, q3_ms=q3, n=20) for q1, q3 in (first, second))
    assert a.clearly_below(b) is below


# Traces


def test_equal_traces_do_not_differ() -> None:
    one, other = (trace(op(args=(view(0), 1)), op("aten.mul.Tensor", ordinal=1)) for _ in range(2))
    assert one.first_difference(other) is None
    assert one.signature() == other.signature()


def test_time_and_code_position_are_no_difference() -> None:
    moved = Position(file="In[9]", line=1, function="<module>")
    assert trace(op()).first_difference(trace(op(host_ns=999, user=moved, inner=None, ordinal=5))) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "aten.sub.Tensor"},
        {"args": (view(0), 2)},
        {"args": (view(1), 1)},
        {"args": (view(0, offset=3), 1)},
        {"args": (view(0, shape=(3, 2)), 1)},
        {"kwargs": (("alpha", 2),)},
        {"outputs": (view(8),)},
        {"written": (0,)},
        {"born": ()},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_whatever_changes_the_work_is_a_difference(changes: dict[str, Any]) -> None:
    mine = op(args=(view(0), 1))
    theirs = replace(mine, **changes)
    assert trace(op("aten.relu.default"), mine).first_difference(trace(op("aten.relu.default"), theirs)) == (
        mine,
        theirs,
    )


def test_the_first_difference_is_the_first() -> None:
    mine = [op(ordinal=0), op("a", ordinal=1), op("b", ordinal=2)]
    theirs = [op(ordinal=0), op("c", ordinal=1), op("d", ordinal=2)]
    assert trace(*mine).first_difference(trace(*theirs)) == (mine[1], theirs[1])


def test_a_longer_trace_differs_by_its_first_extra_operator() -> None:
    short, extra, more = op(ordinal=0), op("extra", ordinal=1), op("more", ordinal=2)
    assert trace(short, extra, more).first_difference(trace(short)) == (extra, None)
    assert trace(short).first_difference(trace(short, extra, more)) == (None, extra)
    assert trace().first_difference(trace(short)) == (None, short)
    assert trace().first_difference(trace()) is None


@given(st.lists(st.sampled_from("abc"), max_size=6), st.lists(st.sampled_from("abc"), max_size=6))
def test_traces_differ_exactly_where_their_signatures_do(mine: list[str], theirs: list[str]) -> None:
    one, other = (trace(*(op(name) for name in names)) for names in (mine, theirs))
    difference = one.first_difference(other)
    assert (difference is None) == (one.signature() == other.signature())
    if difference is not None:
        mirrored = other.first_difference(one)
        assert mirrored == difference[::-1]


def test_tensors_and_scalars_are_found_at_every_depth_in_order() -> None:
    record = op(args=(view(0), (view(1), (2, view(2)), None), "mean"), kwargs=(("out", view(3)), ("alpha", 0.5)))
    assert [tensor.storage for tensor in record.tensors()] == [0, 1, 2, 3]
    assert record.scalars() == (2, None, "mean", 0.5)


# Timelines


def kernel(start: int, end: int, **changes: Any) -> Event:
    event = Event(name="gemm", lane="device", category="kernel", start_ns=start, end_ns=end, stream=7)
    return replace(event, **changes)


@pytest.mark.parametrize(
    ("spans", "covered"),
    [
        ([], 0),
        ([(0, 10)], 10),
        ([(0, 10), (20, 25)], 15),
        ([(0, 10), (10, 20)], 20),
        ([(0, 10), (5, 15)], 15),
        ([(0, 10), (2, 8)], 10),
        ([(0, 10), (2, 8), (9, 12)], 12),
        ([(20, 25), (0, 10)], 15),
        ([(3, 3)], 0),
        ([(0, 10), (0, 10)], 10),
    ],
)
def test_covered_time_is_that_of_the_union(spans: list[tuple[int, int]], covered: int) -> None:
    assert covered_ns(spans) == covered


SPAN = st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(st.lists(SPAN, max_size=12))
def test_covered_time_counts_every_covered_nanosecond_once(spans: list[tuple[int, int]]) -> None:
    assert covered_ns(spans) == len({at for start, end in spans for at in range(start, end)})


def test_when_the_gpu_was_busy_is_found_once() -> None:
    timeline = Timeline(events=(), wall_ns=1)
    assert timeline.busy_spans() is timeline.busy_spans()


def test_the_gpu_is_busy_with_kernels_copies_and_memsets_of_all_streams_and_with_nothing_else() -> None:
    timeline = Timeline(
        events=(
            kernel(0, 40),
            kernel(20, 60, stream=8),
            kernel(70, 75, category="memcpy"),
            kernel(80, 85, category="memset"),
            kernel(0, 100, category="annotation"),
            kernel(0, 100, category="graph"),
            kernel(0, 100, lane="host", category="operator", stream=-1),
            kernel(0, 100, lane="launch", category="kernel"),
        ),
        wall_ns=100,
        calls=2,
    )
    assert len(timeline.device_events()) == 4
    assert timeline.gpu_busy_ns == 70
    assert timeline.gpu_busy_share == 0.7
    assert timeline.kernels_per_call == 2.0


def test_a_share_never_exceeds_one_and_an_empty_timeline_is_idle() -> None:
    assert Timeline(events=(kernel(0, 120),), wall_ns=100).gpu_busy_share == 1.0
    empty = Timeline(events=(), wall_ns=0, calls=0)
    assert (empty.gpu_busy_share, empty.gpu_busy_ns, empty.kernels_per_call) == (0.0, 0, 0.0)


def test_peaks_of_a_memory_curve() -> None:
    curve = MemoryCurve(at_ns=(0, 1, 2), allocated_bytes=(5, 9, 1), reserved_bytes=(10, 12, 12))
    assert (curve.peak_allocated_bytes, curve.peak_reserved_bytes) == (9, 12)
    assert (MemoryCurve().peak_allocated_bytes, MemoryCurve().peak_reserved_bytes) == (0, 0)


# Reports


def measured(median: float) -> Measured:
    return Measured(median_ms=median, q1_ms=median * 0.95, q3_ms=median * 1.05, n=20)


def region(**changes: Any) -> RegionEvidence:
    evidence = RegionEvidence(
        name="step",
        at=HERE,
        end_line=9,
        outcome="replayed",
        refused=None,
        calls=40,
        replays=36,
        verified="identical",
        before=Timeline(events=(kernel(0, 50),), wall_ns=100, calls=1),
        before_ms=measured(4.0),
        after_ms=measured(1.0),
        shapes=(ShapeCount(shapes=(("x", (2, 3)),), calls=40, order=0, captured=True),),
        copied_bytes_per_call=24,
        alias_hits=3,
        alias_misses=1,
        graph_bytes=4096,
    )
    return replace(evidence, **changes)


def report(*regions: RegionEvidence, findings: tuple[Finding, ...] = (), **cell: Any) -> ReportData:
    evidence = CellEvidence(
        file="In[4]", source="step(x)", device="NVIDIA H200", backend="cuda", wall_ms=12.5, regions=regions, **cell
    )
    return ReportData(
        verdict="4.0x faster per call",
        evidence=evidence,
        regions=tuple(RegionReport.of(r) for r in regions),
        findings=findings,
    )


FINDING = Finding(
    code="GR101",
    severity="blocker",
    message="`.item()` waits for the GPU",
    at=HERE,
    region="step",
    evidence=(("calls", 40),),
    predicted_ms_per_call=0.4,
    fix=Fix(id=2, diff="-a\n+b\n", verified=True),
)


def test_the_contract_of_a_report() -> None:
    decision = Decision(
        action="capture", shapes="(2, 3)", seen=2, expected_calls=30.0, saving_ms=3.0, capture_ms=40.0, why="it pays"
    )
    memory = MemoryCurve(at_ns=(0,), allocated_bytes=(100,), reserved_bytes=(200,))
    counts = {
        "pool_bytes": 1,
        "placeholder_bytes": 2,
        "executable_bytes": 3,
        "record_bytes": 4,
        "host_graph_bytes": 5,
        "graphs": 6,
        "classes": 7,
        "alone": 8,
        "executables": 9,
        "switches": 10,
        "evictions": 11,
        "refused_updates": 12,
    }
    held = GraphMemory(**counts, per_graph_bytes=70)
    assert (held.device_bytes, held.host_bytes) == (6, 9)
    row = region(decisions=(decision,), graph_memory=held)
    data = report(row, findings=(FINDING,), memory=memory, notes=("a note",)).to_dict()
    assert data == {
        "version": 1,
        "device": "NVIDIA H200",
        "verdict": "4.0x faster per call",
        "cell": {
            "file": "In[4]",
            "backend": "cuda",
            "engine": "regions",
            "wall_ms": 12.5,
            "plain_ms": None,
            "plain_basis": None,
            "own_ms": {"observe": 0.0, "record": 0.0, "capture": 0.0, "verify": 0.0, "report": 0.0},
            "served": {"streams": 0.0, "regions": 0.0, "as_written": 1.0},
            "slower": False,
            "error": None,
            "notes": ["a note"],
            "peak_allocated_bytes": 100,
            "peak_reserved_bytes": 200,
            "graph_memory": None,
            "ranks": None,
            "lines": None,
            "decisions": [
                {
                    "region": "step",
                    "action": "capture",
                    "shapes": "(2, 3)",
                    "seen": 2,
                    "expected_calls": 30.0,
                    "saving_ms": 3.0,
                    "capture_ms": 40.0,
                    "why": "it pays",
                }
            ],
        },
        "streams": [],
        "regions": [
            {
                "name": "step",
                "file": "In[4]",
                "line": 7,
                "outcome": "replayed",
                "reason": None,
                "calls": 40,
                "replays": 36,
                "before_ms": {"median": 4.0, "iqr": pytest.approx(0.4), "n": 20},
                "after_ms": {"median": 1.0, "iqr": pytest.approx(0.1), "n": 20},
                "predicted_ms": None,
                "speedup": 4.0,
                "verified": "identical",
                "shapes": 1,
                "copied_bytes_per_call": 24,
                "alias_hits": 3,
                "alias_misses": 1,
                "graph_bytes": 4096,
                "wasted_iterations": 0,
                "paired": False,
                "kernels_per_call": 1.0,
                "gpu_busy_share": 0.5,
                "graph_memory": {**counts, "estimated_per_graph_bytes": 70},
            }
        ],
        "findings": [
            {
                "code": "GR101",
                "name": "host-sync",
                "severity": "blocker",
                "file": "In[4]",
                "line": 7,
                "end_line": 7,
                "message": "`.item()` waits for the GPU",
                "evidence": {"calls": 40},
                "predicted_ms_per_call": 0.4,
                "fixable": True,
                "fix": {"id": 2, "diff": "-a\n+b\n", "verified": True},
            }
        ],
    }
    assert json.loads(json.dumps(data)) == data


def test_the_keys_stay_where_nothing_was_measured() -> None:
    bare = region(
        outcome="refused",
        refused=Refused.because(Reason.HOST_DATA, HERE, operator="aten.copy"),
        replays=0,
        verified=None,
        before=None,
        before_ms=None,
        after_ms=None,
    )
    full, empty = report(region()).to_dict(), report(bare).to_dict()
    assert empty["regions"][0].keys() == full["regions"][0].keys()
    assert empty["regions"][0]["reason"] == "GR302"
    for key in ("before_ms", "after_ms", "speedup", "verified", "kernels_per_call", "gpu_busy_share"):
        assert empty["regions"][0][key] is None


def test_a_finding_without_a_line_or_a_fix_says_null() -> None:
    data = replace(FINDING, at=None, fix=None).to_dict()
    assert data.keys() == FINDING.to_dict().keys()
    assert (data["file"], data["line"], data["end_line"], data["fix"]) == (None, None, None, None)
    assert replace(FINDING, end_line=11).to_dict()["end_line"] == 11


@pytest.mark.parametrize(
    ("changes", "speedup"),
    [
        ({}, 4.0),
        ({"verified": None}, None),
        ({"verified": "within 1e-06"}, 4.0),
        ({"before_ms": None}, None),
        ({"after_ms": None}, None),
        ({"after_ms": measured(4.1)}, None),
        ({"after_ms": measured(8.0)}, 0.5),
    ],
)
def test_a_speedup_is_claimed_only_with_verified_outputs_and_separate_ranges(
    changes: dict[str, Any], speedup: float | None
) -> None:
    assert RegionReport.of(region(**changes)).speedup == speedup


def test_the_main_region_is_the_costliest_that_was_replayed() -> None:
    cheap = region(name="cheap", before_ms=measured(0.5))
    costly = region(name="costly", before_ms=measured(2.0), after_ms=measured(1.0))
    refused = region(name="refused", outcome="refused", before_ms=measured(50.0), verified=None)
    whole = report(cheap, costly, refused)
    assert whole.main_region is not None
    assert whole.main_region.name == "costly"
    assert report(refused).main_region == RegionReport.of(refused)


def test_the_timelines_are_those_of_the_main_region_or_of_the_cell() -> None:
    after = Timeline(events=(), wall_ns=30)
    other = region(name="other", before_ms=measured(0.1), before=None)
    main = region(after=after)
    assert report(other, main).timelines() == (main.before, after)
    assert report(timeline=after).timelines() == (after, None)


def test_a_report_without_regions_has_no_main_region() -> None:
    assert report().main_region is None
    assert report().speedup is None


@pytest.mark.parametrize(
    ("plain_ms", "wall_ms", "cold_ms", "ratio"),
    [
        (860.0, 300.0, 0.0, 860 / 300),
        (300.0, 420.0, 0.0, 300 / 420),
        (300.0, 308.9, 0.0, None),
        (300.0, 291.1, 0.0, None),
        (300.0, 310.0, 0.0, 300 / 310),
        (300.0, 420.0, 120.0, None),
        (300.0, 420.0, 60.0, 300 / 360),
        (None, 420.0, 0.0, None),
        (0.0, 1.0, 0.0, None),
        (3.0, 7.9, 0.0, None),
        (6.0, 2.0, 0.0, 3.0),
    ],
)
def test_what_is_said_of_a_cells_time(
    plain_ms: float | None, wall_ms: float, cold_ms: float, ratio: float | None
) -> None:
    time = CellTime(wall_ms=wall_ms, plain_ms=plain_ms, basis="", cold_ms=cold_ms)
    assert time.ratio == (pytest.approx(ratio) if ratio else None)
    assert time.slower is (ratio is not None and ratio < 1)


@pytest.mark.parametrize(
    ("changes", "time", "claimed"),
    [
        ({}, {}, True),
        ({"verified": None}, {}, False),
        ({}, {"samples": 19}, False),
        ({}, {"samples": 20}, True),
        ({"outcome": "observed", "replays": 0}, {}, False),
    ],
)
def test_a_cell_is_faster_only_where_that_is_proven(
    changes: dict[str, Any], time: dict[str, Any], claimed: bool
) -> None:
    took = CellTime(wall_ms=300.0, plain_ms=860.0, basis="", **time)
    told = report(region(**changes), time=took, cuda=True)
    assert told.speedup == (pytest.approx(860 / 300) if claimed else None)
    longer = CellTime(wall_ms=860.0, plain_ms=300.0, basis="", **time)
    slower = report(region(**changes), time=longer, cuda=True)
    assert slower.speedup == pytest.approx(300 / 860)


def test_every_code_is_named_once() -> None:
    assert len(set(CODES.values())) == len(CODES)
    assert all(code.startswith("GR") and len(code) == 5 for code in CODES)
    assert Finding(code="GR202", severity="hint", message="", at=None).name == "growing-state"


def test_positions_read_as_people_say_them() -> None:
    assert str(HERE) == "In[4], line 7"


@pytest.mark.parametrize("name", sorted(grape.model.__all__))
def test_values_that_cross_layers_are_frozen(name: str) -> None:
    kind = getattr(grape.model, name)
    if not dataclasses.is_dataclass(kind):
        constants = {"CODES", "DECISION", "DEVICE_WORK", "FEWEST_SAMPLES", "HOST_RANDOM", "LEAST_MS", "SIGNIFICANT"}
        rows = {"Later", "Reason"}
        assert name in constants | rows | {"Category", "Kind", "Lane", "Outcome", "Severity", "quartiles"}
        return
    assert kind.__dataclass_params__.frozen
    assert "__slots__" in vars(kind)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1000, "1000 B"),
        (1536, "1.5 KB"),
        (1010 * 2**10, "1010 KB"),
        (91 * 2**20, "91 MB"),
        (2**40, "1024 GB"),
    ],
)
def test_sizes_in_sentences_have_no_exponent(nbytes: int, text: str) -> None:
    assert size_text(nbytes) == text
