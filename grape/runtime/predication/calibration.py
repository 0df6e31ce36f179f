"""Measures what control flow costs on this machine's device: once per process, kept in memory.

The measuring itself is behind `Bench`, so that what follows from the measurements is tested without a device.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..backends.cuda import CudaBackend
from ..backends.protocol import Backend
from .costs import H200, NodeCosts

__all__ = ["Bench", "CudaBench", "calibrate", "node_costs", "overridden"]

_FEW, _MANY = 32, 256
_FEW_BODIES, _MANY_BODIES = 16, 96
_SMALL, _LARGE = 4 << 20, 64 << 20


class Bench(Protocol):
    """What a device can be asked. Times are those of one replay on an otherwise idle device, in nanoseconds."""

    @property
    def source(self) -> str:
        """The machine, in words."""

    def chain_ns(self, kernels: int) -> float:
        """Of so many kernels that do next to nothing, each of which needs the one before."""

    def bodies_ns(self, bodies: int, *, taken: bool) -> float:
        """Of so many IF nodes in a row, each with one such kernel in its body."""

    def select_ns(self, nbytes: int) -> float:
        """Of one select between two tensors of `nbytes`."""

    def launch_ns(self) -> float:
        """What the host spends on one launch of a graph."""


def calibrate(bench: Bench, defaults: NodeCosts = H200) -> NodeCosts:
    """The costs of the machine behind `bench`; where a measurement makes no sense the default stays.

    Differences of two sizes are taken, so that what a launch or an event costs drops out.
    """
    kernel = _positive((bench.chain_ns(_MANY) - bench.chain_ns(_FEW)) / (_MANY - _FEW)) or defaults.kernel_ns
    taken, skipped = (
        _positive(bench.bodies_ns(_MANY_BODIES, taken=way) - bench.bodies_ns(_FEW_BODIES, taken=way))
        for way in (True, False)
    )
    bodies = _MANY_BODIES - _FEW_BODIES
    moved = _positive(bench.select_ns(_LARGE) - bench.select_ns(_SMALL))
    return replace(
        defaults,
        if_taken_ns=(_positive(taken / bodies - kernel) if taken else None) or defaults.if_taken_ns,
        if_skipped_ns=skipped / bodies if skipped else defaults.if_skipped_ns,
        kernel_ns=kernel,
        # A select reads both tensors and writes one.
        bytes_per_ns=3 * (_LARGE - _SMALL) / moved if moved else defaults.bytes_per_ns,
        launch_ns=_positive(bench.launch_ns()),
        source=f"{bench.source}, measured",
    )


def _positive(value: float) -> float | None:
    return value if math.isfinite(value) and value > 0 else None


_known: dict[torch.device, NodeCosts] = {}
_given: list[NodeCosts] = []


@contextmanager
def overridden(costs: NodeCosts) -> Iterator[None]:
    """Inside, choices are made by these costs, on whatever device."""
    _given.append(costs)
    try:
        yield
    finally:
        _given.pop()


def node_costs(backend: Backend) -> NodeCosts:
    """The costs of the backend's device: measured at the first call in a process (some 100 ms), the defaults where that
    fails or there are no conditional bodies to choose. Waits for the device; not inside a capture.
    """
    if _given:
        return _given[-1]
    if backend.kind != "cuda" or not backend.conditional_bodies:
        return H200
    device = backend.device
    if device not in _known:
        try:
            with _disable_current_modes(), torch.inference_mode(False), torch.no_grad(), torch.cuda.device(device):
                bench = CudaBench(device)
                try:
                    _known[device] = calibrate(bench)
                finally:
                    bench.close()
        except Exception:  # nobody's cell ends because a constant could not be measured
            _known[device] = H200
    return _known[device]


class CudaBench:
    """See `Bench`. Its graphs are those of a backend of its own, which `close` releases."""

    _REPEATS = 7
    _LAUNCHES = 64

    def __init__(self, device: torch.device) -> None:
        self._backend = CudaBackend(device, updatable=False, conditional_bodies=True)
        self._backend.prepare_bodies()
        self._device = device
        self._value = torch.zeros(16, device=device)
        self._way = torch.zeros((), dtype=torch.bool, device=device)

    @property
    def source(self) -> str:
        return f"{torch.cuda.get_device_name(self._device)}, torch {torch.__version__}"

    def close(self) -> None:
        self._backend.close()

    def chain_ns(self, kernels: int) -> float:
        def chain() -> None:
            for _ in range(kernels):
                self._value.add_(1.0)

        return self._replay_ns(chain)

    def bodies_ns(self, bodies: int, *, taken: bool) -> float:
        self._way.fill_(taken)

        def nodes() -> None:
            for _ in range(bodies):
                with self._backend.if_body(self._way):
                    self._value.add_(1.0)

        return self._replay_ns(nodes)

    def select_ns(self, nbytes: int) -> float:
        one, other, target = (torch.empty(nbytes // 4, device=self._device) for _ in range(3))
        return self._replay_ns(lambda: torch.where(self._way, one, other, out=target))

    def launch_ns(self) -> float:
        graph, _ = self._backend.capture(lambda: self._value.add_(1.0))
        samples = []
        for _ in range(self._REPEATS):
            torch.cuda.synchronize(self._device)
            began = time.perf_counter_ns()
            for _ in range(self._LAUNCHES):
                graph.replay()
            samples.append((time.perf_counter_ns() - began) / self._LAUNCHES)
        torch.cuda.synchronize(self._device)
        graph.release()
        return statistics.median(samples)

    def _replay_ns(self, body: Callable[[], Any]) -> float:
        """The median of some replays; the first one is not counted."""
        graph, _ = self._backend.capture(body)
        samples: list[float] = []
        for _ in range(self._REPEATS + 1):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            samples.append(float(start.elapsed_time(stop)) * 1e6)
        graph.release()
        return statistics.median(samples[1:])
