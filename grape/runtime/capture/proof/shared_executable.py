"""Has a graph verified on the executable that it will be replayed by, which graphs of other shapes may share."""

from __future__ import annotations

from collections.abc import Callable

from ....model import Later, NoRoom, RetryLater
from ...backends.executables import UpdatableGraph
from ...backends.protocol import Graph
from ...compression import ExecutableStore, StoredGraph
from ..request import Request
from ..stop import Stop
from .verification import Verification


def admit_shared(
    request: Request,
    store: ExecutableStore,
    graph: UpdatableGraph,
    verification: Verification,
    refill: Callable[[], None],
) -> tuple[Graph, str]:
    """The graph with its place among the executables of `store`, and how its replay compares with eager.

    An executable of other shapes may take it; if that one is wrong, the graph's own is tried. Raises `Stop` where none
    is right. `refill` puts into the placeholders what the eager call was given.
    """
    failure: Stop | None = None
    verified: list[str] = []

    def verify(launch: Callable[[], None]) -> bool:
        nonlocal failure
        if failure is not None:
            refill()  # the replay that was wrong may have written them
        try:
            with request.attention.spend("verify"):
                verified.append(verification.verify(launch))
        except Stop as stop:
            if isinstance(stop.outcome, RetryLater) and stop.outcome.later is Later.UNSETTLED:
                raise
            failure = stop
            return False
        return True

    try:
        stored = StoredGraph.admit(store, graph, verify, owner=request.owner)
        if stored is not None:
            return stored, verified[-1]
        raise failure or Stop(NoRoom())
    finally:
        failure = None  # it knows this frame, and the call's arguments would seem alive until a garbage collection
