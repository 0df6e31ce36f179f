"""Executables on CUDA that serve the graphs of many shapes: `cudaGraphExec_t`, updated whole or node by node.

An executable is updated through the nodes of the graph that it was made from, so it keeps that graph. An update counts
for launches issued after it; the driver keeps what queued launches need.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, SupportsInt

import torch

from ..driver import OUT_OF_MEMORY, Driver, DriverError
from ..launches import follow
from ..meter import ExecutableMeter
from ..random import Drawn, RandomPrologue
from ..writes import NodeWriter, PreparedWrites
from .instantiate import Instantiation
from .nodes import PREFERRED_CLUSTERS, Inspected

_NOT_READY = 600
"""CUDA_ERROR_NOT_READY: the stream has work that is not done."""
_NOT_UPDATED = 910
"""CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE: the executable is as it was."""


class GraphSource:
    """A captured graph with several owners: the region's graph, and executables that were made from it."""

    def __init__(self, graph: torch.cuda.CUDAGraph) -> None:
        self.graph = graph
        self._instantiated = False
        self._owners = 1

    def instantiate_once(self) -> None:
        """Make torch's own executable: another one would take the place of the first. Raises torch.OutOfMemoryError."""
        if not self._instantiated:
            try:
                self.graph.instantiate()
            except RuntimeError as error:
                if getattr(error, "error_code", None) != OUT_OF_MEMORY:
                    raise
                raise torch.OutOfMemoryError("no device memory for a graph's executable") from error
            self._instantiated = True

    def hold(self) -> GraphSource:
        self._owners += 1
        return self

    def drop(self) -> None:
        """Destroy the graph when its last owner is gone."""
        self._owners -= 1
        if not self._owners:
            self.graph.reset()


class Executables:
    """The executables of one backend. `meter` knows what they take on the device."""

    def __init__(self, driver: Driver, device: torch.device, meter: ExecutableMeter | None = None) -> None:
        self.driver = driver
        self.device = device
        self.meter = meter or ExecutableMeter(device)
        self.writer = NodeWriter(driver)
        self.random = RandomPrologue(driver, device)
        self.instantiation = Instantiation(driver)
        self._made: weakref.WeakSet[CudaExecutable] = weakref.WeakSet()
        self.ordered = True
        """False where no other graph names what these name."""

    @functools.cached_property
    def preferred_clusters(self) -> bool:
        """True where kernels on this device can prefer clusters of another size than the one that they must have."""
        return torch.cuda.get_device_capability(self.device) >= PREFERRED_CLUSTERS

    @property
    def live_bytes(self) -> int:
        return sum(made.nbytes for made in self._made)

    def make(
        self, source: GraphSource, inspected: Inspected | None, nodes: int, attachment: object = None
    ) -> CudaExecutable:
        """Raises torch.OutOfMemoryError, `DriverError`."""
        driver = self.driver
        graph = driver.types.CUgraph(source.graph.raw_cuda_graph())
        with torch.cuda.device(self.device), driver.relaxed():
            handle = self.meter.made(nodes, lambda: self.instantiation.of(graph))
        made = CudaExecutable(self, handle, source.hold(), inspected, nodes, attachment)
        self._made.add(made)
        return made

    def make_of_torch(self, source: GraphSource, nodes: int) -> TorchExecutable:
        """For a graph that draws nobody knows how many random numbers. Raises torch.OutOfMemoryError."""
        with torch.cuda.device(self.device):
            self.meter.made(nodes, source.instantiate_once)
        made = TorchExecutable(self, source.hold(), nodes)
        self._made.add(made)
        return made

    def close(self) -> None:
        """Release all that are left."""
        for made in list(self._made):
            made.release()
        with torch.cuda.device(self.device), self.driver.relaxed():
            self.instantiation.close()


@dataclass(frozen=True, slots=True)
class _Held:
    """Parameters that the nodes of an executable have: `sets` say it of some, the last one first, and `below` of the
    others.

    `attachment` must live for it.
    """

    below: Sequence[bytes | PreparedWrites]
    sets: tuple[PreparedWrites, ...] = ()
    attachment: object = None

    def nodes(self) -> Sequence[bytes | PreparedWrites]:
        found = list(self.below)
        for one in self.sets:
            for number in one.numbers:
                found[number] = one
        return found

    def after(self, sets: Sequence[PreparedWrites], attachment: object) -> _Held:
        """Shapes that take turns mostly write the same nodes, and nothing is copied then."""
        alike = [one.numbers for one in sets] == [one.numbers for one in self.sets]
        return _Held(self.below if alike else self.nodes(), tuple(sets), attachment)


class CudaExecutable:
    """Implements `Executable`. `inspected` is None where it can only do what its own graph does."""

    def __init__(
        self,
        executables: Executables,
        handle: SupportsInt,
        source: GraphSource,
        inspected: Inspected | None,
        nodes: int,
        attachment: object,
    ) -> None:
        self._executables = executables
        self._driver = executables.driver
        self._device = executables.device
        self._handle = handle
        self._source: GraphSource | None = source
        self._inspected = inspected
        self._held = _Held(inspected.parameters if inspected is not None else (), (), attachment)
        self._launch = self._driver.function("cuGraphLaunch")
        self._nodes = nodes

    @property
    def nbytes(self) -> int:
        """0 once released."""
        return self._executables.meter.nbytes(self._nodes) if self._source is not None else 0

    def replay(self) -> None:
        if self._source is None:
            raise RuntimeError("replay of a released executable")
        index = self._device.index
        if torch.cuda.current_device() != index:
            with torch.cuda.device(index):
                return self.replay()
        attachment = self._held.attachment
        if isinstance(attachment, Drawn):
            self._executables.random.begin(attachment.moves)
        ordered = self._executables.ordered
        (error,) = self._launch(self._handle, follow(index) if ordered else torch._C._cuda_getCurrentRawStream(index))
        if int(error):
            raise DriverError("cuGraphLaunch", int(error))

    def waits(self) -> bool:
        (error,) = self._driver.function("cuStreamQuery")(torch._C._cuda_getCurrentRawStream(self._device.index))
        return int(error) == _NOT_READY

    def update_from(self, graph: Any) -> bool:
        inspected: Inspected | None = graph.inspected()
        self._alive()
        if self._inspected is None or inspected is None or inspected.topology != self._inspected.topology:
            return False
        if not inspected.chain:  # which node would get which parameters is the driver's choice; node by node it is ours
            return self.update_prepared([self.prepare(list(enumerate(inspected.parameters)))], graph.attachment)
        raw = self._driver.types.CUgraph(graph.raw())
        with torch.cuda.device(self._device):
            error, _ = self._driver.function("cuGraphExecUpdate")(self._handle, raw)
        if int(error) == _NOT_UPDATED:
            return False
        if int(error):  # the driver does not say what such an update has left
            self._take_back(range(len(inspected.parameters)))
            return False
        self._held = _Held(inspected.parameters, (), graph.attachment)
        return True

    def prepare(self, changes: Sequence[tuple[int, bytes]]) -> PreparedWrites:
        """Lays them out in memory, which takes several times as long as to write them from there."""
        if self._inspected is None:
            raise RuntimeError("the nodes of this executable's graph are not known")
        return self._executables.writer.prepare(self._inspected.handles, self._inspected.kinds, changes)

    def update_prepared(self, sets: Sequence[PreparedWrites], attachment: object) -> bool:
        """Write what was prepared; after a refusal all of it is taken back. Nodes that have their parameters already
        are written too: a trial of this way, after an update from a whole graph, must be one.

        Raises RuntimeError where the device does not take back what it had accepted; the executable is released then.
        """
        self._alive()
        if self._inspected is None:
            return False
        before, done = self._held, False
        issue = self._executables.writer.issue
        try:
            with torch.cuda.device(self._device.index):
                if all(issue(self._handle, one) for one in sets):
                    self._held = before.after(sets, attachment)  # in one step: an interrupt comes before or after it
                else:
                    self._take_back(_numbers_of(sets))
            done = True
        finally:
            if not done and self._held is before and self._source is not None:
                self._take_back(_numbers_of(sets))
        return self._held is not before

    def _take_back(self, numbers: Iterable[int]) -> None:
        """Give these nodes, written or not, what they have."""
        held, writer = self._held.nodes(), self._executables.writer
        with torch.cuda.device(self._device.index):
            had = [(number, held[number]) for number in numbers]
            sets = [
                self.prepare([(number, one)]) if isinstance(one, bytes) else one.alone(number) for number, one in had
            ]
            if all([writer.issue(self._handle, one) for one in sets]):
                return
        self.release()
        raise RuntimeError("the device does not accept again the parameters that an executable had")

    def release(self) -> None:
        """The driver waits for queued launches before it frees what they need."""
        source, self._source = self._source, None
        if source is None:
            return
        self._destroy()
        self._executables.meter.freed(self._nodes)
        self._held = _Held(())
        source.drop()

    def _destroy(self) -> None:
        with torch.cuda.device(self._device), self._driver.relaxed():
            self._driver.succeeds("cuGraphExecDestroy", self._handle)

    def _alive(self, use: str = "update") -> GraphSource:
        if self._source is None:
            raise RuntimeError(f"{use} of a released executable")
        return self._source


class TorchExecutable(CudaExecutable):
    """For a graph that only torch can launch: it sets the generator before. No update is possible.

    torch's graph has one executable, which goes with the graph: `release` only ends its use.
    """

    def __init__(self, executables: Executables, source: GraphSource, nodes: int) -> None:
        super().__init__(executables, 0, source, None, nodes, None)

    def replay(self) -> None:
        self._alive("replay").graph.replay()

    def _destroy(self) -> None:
        pass


def _numbers_of(sets: Sequence[PreparedWrites]) -> set[int]:
    return {number for one in sets for number in one.numbers}
