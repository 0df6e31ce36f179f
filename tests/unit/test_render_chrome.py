from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from grape.errors import UsageError
from grape.model import Event, Timeline
from grape.render import build_report
from grape.render.timeline.chrome import chrome_trace
from tests.unit.sample_evidence import cell, eager_timeline, region, sample, tape_cell

NEEDED = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "C": {"name", "pid", "ts", "args"},
    "s": {"name", "cat", "id", "pid", "tid", "ts"},
    "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
}


def named(trace: dict[str, Any], kind: str) -> dict[tuple[int, int], str]:
    events = [e for e in trace["traceEvents"] if e["ph"] == "M" and e["name"] == kind]
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events}


def spans(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [e for e in trace["traceEvents"] if e["ph"] == "X"]


@pytest.fixture(scope="module")
def trace() -> dict[str, Any]:
    return chrome_trace(build_report(*sample()))


def test_each_event_has_what_its_phase_needs(trace: dict[str, Any]) -> None:
    assert trace["displayTimeUnit"] == "ms"
    for event in trace["traceEvents"]:
        assert set(event) >= NEEDED[event["ph"]]
        if event["ph"] != "M":
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0


def test_before_and_after_are_processes_and_lanes_are_threads(trace: dict[str, Any]) -> None:
    processes = {pid: name for (pid, _), name in named(trace, "process_name").items()}
    assert processes == {
        1: "before: GPT2LMHeadModel.forward (In[4], line 7)",
        2: "after: GPT2LMHeadModel.forward (In[4], line 7)",
        3: "before: sample_token (In[4], line 3)",
        0: "memory of the cell (time since the cell began)",
    }
    threads = named(trace, "thread_name")
    assert [name for (pid, _), name in threads.items() if pid == 1] == [
        "host thread 0",
        "launches of thread 0",
        "GPU stream 7",
    ]
    assert {(e["pid"], e["tid"]) for e in spans(trace)} == set(threads)


def test_times_are_microseconds_and_arguments_are_there(trace: dict[str, Any]) -> None:
    first = next(e for e in spans(trace) if e["pid"] == 1 and e["cat"] == "kernel")
    assert (first["ts"], first["dur"]) == (6.0, 2.7)
    assert first["args"] == {"position": "In[4], line 12", "function": "decode", "correlation": 1, "stream": 7}
    copy = Event(name="copy", lane="device", category="memcpy", start_ns=0, end_ns=10, bytes=4096)
    report = build_report(cell(region(before=Timeline(events=(copy,), wall_ns=10), after=None)), ())
    assert spans(chrome_trace(report))[0]["args"]["bytes"] == 4096


def test_every_event_of_the_timelines_is_there_once(trace: dict[str, Any]) -> None:
    before, after = build_report(*sample()).timelines()
    assert before and after
    for pid, timeline in ((1, before), (2, after)):
        mine = sorted((e["ts"], e["dur"], e["name"]) for e in spans(trace) if e["pid"] == pid)
        assert mine == sorted((e.start_ns / 1000, e.duration_ns / 1000, e.name) for e in timeline.events)


def test_flows_lead_from_a_launch_to_its_first_device_event(trace: dict[str, Any]) -> None:
    starts = {e["id"]: e for e in trace["traceEvents"] if e["ph"] == "s"}
    ends = {e["id"]: e for e in trace["traceEvents"] if e["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len([e for e in starts.values() if e["pid"] == 1]) == 3 * 269
    assert len([e for e in starts.values() if e["pid"] == 2]) == 3
    by_place = {(e["pid"], e["tid"], e["ts"]): e for e in spans(trace)}
    for key, start in starts.items():
        end = ends[key]
        launch = by_place[start["pid"], start["tid"], start["ts"]]
        landing = by_place[end["pid"], end["tid"], end["ts"]]
        assert launch["args"]["correlation"] == landing["args"]["correlation"]
        assert launch["ts"] <= landing["ts"]


def test_memory_is_a_counter(trace: dict[str, Any]) -> None:
    counters = [e for e in trace["traceEvents"] if e["ph"] == "C"]
    mb = 2**20
    assert [(e["ts"], e["args"]) for e in counters if e["name"] == "allocator bytes"] == [
        (0.0, {"allocated": 250 * mb, "reserved": 300 * mb}),
        (100_000.0, {"allocated": 310 * mb, "reserved": 400 * mb}),
        (200_000.0, {"allocated": 300 * mb, "reserved": 400 * mb}),
    ]
    assert [e["args"]["used"] for e in counters if e["name"] == "device bytes in use"] == [900 * mb, *[1000 * mb] * 2]


def test_spans_of_one_track_nest() -> None:
    def kernel(start: int, end: int) -> Event:
        return Event(name="k", lane="device", category="kernel", start_ns=start, end_ns=end, stream=1)

    events = (kernel(0, 10), kernel(2, 5), kernel(4, 12), kernel(5, 10), kernel(12, 20), kernel(12, 12))
    trace = chrome_trace(build_report(cell(region(before=Timeline(events=events, wall_ns=20), after=None)), ()))
    assert list(named(trace, "thread_name").values()) == ["GPU stream 1", "GPU stream 1 (2)"]
    tracks: dict[int, list[tuple[float, float]]] = {}
    for e in spans(trace):
        tracks.setdefault(e["tid"], []).append((e["ts"], e["ts"] + e["dur"]))
    assert sum(map(len, tracks.values())) == len(events)
    for track in tracks.values():
        for a, b in ((a, b) for a in track for b in track if a < b):
            assert b[0] >= a[1] or b[1] <= a[1]


def test_dropped_events_are_said(trace: dict[str, Any]) -> None:
    timeline = eager_timeline(calls=1, kernels=2)
    cut = Timeline(events=timeline.events, wall_ns=timeline.wall_ns, dropped=1234)
    events = chrome_trace(build_report(cell(timeline=cut), ()))["traceEvents"]
    assert [e["args"]["labels"] for e in events if e["name"] == "process_labels"] == ["1,234 events dropped"]
    assert not [e for e in trace["traceEvents"] if e["name"] == "process_labels"]


def test_an_empty_report_is_an_empty_trace() -> None:
    assert chrome_trace(build_report(tape_cell(), ()))["traceEvents"] == []


def test_the_file_is_written_whole_and_alone(tmp_path: Path) -> None:
    report = build_report(*sample())
    target = tmp_path / "trace.json"
    target.write_text("old")
    report.to_chrome_trace(target)
    assert json.loads(target.read_text()) == chrome_trace(report)
    assert os.listdir(tmp_path) == ["trace.json"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    target = tmp_path / "trace.json"
    target.write_text("old")
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UsageError, match=r"cannot write the trace to '.*trace.json': No space left on device;"):
        build_report(*sample()).to_chrome_trace(target)
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["trace.json"]


@pytest.mark.parametrize("name", ["missing/trace.json", "", "a\0b", "x" * 300, "a\nb/c", "."])
def test_a_path_that_cannot_be_written_is_a_usage_error(name: str, tmp_path: Path) -> None:
    path = os.path.join(tmp_path, name) if name else ""
    with pytest.raises(
        UsageError, match=r"cannot write the trace to .*; name a file in a folder that exists"
    ) as raised:
        build_report(*sample()).to_chrome_trace(path)
    assert "\n" not in str(raised.value)
    assert os.listdir(tmp_path) == []
