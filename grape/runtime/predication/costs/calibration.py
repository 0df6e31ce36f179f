"""Measures what control flow costs on this machine's device: once per process, kept in memory.

The measuring itself is behind `CudaBench`, so that what follows from it is tested without a device.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ...backends.cuda.backend import CudaBackend
from ...backends.protocol import Backend, Graph
from ..lowering.merge import restore_bits
from .costs import H200, NodeCosts

_FEW, _MANY = 16, 96
_FEW_BODIES, _MANY_BODIES = 8, 48
_FEW_LARGE, _MANY_LARGE = 2, 6
_SMALL = 4 << 10
"""Of a small tensor, in bytes. Less misleads: on an H200 a kernel over 64 bytes took 1.07 us, one over 4 KB 1.35 us."""


def calibrate(bench: CudaBench, defaults: NodeCosts = H200) -> NodeCosts:
    """The costs of the machine behind `bench`; where a measurement makes no sense the default stays.

    Differences of two counts are taken, so that what a launch or an event costs drops out, and then differences of two
    sizes: a small one, one of which all that a chain touches stays in the cache, and one that streams through it.
    """
    cache = bench.cache_nbytes or defaults.cache_nbytes
    cached, large = max(cache // 16, 4 * _SMALL) // 16 * 16, 2 * cache // 16 * 16

    def added(times: Callable[[int, int], float], nbytes: int, few: int = _FEW, many: int = _MANY) -> float:
        return (times(many, nbytes) - times(few, nbytes)) / (many - few)

    def rate(moved: int, took: float) -> float | None:
        return moved / took if _positive(took) else None

    kernel, keep = added(bench.chain_ns, _SMALL), added(bench.keeps_ns, _SMALL)
    in_cache = rate(2 * (cached - _SMALL), added(bench.chain_ns, cached) - kernel)
    in_memory = rate(2 * large, added(bench.chain_ns, large, _FEW_LARGE, _MANY_LARGE) - kernel)
    kept = rate(cached - _SMALL, added(bench.keeps_ns, cached) - keep)
    kernel = _positive(kernel) or defaults.kernel_ns
    taken, skipped = (
        (many - few) / (_MANY_BODIES - _FEW_BODIES)
        for many, few in zip(bench.bodies_ns(_MANY_BODIES), bench.bodies_ns(_FEW_BODIES), strict=True)
    )
    return replace(
        defaults,
        if_taken_ns=_positive(taken - 2 * kernel) or defaults.if_taken_ns,
        if_skipped_ns=_positive(skipped - kernel) or defaults.if_skipped_ns,
        kernel_ns=kernel,
        bytes_per_ns=in_cache or defaults.bytes_per_ns,
        memory_bytes_per_ns=in_memory or defaults.memory_bytes_per_ns,
        cache_nbytes=cache,
        keep_ns=_positive(keep) or defaults.keep_ns,
        kept_bytes_per_ns=kept or defaults.kept_bytes_per_ns,
        source=f"{bench.source}, measured",
    )


def _positive(value: float) -> float | None:
    return value if math.isfinite(value) and value > 0 else None


_known: dict[torch.device, NodeCosts] = {}


def node_costs(backend: Backend) -> NodeCosts:
    """The costs of the backend's device: measured at the first call in a process, the defaults where that
    fails or there are no conditional bodies to choose. Waits for the device; not inside a capture.
    """
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
    """Questions to a device. Times are those of one replay on an otherwise idle device, in nanoseconds.

    Its graphs are those of a backend of its own, which `close` releases.
    """

    _REPEATS = 7

    def __init__(self, device: torch.device) -> None:
        self._backend = CudaBackend(device, updatable=False, conditional_bodies=True)
        self._backend.prepare_bodies()
        self._device = device
        self._small = torch.zeros(_SMALL // 4, device=device)
        self._way = torch.zeros((), dtype=torch.bool, device=device)

    @property
    def source(self) -> str:
        """The machine, in words."""
        return f"{torch.cuda.get_device_name(self._device)}, torch {torch.__version__}"

    def close(self) -> None:
        self._backend.close()

    @property
    def cache_nbytes(self) -> int:
        """Of the cache that all of the device shares; 0 where that is not known."""
        return int(getattr(torch.cuda.get_device_properties(self._device), "L2_cache_size", 0))

    def chain_ns(self, kernels: int, nbytes: int) -> float:
        """Of so many kernels that add a number to a tensor of `nbytes`, each of which needs the one before."""
        value = self._of(nbytes)

        def chain() -> None:
            for _ in range(kernels):
                value.add_(1.0)

        with self._captured(chain) as graph:
            return self._replay_ns(graph)

    def bodies_ns(self, bodies: int) -> tuple[float, float]:
        """Of so many small kernels, each with an IF node behind it that has another one in its body: taken, skipped."""

        def nodes() -> None:
            for _ in range(bodies):
                self._small.add_(1.0)
                with self._backend.if_body(self._way):
                    self._small.add_(1.0)

        with self._captured(nodes) as graph:
            taken, skipped = self._both_ways_ns(graph)
        return taken, skipped

    def keeps_ns(self, writes: int, nbytes: int) -> float:
        """Of so many copies of a tensor of `nbytes`, each given back under a predicate: the mean of both ways."""
        value = self._of(nbytes)
        before = torch.empty_like(value)

        def keeps() -> None:
            for _ in range(writes):
                before.copy_(value)  # what a clone does, without memory that the capture's pool has to get first
                restore_bits(self._way, value, before)

        with self._captured(keeps) as graph:
            return statistics.mean(self._both_ways_ns(graph))

    def _of(self, nbytes: int) -> torch.Tensor:
        return self._small if nbytes == _SMALL else torch.zeros(nbytes // 4, device=self._device)

    @contextmanager
    def _captured(self, body: Callable[[], object]) -> Iterator[Graph]:
        graph, _ = self._backend.capture(body)
        try:
            yield graph
        finally:
            graph.release()

    def _both_ways_ns(self, graph: Graph) -> tuple[float, float]:
        """With the condition true, and false."""
        self._way.fill_(True)
        on = self._replay_ns(graph)
        self._way.fill_(False)
        return on, self._replay_ns(graph)

    def _replay_ns(self, graph: Graph) -> float:
        """The median of some replays; the first one is not counted."""
        samples: list[float] = []
        for _ in range(self._REPEATS + 1):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            samples.append(float(start.elapsed_time(stop)) * 1e6)
        return statistics.median(samples[1:])
