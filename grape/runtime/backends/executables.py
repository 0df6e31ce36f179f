"""The contract of executables that graphs of several shapes share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...model.overlap import Overlapped, OverlapPlan
from .protocol import Graph, Prepared


class NoExecutable(RuntimeError):
    """A graph was not replayed, because no executable does its work and none could be had.

    `gone`: it never will again, and may be captured anew. `waiting`: it may at a later call. Else there is no room.
    """

    def __init__(self, why: str, *, gone: bool = False, waiting: bool = False) -> None:
        super().__init__(why)
        self.gone = gone
        self.waiting = waiting


class Executable(Protocol):
    """An executable, which a device launches: made from a graph and, by updates, doing the work of others. `nbytes` on
    the device.

    An update counts for launches issued after it; those already queued do what the executable did when they were
    issued; on CUDA the driver sees to that, on whatever stream they wait. It is accepted only between graphs of equal
    topology: the same kinds of nodes in the same number and with the same edges, bodies of conditional nodes included,
    and the same kernel attributes. Functions, extents of launches and parameters may differ. Between equal fingerprints
    the device may still refuse.
    """

    @property
    def nbytes(self) -> int: ...

    def replay(self) -> None:
        """Enqueue on the current stream. Raises RuntimeError once released."""

    def waits(self) -> bool:
        """True where a launch on the current stream would wait for work that is enqueued there already."""

    def update_from(self, graph: UpdatableGraph) -> bool:
        """Do from now on what `graph` would; False where the device refuses, and then nothing has changed."""

    def prepare(self, changes: Sequence[tuple[int, bytes]]) -> Prepared:
        """Get ready to give nodes, each once, these parameters: for all executables that are made from the same graph.

        Raises RuntimeError where the nodes are not known, so that no update could write them.
        """

    def update_prepared(self, sets: Sequence[Prepared], attachment: object) -> bool:
        """Give nodes the parameters that were prepared; False where the device refuses: then nothing has changed.

        With the other nodes as they are, they must be all the parameters of one graph, and `attachment` that graph's.
        Where two sets concern one node, the later one counts. A backend that cannot take back a part of the changes
        must not issue them one by one.
        """

    def release(self) -> None:
        """Give back its memory, at the latest when queued launches are done. Idempotent."""


class UpdatableGraph(Graph, Protocol):
    """A graph whose work executables of other graphs can do.

    Parameters are opaque bytes, of the length that the device reports, one string per node in an order that is the same
    for all graphs of one topology; nothing but the backend looks into them. They stay valid when the graph is released,
    while what its owner keeps alive for it, and its `attachment`, live.
    """

    @property
    def topology(self) -> str | None:
        """A fingerprint that is equal wherever an update can succeed. None where no other graph's executable may serve:
        the graph has nodes that cannot be updated, or draws random numbers and nobody knows how many."""

    def drew(self, before: object, after: object) -> None:
        """The random states (`Backend.rng_state`) before and after an eager run of what the graph does. At most once,
        before anything else is asked of it."""

    @property
    def host_bytes(self) -> int:
        """Bytes that keeping the graph, without an executable, costs on the host."""

    @property
    def attachment(self) -> object:
        """The object to be handed over with the parameters; it is small, and keeps what the graph itself would."""

    def compare_orders(self, plan: OverlapPlan) -> Overlapped | None:
        """Of a graph with branches: launch it with them and as one chain, on the current stream. None where nothing can
        be measured, as of a graph that was released because executables of its class do its work: they have the
        branches of their first graph. Launches must be without harm: the graph writes nothing but memory of its own and
        results. Raises `OverlapLost` where the device refuses.
        """

    def parameters(self) -> tuple[bytes, ...]:
        """Of each node. Defined where `topology` is not None."""

    def instantiate(self) -> Executable:
        """A further executable, which outlives the graph. Raises torch.OutOfMemoryError."""
