"""Timers. CUDA events are played by fakes here; tests/gpu has the real ones."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grape.profiling import CudaCallTimer, HostCallTimer, timing


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
