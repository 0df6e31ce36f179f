"""A captured CUDA graph whose work executables of other graphs can do."""

from __future__ import annotations

from contextlib import suppress

import torch

from .....model.overlap import Overlapped, OverlapPlan
from ...protocol import OverlapLost
from ..branching.ordering import compare_orders
from ..driver import DriverError
from ..random import Drawn, advance
from .executable import CudaExecutable, Executables, GraphSource
from .nodes import Inspected, inspect

_GRAPH_BYTES_PER_NODE = 3_500
"""On the host, of a graph without an executable: 1.1 MB for the 312 nodes of GPT-2's step (driver 580)."""


class UpdatableCudaGraph:
    """Implements `UpdatableGraph`. It has no executable before its first `replay` or `instantiate`.

    `draws`: its replay moves the generator; until `drew` has said how far, only torch can launch it. `pool` keeps the
    memory of its intermediates mapped.
    """

    def __init__(
        self, executables: Executables, graph: torch.cuda.CUDAGraph, *, nodes: int, draws: bool, pool: object
    ) -> None:
        self._executables = executables
        self._source: GraphSource | None = GraphSource(graph)
        self._draws = draws
        self._of_torch = draws
        self._inspected: Inspected | None = None
        self._looked = False
        self._own: CudaExecutable | None = None
        self.nodes = nodes
        self.attachment: object = pool

    @property
    def nbytes(self) -> int:
        """Of the executable that `replay` uses; others belong to whoever asked for them."""
        return self._own.nbytes if self._own is not None else 0

    @property
    def host_bytes(self) -> int:
        if self._source is None:
            return 0
        return _GRAPH_BYTES_PER_NODE * self.nodes + (self._inspected.nbytes if self._inspected is not None else 0)

    def drew(self, before: object, after: object) -> None:
        """Before its first use. The states are those of `Backend.rng_state`."""
        assert isinstance(before, tuple) and isinstance(after, tuple)
        moves = advance(before[1], after[1]) if self._draws else None
        if moves is not None and self._executables.random.prepare(moves):
            self._of_torch = False
            self.attachment = Drawn(self.attachment, moves)

    def compare_orders(self, plan: OverlapPlan) -> Overlapped | None:
        """Raises `OverlapLost`."""
        if self._source is None:
            return None
        executables = self._executables
        graph = executables.driver.types.CUgraph(self.raw())
        try:
            with torch.cuda.device(executables.device), executables.driver.relaxed():
                return compare_orders(executables.driver, executables.instantiation, graph, plan)
        except (DriverError, torch.OutOfMemoryError) as error:
            raise OverlapLost(f"branches could not be measured: {error}") from error

    @property
    def topology(self) -> str | None:
        inspected = self.inspected()
        return inspected.topology if inspected is not None else None

    def inspected(self) -> Inspected | None:
        """The nodes; None where no other graph's executable may serve this one."""
        if not self._looked:
            self._looked = True
            if not self._of_torch:
                driver = self._executables.driver
                with suppress(DriverError, ValueError):  # what cannot be read, or no binding knows, cannot be written
                    raw, preferred = driver.types.CUgraph(self.raw()), self._executables.preferred_clusters
                    self._inspected = inspect(driver, raw, preferred_clusters=preferred)
        return self._inspected

    def parameters(self) -> tuple[bytes, ...]:
        inspected = self.inspected()
        if inspected is None:
            raise RuntimeError("this graph has no parameters that an update could write")
        return inspected.parameters

    def raw(self) -> int:
        """The address of the `cudaGraph_t`."""
        return int(self._alive().graph.raw_cuda_graph())

    def instantiate(self) -> CudaExecutable:
        source = self._alive()
        if self._of_torch:
            return self._executables.make_of_torch(source, self.nodes)
        return self._executables.make(source, self.inspected(), self.nodes, self.attachment)

    def replay(self) -> None:
        self._alive()
        if self._own is None:
            self._own = self.instantiate()
        self._own.replay()

    def release(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            own.release()
        source, self._source = self._source, None
        self._inspected = self.attachment = None
        if source is not None:
            source.drop()

    def _alive(self) -> GraphSource:
        if self._source is None:
            raise RuntimeError("this graph was released")
        return self._source
