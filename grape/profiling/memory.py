"""Samples memory while a cell runs."""

from __future__ import annotations

import _thread
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..model import MemoryCurve
from ..originals import perf_counter, perf_counter_ns
from .devices.nvml import device_handle, used_bytes
from .devices.visible import device_index

_MOST_SAMPLES = 2000
_JOIN_S = 2.0
_STATM = Path("/proc/self/statm")


@dataclass(slots=True)
class _Samples:
    """Parallel lists; `None` in `used` where NVML did not answer."""

    at_ns: list[int] = field(default_factory=list)
    allocated: list[int] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)
    used: list[int | None] = field(default_factory=list)

    def add(self, at_ns: int, allocated: int, reserved: int, used: int | None) -> None:
        self.at_ns.append(at_ns)
        self.allocated.append(allocated)
        self.reserved.append(reserved)
        self.used.append(used)

    def halve(self) -> None:
        """Two neighbours become one sample: the time of the first, the larger of each value."""
        self.at_ns = self.at_ns[::2]
        self.allocated = _pairwise_max(self.allocated)
        self.reserved = _pairwise_max(self.reserved)
        used = [value for value in self.used if value is not None]
        self.used = list(_pairwise_max(used)) if len(used) == len(self.used) else [None] * len(self.at_ns)

    def curve(self) -> MemoryCurve:
        used = tuple(value for value in self.used if value is not None)
        return MemoryCurve(
            at_ns=tuple(self.at_ns),
            allocated_bytes=tuple(self.allocated),
            reserved_bytes=tuple(self.reserved),
            device_used_bytes=used if len(used) == len(self.used) else (),
        )


def _pairwise_max(values: list[int]) -> list[int]:
    return [max(values[index : index + 2]) for index in range(0, len(values), 2)]


_NVML_INTERVAL_S = 0.25


class MemorySampler:
    """A daemon thread that samples memory every `interval_s` seconds between `start` and `stop`.

    On a CUDA device: what torch's allocator has handed out (`allocated_bytes`) and holds (`reserved_bytes`), and what
    NVML says is in use on the whole device. Where the allocator's own peak rose since the last sample, that peak is the
    sample, so that a spike between two samples is not lost if it is the highest of the process so far. Nothing is
    sampled before CUDA is initialized (there is nothing yet), and nothing of the allocator's statistics is reset.

    On the CPU: the resident memory of this process, for both `allocated_bytes` and `reserved_bytes`; it holds the
    interpreter and every library too, not tensors alone. Empty where the system has no ``/proc``.

    The curve has at most 2,000 samples: when there are more, neighbours are merged and the interval doubles.
    """

    def __init__(self, device: torch.device, interval_s: float = 0.1, *, most: int = _MOST_SAMPLES) -> None:
        self._device = device
        self._interval_s = interval_s
        self._most = max(2, most)
        self._samples = _Samples()
        self._done = threading.Event()
        self._ended: threading.Event | None = None

    def start(self) -> None:
        """Begin a curve; times count from here. Does nothing where one is being sampled."""
        if self._ended is not None:
            return
        self._samples = _Samples()
        self._done = threading.Event()
        reader = _CudaReader(device_index(self._device)) if self._device.type == "cuda" else _read_resident
        self._ended = threading.Event()
        start_ns = perf_counter_ns()
        arguments = (reader, self._samples, self._done, self._ended, self._interval_s, self._most, start_ns)
        # None of `threading`'s, whose threads the person may count; it ends with the process, as a daemon does.
        _thread.start_new_thread(_sample, arguments)

    def stop(self) -> MemoryCurve:
        """End the curve with a last sample and return it; empty where `start` was not called."""
        ended, self._ended = self._ended, None
        if ended is not None:
            self._done.set()
            if not ended.wait(_JOIN_S):  # it hangs in a driver call; what it still appends must not tear the curve
                return MemoryCurve()
        return self._samples.curve()


_Reading = tuple[int, int, int | None]


def _sample(
    read: Callable[[bool], _Reading | None],
    samples: _Samples,
    done: threading.Event,
    ended: threading.Event,
    interval_s: float,
    most: int,
    start_ns: int,
) -> None:
    try:
        last = False
        while True:
            at_ns = perf_counter_ns() - start_ns
            reading = read(last)
            if reading is not None:
                if len(samples.at_ns) >= most:
                    samples.halve()
                    interval_s *= 2
                samples.add(at_ns, *reading)
            if last:
                return
            last = done.wait(interval_s)
    except Exception:
        return  # a cell must not see a traceback of this thread; the curve ends here
    finally:
        ended.set()


class _CudaReader:
    """Reads the allocator's books (no CUDA call, so that a capture in another thread is not disturbed) and NVML."""

    def __init__(self, index: int) -> None:
        self._device = torch.device("cuda", index)
        self._handle: object = None
        self._resolved = False
        self._peaks: tuple[int, int] | None = None
        self._nvml_due = 0.0
        self._used: int | None = None

    def __call__(self, last: bool = False) -> _Reading | None:
        if not torch.cuda.is_initialized():
            return None
        if not self._resolved:
            self._resolved = True
            self._handle = device_handle(self._device)
        stats = torch.cuda.memory_stats_as_nested_dict(self._device)
        allocated, reserved = (stats.get(f"{store}_bytes", {}).get("all", {}) for store in ("allocated", "reserved"))
        peaks = allocated.get("peak", 0), reserved.get("peak", 0)
        known = self._peaks or peaks
        self._peaks = peaks
        # A peak that rose was reached since the last sample, whoever reset it in between.
        highest = [
            max(entry.get("current", 0), peak if peak > before else 0)
            for entry, peak, before in zip((allocated, reserved), peaks, known, strict=True)
        ]
        return highest[0], highest[1], self._device_used(last)

    def _device_used(self, last: bool) -> int | None:
        """NVML's figure, asked for at the end and every `_NVML_INTERVAL_S`: a query takes the driver milliseconds."""
        now = perf_counter()
        if self._handle is not None and (last or now >= self._nvml_due):
            self._nvml_due = now + _NVML_INTERVAL_S
            self._used = used_bytes(self._handle)
        return self._used


def _read_resident(last: bool = False) -> _Reading | None:
    try:
        pages = int(_STATM.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    resident = pages * os.sysconf("SC_PAGE_SIZE")
    return resident, resident, None
