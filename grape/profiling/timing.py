"""Timers of calls, which do not make the host wait."""

from __future__ import annotations

import threading
from typing import TypeAlias

import torch

from ..originals import perf_counter_ns
from .forks import spare_children


class HostCallTimer:
    """Times a call on the host's clock: right where a call is over when it returns."""

    __slots__ = ("_start_ns", "_stop_ns")

    def __init__(self) -> None:
        self._start_ns = self._stop_ns = 0

    def start(self) -> None:
        self._start_ns = perf_counter_ns()

    def stop(self) -> None:
        self._stop_ns = perf_counter_ns()

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


CallTimer: TypeAlias = HostCallTimer | CudaCallTimer
"""The time of one call, without making the host wait while the cell runs. Ask for it after the cell."""


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
