"""What streams say of themselves: counts, their differences, and the words of the report."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from grape.model import CellEvidence, CellTime, Position, Stop, StreamEvidence
from grape.model.stream import NO_ROOM, WAITING, added
from grape.options import Options, engine_named, parse_options
from grape.render import build_report
from grape.render.timeline.view import build_view
from grape.render.verdict.next_step import next_step
from grape.streams import Evidence, Settings, Stream, shared
from tests.property.stream_programs import needs_compiler

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "report.schema.json").read_text(encoding="utf-8"))
NO_COUNTS = ("written", "uncaptured", "last_divergence", "stops")
COUNTS = {field.name: 0 for field in fields(Evidence) if field.name not in NO_COUNTS}


def counted(**changes: Any) -> Evidence:
    return Evidence(**{**COUNTS, "written": {}, "uncaptured": {}, **changes})


EARLIER = counted(seen=10, matched=4, written={"host read": 2, "number changed": 1}, fragments=1, diverged=1)
LATER = replace(EARLIER, seen=30, matched=20, written={"host read": 5, "number changed": 1, "raised": 1}, fragments=3)


def test_what_came_since() -> None:
    later = replace(LATER, bytes=8, uncaptured={"broken": 2}, last_divergence="expected a, found b")
    since = later.since(replace(EARLIER, uncaptured={"broken": 1}))
    assert since.uncaptured == {"broken": 1}
    assert (since.seen, since.matched, since.diverged) == (20, 16, 0)
    assert since.written == {"host read": 3, "raised": 1}
    assert (since.fragments, since.bytes) == (3, 8)
    assert since.last_divergence == "", "that was before"


def test_two_counts_together() -> None:
    both = EARLIER.plus(replace(LATER.since(EARLIER), last_divergence=""))
    assert replace(both, last_divergence="") == replace(LATER, last_divergence="")


LINE = Position(file="In[4]", line=2, function="<module>")
READ = Stop(
    operator="aten::_local_scalar_dense",
    reason="host read",
    user=LINE,
    inner=LINE,
    times=10,
    total_ns=13_000_000,
    segments=9,
)
CHANGED = replace(READ, operator="aten::mul", reason="number changed", times=4, total_ns=8_000, segments=0)
NOBODYS = replace(CHANGED, operator="aten::native_dropout", reason="random numbers", user=None, inner=None)


def test_what_ran_as_written_in_both_the_costliest_first() -> None:
    moved = replace(CHANGED, user=replace(LINE, line=3))
    assert added((CHANGED, moved), (READ, CHANGED)) == (READ, replace(CHANGED, times=8, total_ns=16_000), moved)


STREAM = StreamEvidence(
    name="In[4]",
    operators=2000,
    matched=1500,
    issued=1500,
    recorded=100,
    as_written=(("number changed", 300), ("host read", 100)),
    segments=40,
    partial=1,
    iterations=39,
    diverged=2,
    last_divergence="expected aten::mul, found aten::add",
    fragments=2,
    steps=100,
    bytes=4096,
    copies=3,
    copied_bytes=96,
    kept=1,
    own_ms=1.5,
)


def cell(*streams: StreamEvidence, **changes: Any) -> CellEvidence:
    time = CellTime(wall_ms=20.0, plain_ms=None, basis="no run of this cell as written was timed")
    known: dict[str, Any] = {
        "file": "In[4]", "source": "", "device": "CPU", "backend": "tape", "wall_ms": 20.0, "engine": "streams",
        "streams": streams, "torch_ran": True, "time": time,
    }  # fmt: skip
    return CellEvidence(**{**known, **changes})


TIMED = CellTime(wall_ms=1000.0, plain_ms=1800.0, basis="estimated in run 1 of this cell")


@pytest.mark.parametrize(
    ("evidence", "verdict"),
    [
        (
            cell(STREAM),
            "no GPU here: nothing gets faster; 1,500 of 2,000 operators launched in 40 groups instead of one by one",
        ),
        (
            cell(replace(STREAM, matched=0, segments=0)),
            "no GPU here: nothing gets faster; 2,000 operators seen and some recorded; run the cell again to have them "
            "matched",
        ),
        (
            cell(replace(STREAM, matched=0, recorded=0, operators=7, as_written=(("nothing recorded yet", 7),))),
            "no GPU here: nothing gets faster; of 7 operators none came often enough to be recorded",
        ),
        (
            cell(replace(STREAM, matched=0, as_written=(("a mode or subclass", 1900),), recorded=0)),
            "no GPU here: nothing gets faster; 1,900 of 2,000 operators ran as written: a mode or subclass",
        ),
        (
            cell(replace(STREAM, matched=0, as_written=(("a mode or subclass", 1900),))),
            "no GPU here: nothing gets faster; 2,000 operators seen and some recorded; run the cell again to have them "
            "matched",
        ),
        (
            cell(replace(STREAM, matched=0, as_written=(("beside torch.distributed.rpc", 1900),))),
            "no GPU here: nothing gets faster; 1,900 of 2,000 operators ran as written: beside torch.distributed.rpc",
        ),
        (
            cell(replace(STREAM, matched=0, as_written=((WAITING, 1900),))),
            "no GPU here: nothing gets faster; 1,900 of 2,000 operators repeat, too few yet to be worth a capture; "
            "later runs go on",
        ),
        (
            cell(replace(STREAM, matched=0, as_written=((NO_ROOM, 1900),))),
            "no GPU here: nothing gets faster; 1,900 of 2,000 operators repeat, with results larger than "
            "--memory-budget",
        ),
        (
            cell(replace(STREAM, operators=0, matched=0, recorded=0)),
            "no GPU here: nothing gets faster; no PyTorch work in this cell",
        ),
        (
            cell(replace(STREAM, matched=1400, doubted=100)),
            "no GPU here: nothing gets faster; 1,400 of 2,000 operators launched in 40 groups instead of one by one; "
            "100 ran as written this time, to tell what that saves",
        ),
        (
            cell(replace(STREAM, doubted=99)),
            "no GPU here: nothing gets faster; 1,500 of 2,000 operators launched in 40 groups instead of one by one",
        ),
        (
            cell(replace(STREAM, matched=0, doubted=1900)),
            "no GPU here: nothing gets faster; 1,900 of 2,000 operators ran as written this time, to tell what streams "
            "save",
        ),
        (cell(as_written="a reason"), "left as written: a reason"),
        (
            cell(STREAM, cuda=True, backend="cuda", time=TIMED),
            "cell 1.8x faster (1.80 -> 1.00 s); 1,500 of 2,000 operators launched in 40 groups instead of one by one",
        ),
        (
            cell(replace(STREAM, matched=0, segments=0), cuda=True, backend="cuda", time=TIMED),
            "2,000 operators seen and some recorded; run the cell again to have them matched",
        ),
        (
            cell(STREAM, cuda=True, backend="cuda"),
            "1,500 of 2,000 operators launched in 40 groups instead of one by one",
        ),
    ],
)
def test_the_verdict(evidence: CellEvidence, verdict: str) -> None:
    assert build_report(evidence, ()).verdict == verdict


def test_the_lines_of_the_report() -> None:
    text = build_report(cell(STREAM), ()).to_text(width=120)
    assert text.splitlines()[1:] == [
        "In[4] took 20.0 ms; CPU (rehearsal); operator streams",
        "",
        "operator stream: 75% of 2,000 operators matched",
        "  issued: 1,500 in 40 segments, 1 of them cut short",
        "  known: 100 operators in 2 fragments, 4.00 KB of results",
        "  comparing and recording: about 1.50 ms",
        "  as written: number changed 300, host read 100",
        "  diverged 2 times, at last: expected aten::mul, found aten::add",
    ]
    more = build_report(cell(replace(STREAM, captured=3, capture_ms=4.0, lost=1)), ()).to_text(width=120)
    assert "  captures: 3, 4.00 ms" in more.splitlines()
    assert "  given up, for they were slower than code as written: 1 fragment" in more.splitlines()
    little = build_report(cell(replace(STREAM, matched=0, issued=0, segments=0, fragments=0, steps=0)), ()).to_text()
    assert "issued" not in little and "known" not in little
    html = build_report(cell(STREAM), ()).to_html()
    assert "75% of 2,000 operators matched" in html and "expected aten::mul, found aten::add" in html


SOURCE = "for x in data:\n    total += loss(x).item() * 0.9**i\n"
STOPPED = replace(STREAM, reads=(READ,), stops=(CHANGED, NOBODYS))


def test_the_report_names_the_lines() -> None:
    text = build_report(cell(STOPPED, source=SOURCE), ()).to_text(width=120)
    assert text.splitlines()[9:] == [
        "  In[4], line 2, `loss(x).item()`: host read, 10 times, 1.30 ms each",
        "  In[4], line 2, `mul`: number changed, 4 times, 2.00 us each",
        "  no line known, `native_dropout`: random numbers, 4 times, 2.00 us each",
    ]
    html = build_report(cell(STOPPED, source=SOURCE), ()).to_html()
    assert "In[4], line 2, `loss(x).item()`: host read, 10 times, 1.30 ms each" in html
    view = build_view(build_report(cell(STOPPED, source=SOURCE), ())).data
    assert view["streams"] == [line.strip() for line in text.splitlines()[3:]]


def test_the_report_names_five_lines() -> None:
    stops = tuple(replace(CHANGED, user=replace(LINE, line=number)) for number in range(2, 9))
    text = build_report(cell(replace(STREAM, stops=stops)), ()).to_text()
    assert text.count("number changed, 4 times") == 5 and "  and 2 more lines\n" in text


def test_on_a_gpu_what_takes_less_than_a_thousandth_is_not_named() -> None:
    slow = replace(CHANGED, total_ns=20_000, user=replace(LINE, line=3))
    stopped = replace(STREAM, stops=(slow, replace(CHANGED, total_ns=19_999)))
    text = build_report(cell(stopped, cuda=True, backend="cuda", time=TIMED), ()).to_text(width=120)
    assert "In[4], line 3, `mul`: number changed" in text and "In[4], line 2" not in text


def test_rows_in_the_contract() -> None:
    known = build_report(cell(STOPPED), ()).to_dict()["streams"][0]
    assert known["reads"] == [
        {
            "operator": "aten::_local_scalar_dense",
            "reason": "host read",
            "file": "In[4]",
            "line": 2,
            "function": "<module>",
            "times": 10,
            "total_ms": 13.0,
            "segments": 9,
        }
    ]
    assert [(row["operator"], row["file"], row["line"]) for row in known["stops"]] == [
        ("aten::mul", "In[4]", 2),
        ("aten::native_dropout", None, None),
    ]
    whole = json.loads(build_report(cell(STOPPED), ()).to_json())
    assert [error.message for error in Draft202012Validator(SCHEMA).iter_errors(whole)] == []


def test_the_engine_of_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRAPE_ENGINE", raising=False)
    assert engine_named(Options().engine) == "auto"
    assert engine_named(parse_options("--engine streams").engine) == "streams"
    monkeypatch.setenv("GRAPE_ENGINE", "streams")
    assert engine_named(Options().engine) == "streams"
    assert engine_named(parse_options("--engine=regions").engine) == "regions"


@needs_compiler
def test_who_is_inside_and_for_whom_it_counts() -> None:
    import torch

    def work() -> None:
        torch.ones(3).add(1)

    outer, inner = object(), object()
    shared.hold(outer)
    try:
        stream = shared.enter(None)
        assert isinstance(stream, Stream) and shared.inside
        work()
        assert shared.enter(outer) is stream
        work()
        assert shared.enter(inner) is stream
        work()
        shared.leave()
        shared.leave()
        work()
        shared.leave()
        assert not shared.inside and shared.stream is stream
        found = shared.evidence(outer, forget=True)
        assert found is not None and shared.evidence(inner) is None
        assert found.seen * 2 == stream.evidence().seen > 0
        other = shared.enter(inner, Settings(budget=1))
        assert isinstance(other, Stream) and other is not stream and not stream.is_open
        shared.leave()
    finally:
        shared.release(outer)
    assert shared.stream is None
    assert shared.evidence(inner, forget=True) is not None


def test_the_next_step_of_a_cell_that_trains_nothing() -> None:
    """Streams leave its Python; regions would skip that of whole calls."""
    served = replace(STREAM, operators=1000, matched=950, backwards=0)
    known = CellEvidence(
        file="In[4]", source="", device="NVIDIA H200", backend="cuda", wall_ms=900.0, engine="streams", cuda=True,
        streams=(served,), torch_ran=True,
    )  # fmt: skip
    said = next_step(build_report(known, ()))
    measured = "%grape whatif model(...), with your call, measures torch.compile and other ways"
    regions = "nothing is trained here: %%grape --engine regions, run twice, may skip the Python of calls as well"
    assert said == f"{regions}; {measured}"
    trains = replace(known, streams=(replace(served, backwards=3),))
    left = replace(known, engine="regions", streams=(), as_written="operator streams made it no faster")
    assert [next_step(build_report(one, ())) for one in (trains, left)] == [measured] * 2
    others = [
        replace(known, streams=(replace(served, matched=500),)),
        replace(known, wall_ms=40.0),
        replace(left, engine="streams"),
        replace(left, torch_ran=False),
        replace(known, cuda=False),
        replace(known, file="train.py"),
        replace(known, streams=()),
    ]
    assert [next_step(build_report(one, ())) for one in others] == [None] * len(others)
