"""A captured CUDA graph, and the pool that it allocates from."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .memory import pool_bytes
from .meter import ExecutableMeter


class CudaGraph:
    """One instantiated graph."""

    def __init__(self, graph: torch.cuda.CUDAGraph, nodes: int, meter: ExecutableMeter, keep: object = None) -> None:
        self._graph: torch.cuda.CUDAGraph | None = graph
        self._meter = meter
        self._keep = keep
        self.nodes = nodes

    @property
    def replay(self) -> Callable[[], None]:
        """Looked up each time: an operator stream that is open has put its own there, which launches what is pending.
        A backward pass may come inside one that was paused at the capture.
        """
        return self._graph.replay if self._graph is not None else _released

    @property
    def nbytes(self) -> int:
        """Of the executable, on the device; 0 once released."""
        return self._meter.nbytes(self.nodes) if self._graph is not None else 0

    def release(self) -> None:
        """Destroy graph and executable. A later `replay` raises RuntimeError."""
        graph, self._graph = self._graph, None
        if graph is not None:
            graph.reset()
            self._meter.freed(self.nodes)
        self._keep = None


def _released() -> None:
    raise RuntimeError("this graph was released")


class CudaPool:
    """Implements `Pool`. The allocator has it from the first capture on, as long as one of its graphs lives."""

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()

    @property
    def nbytes(self) -> int:
        return pool_bytes(self.handle)
