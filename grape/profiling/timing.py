"""Times of calls: timers that do not make the host wait, and medians with quartiles of what they measured.

A change is claimed only over at least 20 calls on each side and where the interquartile ranges do not overlap.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Literal

import torch

from ..model import Measured
from .forks import spare_children

__all__ = ["ENOUGH_SAMPLES", "Comparison", "CudaCallTimer", "HostCallTimer", "Samples", "compare"]

ENOUGH_SAMPLES = 20
"""Fewer calls than this are measured and shown, but nothing is claimed from them."""

_MOST_SAMPLES = 1024


class Samples:
    """Milliseconds of calls, at most `limit` of them kept, spread evenly over all that were seen.

    When `limit` is reached every second sample goes, and from then on only every second (fourth, ...) call is kept.
    """

    def __init__(self, limit: int = _MOST_SAMPLES) -> None:
        self._limit = max(2, limit)
        self._kept_ms: list[float] = []
        self._stride = 1
        self._seen = 0

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._kept_ms)

    @property
    def seen(self) -> int:
        """How many were appended."""
        return self._seen

    @property
    def values_ms(self) -> tuple[float, ...]:
        """Those that are kept, in order."""
        return tuple(self._kept_ms)

    def append(self, ms: float) -> None:
        keep = self._seen % self._stride == 0
        self._seen += 1
        if not keep:
            return
        if len(self._kept_ms) >= self._limit:
            self._kept_ms = self._kept_ms[::2]
            self._stride *= 2
            if (self._seen - 1) % self._stride:
                return
        self._kept_ms.append(ms)

    def summary(self) -> Measured | None:
        """Median and quartiles of the kept samples (`n` of them); None where there is none."""
        return Measured.of(self._kept_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two measurements side by side. `ratio` is before over after; it is evidence, not a claim: see `change`."""

    before: Measured
    after: Measured
    ratio: float
    change: Literal["faster", "slower", "none", "unknown"]
    """"none": the ranges overlap. "unknown": fewer than `ENOUGH_SAMPLES` calls on one side."""

    @property
    def speedup(self) -> float | None:
        """`ratio` where a change may be claimed, else None."""
        return self.ratio if self.change in ("faster", "slower") else None


def compare(before: Measured | None, after: Measured | None) -> Comparison | None:
    """What may be said of two measurements; None where one is missing or took no time at all."""
    if before is None or after is None or after.median_ms <= 0:
        return None
    change: Literal["faster", "slower", "none", "unknown"] = "none"
    if min(before.n, after.n) < ENOUGH_SAMPLES:
        change = "unknown"
    elif after.clearly_below(before):
        change = "faster"
    elif before.clearly_below(after):
        change = "slower"
    return Comparison(before=before, after=after, ratio=before.median_ms / after.median_ms, change=change)


class HostCallTimer:
    """Times a call on the host's clock: right where a call is over when it returns."""

    __slots__ = ("_start_ns", "_stop_ns")

    def __init__(self) -> None:
        self._start_ns = self._stop_ns = 0

    def start(self) -> None:
        self._start_ns = time.perf_counter_ns()

    def stop(self) -> None:
        self._stop_ns = time.perf_counter_ns()

    def elapsed_ms(self) -> float:
        """Milliseconds between `start` and `stop`. Raises RuntimeError where one of them was not called."""
        if not self._start_ns or not self._stop_ns:
            raise RuntimeError("this timer was not started and stopped; call start() and stop() first")
        return (self._stop_ns - self._start_ns) / 1e6


class CudaCallTimer:
    """Times a call on the device, between two CUDA events on the current stream. The host does not wait.

    Not inside a capture: an event recorded there has no time. The events return to a pool when `elapsed_ms` has read
    them, so that starting and stopping costs two event records.
    """

    __slots__ = ("_device", "_elapsed_ms", "_index", "_start", "_stop")

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device
        self._index = -1
        self._start: torch.cuda.Event | None = None
        self._stop: torch.cuda.Event | None = None
        self._elapsed_ms: float | None = None

    def start(self) -> None:
        stream = torch.cuda.current_stream(self._device)
        self._give_back()
        self._index = stream.device_index
        self._elapsed_ms = None
        self._start = _events.take(self._index)
        self._start.record(stream)

    def stop(self) -> None:
        if self._start is None or self._stop is not None:
            raise RuntimeError("this timer is not running; call start() first")
        self._stop = _events.take(self._index)
        self._stop.record(torch.cuda.current_stream(self._index))

    def elapsed_ms(self) -> float:
        """Device milliseconds between `start` and `stop`; waits for the device where it is not there yet.

        Raises RuntimeError where one of them was not called.
        """
        if self._elapsed_ms is None:
            if self._start is None or self._stop is None:
                raise RuntimeError("this timer was not started and stopped; call start() and stop() first")
            self._stop.synchronize()
            self._elapsed_ms = self._start.elapsed_time(self._stop)
            self._give_back()
        return self._elapsed_ms

    def _give_back(self) -> None:
        for event in (self._start, self._stop):
            if event is not None:
                _events.give(self._index, event)
        self._start = self._stop = None


class _EventPool:
    """CUDA events that are not in use, by device: an event belongs to the device that first recorded it."""

    def __init__(self, limit: int = 4096) -> None:
        self._free: dict[int, list[torch.cuda.Event]] = {}
        self._limit = limit
        self._lock = threading.Lock()

    def take(self, index: int) -> torch.cuda.Event:
        with self._lock:
            free = self._free.get(index)
            if free:
                return free.pop()
        spare_children()
        return torch.cuda.Event(enable_timing=True)

    def give(self, index: int, event: torch.cuda.Event) -> None:
        with self._lock:
            free = self._free.setdefault(index, [])
            if len(free) < self._limit:
                free.append(event)


_events = _EventPool()
