"""The recorder on a real CPU profile, and what it does when it may not record."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from grape.model import Event, Timeline, Trace
from grape.model.times.timeline import thinned
from grape.profiling import TimelineRecorder, timeline

CPU = torch.device("cpu")


@pytest.fixture
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def record(
    work: Callable[[], object], trace: Trace | None = None, **options: Any
) -> tuple[TimelineRecorder, Timeline | None]:
    recorder = TimelineRecorder(CPU, **options)
    if trace is not None:
        recorder.follow(trace)
    recorder.start()
    work()
    recorder.stop()
    return recorder, recorder.timeline()


def operators(found: Timeline | None) -> list[str]:
    assert found is not None
    return [e.name for e in found.events if e.category == "operator"]


def test_operators_of_a_small_model(model: torch.nn.Module) -> None:
    x = torch.randn(2, 16)
    recorder, found = record(lambda: model(x))
    assert recorder.unavailable is None and found is not None
    names = operators(found)
    assert names.count("aten::linear") == 2 and names.count("aten::relu") == 1
    assert found.calls == 1 and found.dropped == 0
    assert found.gpu_busy_ns == 0 and found.device_events() == ()
    assert all(0 <= e.start_ns <= e.end_ns <= found.wall_ns for e in found.events)
    assert len({e.thread for e in found.events}) == 1


def test_of_several_calls_the_one_nearest_the_median_is_shown(model: torch.nn.Module) -> None:
    recorder = TimelineRecorder(CPU)
    lengths = (8, 1, 3)
    for length in lengths:
        recorder.start()
        for _ in range(length):
            model(torch.randn(2, 16))
        recorder.stop()
    assert operators(recorder.timeline()).count("aten::linear") == 6, "the last, where nothing is known of calls"
    each = {length: one.wall_ns / 1e6 for length, one in zip(lengths, recorder._each, strict=True)}
    for length, ms in each.items():
        recorder.typical_ms = ms
        found = recorder.timeline()
        assert operators(found).count("aten::linear") == 2 * length
        assert found is not None and (found.calls, found.chosen_of) == (1, 3) and found is recorder.timeline()


def test_annotations_are_host_events(model: torch.nn.Module) -> None:
    def work() -> None:
        with torch.profiler.record_function("my step"):
            model(torch.randn(2, 16))

    _, found = record(work)
    assert found is not None
    assert [(e.lane, e.category) for e in found.events if e.name == "my step"] == [("host", "annotation")]


def test_the_timeline_may_be_read_twice_and_is_then_that_of_a_later_call(model: torch.nn.Module) -> None:
    recorder, first = record(lambda: model(torch.zeros(1, 16)))
    assert recorder.timeline() is first
    recorder.start()
    model(torch.zeros(1, 16))
    recorder.stop()
    second = recorder.timeline()
    assert first is not None and second is not None and second is not first
    assert operators(second) == operators(first)


def test_start_and_stop_out_of_turn_do_nothing() -> None:
    recorder = TimelineRecorder(CPU)
    recorder.stop()
    assert recorder.timeline() is None and recorder.unavailable is None
    recorder.start()
    recorder.start()
    assert torch.autograd._profiler_enabled()
    torch.zeros(1)
    recorder.stop()
    recorder.stop()
    assert not torch.autograd._profiler_enabled()
    found = recorder.timeline()
    assert found is not None and found.calls == 1


def test_another_profiler_is_left_alone() -> None:
    recorder = TimelineRecorder(CPU)
    with torch.autograd.profiler.profile(use_kineto=True) as theirs:
        recorder.start()
        torch.ones(3).add(1)
        recorder.stop()
    assert recorder.timeline() is None
    assert recorder.unavailable == "another profiler is running; leave it out of the cell to see Grape's timeline"
    assert "aten::add" in {e.name for e in theirs.function_events}
    recorder.start()
    recorder.stop()
    assert recorder.unavailable is None and recorder.timeline() is not None


def test_an_error_of_the_profiler_stays_with_the_recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: torch.device) -> None:
        raise RuntimeError("CUDA error: an illegal memory access\nmore")

    recorder = TimelineRecorder(CPU)
    recorder.start()
    with monkeypatch.context() as patch:
        patch.setattr(timeline, "wait_for", broken)
        recorder.stop()
        assert recorder.unavailable == "the profiler failed: CUDA error: an illegal memory access"
        assert not torch.autograd._profiler_enabled()
        recorder.start()
        assert recorder.unavailable is not None and not torch.autograd._profiler_enabled()
    assert recorder.timeline() is None
    _, after = record(lambda: torch.zeros(1))
    assert operators(after)


def test_an_interrupt_passes_and_leaves_no_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: torch.device) -> None:
        raise KeyboardInterrupt

    recorder = TimelineRecorder(CPU)
    recorder.start()
    monkeypatch.setattr(timeline, "wait_for", interrupted)
    with pytest.raises(KeyboardInterrupt):
        recorder.stop()
    assert not torch.autograd._profiler_enabled()
    assert not torch.autograd.profiler._is_profiler_enabled


def test_too_long_a_call_loses_its_shortest_host_events() -> None:
    def work() -> None:
        with torch.profiler.record_function("long"):
            for _ in range(20):
                torch.zeros(1)

    _, found = record(work, limit=5)
    assert found is not None
    assert len(found.events) == 5 and found.dropped >= 35
    assert found.events[0].name == "long"


def device_event(name: str, start: int, end: int) -> Event:
    return Event(name=name, lane="device", category="kernel", start_ns=start, end_ns=end, stream=7)


def test_device_work_is_kept_before_all_else() -> None:
    kernels = tuple(device_event(f"k{i}", 10 * i, 10 * i + 5) for i in range(4))
    host = tuple(
        Event(name="op", lane="host", category="operator", start_ns=10 * i, end_ns=10 * i + 9) for i in range(4)
    )
    kept, wall_ns = thinned(kernels + host, 40, 5)
    assert set(kernels) < set(kept) and len(kept) == 5 and wall_ns == 40


def test_a_timeline_cut_in_time_keeps_its_busy_share() -> None:
    kernels = tuple(device_event(f"k{i}", 10 * i, 10 * i + 5) for i in range(100))
    kept, wall_ns = thinned(kernels, 1000, 30)
    assert (len(kept), wall_ns) == (30, 300)
    assert Timeline(events=kept, wall_ns=wall_ns).gpu_busy_share == pytest.approx(0.5)


def test_lines_come_from_a_trace(model: torch.nn.Module) -> None:
    from grape.model import OpRecord, Position

    names = ["t", "addmm", "relu", "t", "addmm"]
    trace = Trace(
        ops=tuple(
            OpRecord(
                i, f"aten.{n}.default", "compute", (), (), (), (), (), Position(file="m.py", line=i, function="f"), None
            )
            for i, n in enumerate(names)
        )
    )
    x = torch.randn(2, 16)
    with torch.no_grad():
        _, found = record(lambda: model(x), trace)
    assert found is not None
    placed = [(e.name, e.position.line) for e in found.events if e.position and e.name in ("aten::addmm", "aten::relu")]
    assert placed == [("aten::addmm", 1), ("aten::relu", 2), ("aten::addmm", 4)]


QUIET = """
import torch
from grape.model.times.timeline import thinned
from grape.profiling import TimelineRecorder
recorder = TimelineRecorder(torch.device("cpu"))
for _ in range(2):
    recorder.start(); torch.zeros(1); recorder.stop()
import os, sys
print(len(recorder.timeline().events), os.environ.get("KINETO_LOG_LEVEL"), "torch._inductor" in sys.modules)
"""


def test_recording_prints_nothing_imports_no_compiler_and_leaves_the_environment_alone() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "KINETO_LOG_LEVEL"}
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, env=environment, check=True)
    assert done.stderr == ""
    count, *others = done.stdout.split()
    assert int(count) > 0 and others == ["None", "False"]
