"""Samples, comparisons and timers. CUDA events are played by fakes here; tests/gpu has the real ones."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grape.model import Measured
from grape.profiling import CudaCallTimer, HostCallTimer, Samples, compare, timing


def samples(*values: float, limit: int = 1024) -> Samples:
    made = Samples(limit)
    for value in values:
        made.append(value)
    return made


def test_median_and_quartiles() -> None:
    assert samples(5, 1, 4, 2, 3).summary() == Measured(median_ms=3, q1_ms=2, q3_ms=4, n=5)
    assert samples().summary() is None


def test_samples_are_bounded_and_spread_over_all_calls() -> None:
    many = samples(*range(1000), limit=16)
    assert many.seen == 1000
    assert 8 <= len(many) <= 16
    kept = many.values_ms
    steps = {b - a for a, b in itertools.pairwise(kept)}
    assert steps == {64.0} and kept[0] == 0 and kept[-1] > 900
    summary = many.summary()
    assert summary is not None and summary.median_ms == pytest.approx(500, abs=64)


def of(median: float, spread: float, n: int) -> Measured:
    return Measured(median_ms=median, q1_ms=median - spread, q3_ms=median + spread, n=n)


@pytest.mark.parametrize(
    ("before", "after", "change", "speedup"),
    [
        (of(4, 0.1, 20), of(1, 0.1, 20), "faster", 4.0),
        (of(1, 0.1, 20), of(4, 0.1, 20), "slower", 0.25),
        (of(4, 0.1, 20), of(3.9, 0.1, 20), "none", None),
        (of(4, 0.1, 20), of(3.8, 0.1, 20), "none", None),
        (of(4, 0.1, 19), of(1, 0.1, 20), "unknown", None),
        (of(4, 0.1, 20), of(1, 0.1, 3), "unknown", None),
    ],
)
def test_a_change_is_claimed_where_the_ranges_do_not_overlap_over_enough_calls(
    before: Measured, after: Measured, change: str, speedup: float | None
) -> None:
    found = compare(before, after)
    assert found is not None
    assert (found.change, found.speedup) == (change, speedup)
    assert found.ratio == before.median_ms / after.median_ms


def test_nothing_to_compare() -> None:
    assert compare(None, of(1, 0, 20)) is None
    assert compare(of(1, 0, 20), None) is None
    assert compare(of(1, 0, 20), of(0, 0, 20)) is None


def test_host_timer() -> None:
    timer = HostCallTimer()
    began = time.perf_counter()
    timer.start()
    time.sleep(0.01)
    timer.stop()
    assert 10 <= timer.elapsed_ms() <= (time.perf_counter() - began) * 1e3
    assert timer.elapsed_ms() == timer.elapsed_ms()


@pytest.mark.parametrize("timer", [HostCallTimer, CudaCallTimer])
def test_a_timer_that_did_not_run(timer: type[HostCallTimer] | type[CudaCallTimer]) -> None:
    with pytest.raises(RuntimeError, match="was not started and stopped; call start"):
        timer().elapsed_ms()


class FakeCuda:
    """Streams and events with a clock that ticks a millisecond at each record."""

    def __init__(self) -> None:
        self.made = 0
        self.waits = 0
        self.clock_ms = 0.0
        self.device = 0

    def event(self, enable_timing: bool) -> Any:
        assert enable_timing
        self.made += 1
        event = SimpleNamespace(at=None)

        def record(stream: Any) -> None:
            self.clock_ms += 1
            event.at = self.clock_ms

        def synchronize() -> None:
            self.waits += 1

        event.record, event.synchronize = record, synchronize
        event.elapsed_time = lambda end: end.at - event.at
        return event

    def stream(self, device: Any) -> Any:
        return SimpleNamespace(device_index=self.device if device is None else device)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(torch.cuda, "Event", fake.event)
    monkeypatch.setattr(torch.cuda, "current_stream", fake.stream)
    monkeypatch.setattr(timing, "_events", timing._EventPool())
    return fake


def test_cuda_timer_waits_only_when_it_is_read(cuda: FakeCuda) -> None:
    timer = CudaCallTimer()
    timer.start()
    cuda.clock_ms += 4
    timer.stop()
    assert cuda.waits == 0
    assert timer.elapsed_ms() == timer.elapsed_ms() == 5
    assert cuda.waits == 1


def test_events_are_reused_after_they_were_read(cuda: FakeCuda) -> None:
    timers = [CudaCallTimer() for _ in range(3)]
    for _ in range(10):
        for timer in timers:
            timer.start()
            timer.stop()
        assert [timer.elapsed_ms() for timer in timers] == [1, 1, 1]
    assert cuda.made == 6


def test_events_stay_on_their_device(cuda: FakeCuda) -> None:
    for device in (0, 1):
        cuda.device = device
        timer = CudaCallTimer()
        timer.start()
        timer.stop()
        timer.elapsed_ms()
    assert cuda.made == 4


def test_a_timer_that_is_started_again_forgets_the_first_time(cuda: FakeCuda) -> None:
    timer = CudaCallTimer()
    timer.start()
    timer.start()
    timer.stop()
    assert timer.elapsed_ms() == 1
    assert cuda.made == 2
    with pytest.raises(RuntimeError, match="is not running"):
        timer.stop()


def test_both_timers_satisfy_the_runtimes_protocol() -> None:
    from grape.runtime.backends.protocol import CallTimer

    timers: list[CallTimer] = [HostCallTimer(), CudaCallTimer()]
    assert all(callable(getattr(t, name)) for t in timers for name in ("start", "stop", "elapsed_ms"))
