"""Measures constants of this machine's device, from which replays are predicted: once per process, kept in memory."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import replace

import torch

from ..model.times.machine import H200, MachineCosts
from ..originals import perf_counter_ns
from .private_streams import private_stream
from .timeline import TimelineRecorder

_FEW, _MANY = 64, 512
_SMALL, _LARGE = 4 << 20, 64 << 20


def calibrate(bench: CudaBench, defaults: MachineCosts = H200) -> MachineCosts:
    """The constants of the machine behind `bench`; where a measurement makes no sense the default stays.

    Differences of two sizes are taken, so that what a launch or an event costs drops out.
    """
    kernel = bench.kernel_us()
    node = (bench.replay_us(_MANY) - bench.replay_us(_FEW)) / (_MANY - _FEW)
    gap = node - kernel if kernel is not None else math.nan
    gap_us = max(0.0, gap) if math.isfinite(gap) and node > 0 else None
    device, host = _rate(bench.device_copy_us), _rate(bench.host_copy_us)
    operator = bench.operator_us()
    operator_us = operator if math.isfinite(operator) and operator > 0 else None
    if gap_us is None and device is None and host is None and operator_us is None:
        return defaults
    return replace(
        defaults,
        node_gap_us=defaults.node_gap_us if gap_us is None else gap_us,
        device_copy_gb_per_s=device or defaults.device_copy_gb_per_s,
        host_copy_gb_per_s=host or defaults.host_copy_gb_per_s,
        operator_us=operator_us or defaults.operator_us,
        source=f"{bench.source}, measured",
    )


def _rate(copy_us: Callable[[int], float]) -> float | None:
    """Gigabytes per second, from two sizes."""
    took = copy_us(_LARGE) - copy_us(_SMALL)
    return (_LARGE - _SMALL) / took / 1e3 if math.isfinite(took) and took > 0 else None


_known: dict[str, MachineCosts] = {}


def machine_costs(device: torch.device) -> MachineCosts:
    """The constants of `device`: measured at the first call (some 50 ms), the defaults where that fails or there is no
    CUDA device.

    Uses the profiler; ask only in a process that has used it already, because CUPTI may stay and slow later launches
    (`cupti.py`). Waits for the device.
    """
    if device.type != "cuda":
        return H200
    key = str(device)
    if key not in _known:
        try:
            _known[key] = calibrate(CudaBench(device))
        except Exception:  # nobody's cell or report ends because a constant could not be measured
            _known[key] = H200
    return _known[key]


class CudaBench:
    """Times are those of one repetition, on an otherwise idle device. Works on a stream of its own and gives all its
    memory back to the allocator.
    """

    _REPEATS = 7

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = private_stream(device, "calibration")
        self._value = torch.zeros(4096, device=device)

    @property
    def source(self) -> str:
        """The machine, in words."""
        return f"{torch.cuda.get_device_name(self.device)}, torch {torch.__version__}"

    def _chain(self, nodes: int) -> None:
        for _ in range(nodes):
            self._value.add_(1.0)

    def kernel_us(self) -> float | None:
        """Device time of one small kernel, as a timeline has it. None where no timeline can be taken."""
        self._chain(_FEW)
        recorder = TimelineRecorder(self.device)
        recorder.start()
        self._chain(_FEW)
        recorder.stop()
        timeline = recorder.timeline()
        kernels = [event.duration_ns for event in timeline.device_events()] if timeline is not None else []
        return statistics.median(kernels) / 1e3 if kernels else None

    def replay_us(self, nodes: int) -> float:
        """A replay of a graph: a chain of `nodes` of these kernels, each of which needs the one before."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        with torch.cuda.stream(self._stream):
            self._chain(1)
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._chain(nodes)
            finally:
                graph.capture_end()
        try:
            return self._time(graph.replay)
        finally:
            graph.reset()

    def device_copy_us(self, nbytes: int) -> float:
        """A copy of `nbytes` within the device."""
        source = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        return self._time(torch.empty_like(source).copy_, source)

    def host_copy_us(self, nbytes: int) -> float:
        """A copy of `nbytes` from pageable CPU memory to the device."""
        source = torch.empty(nbytes, dtype=torch.uint8)
        return self._time(torch.empty(nbytes, dtype=torch.uint8, device=self.device).copy_, source)

    def operator_us(self) -> float:
        """Microseconds that the CPU takes to issue one of these kernels eagerly."""
        samples: list[float] = []
        for _ in range(self._REPEATS):
            torch.cuda.synchronize(self.device)
            began = perf_counter_ns()
            self._chain(_FEW)
            samples.append((perf_counter_ns() - began) / _FEW / 1e3)
        torch.cuda.synchronize(self.device)
        return statistics.median(samples)

    def _time(self, function: Callable[..., object], *args: object) -> float:
        """The median of some runs, in microseconds; the first one is not counted."""
        samples: list[float] = []
        with torch.cuda.stream(self._stream):
            for _ in range(self._REPEATS + 1):
                start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record(self._stream)
                function(*args)
                stop.record(self._stream)
                stop.synchronize()
                samples.append(float(start.elapsed_time(stop)) * 1e3)
        return statistics.median(samples[1:])
