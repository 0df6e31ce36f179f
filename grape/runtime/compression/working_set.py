"""What is kept on the host beside records, because a switch from it takes less time: graphs, and prepared writes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from ..backends.protocol import UpdatableGraph
from .members import Member

__all__ = ["shrink"]


def shrink(members: Iterable[Member], budget_bytes: int, weight: Callable[[Hashable], float]) -> None:
    """Let go of graphs that no switch would be made from; then of others, and of prepared writes, until they fit into
    the budget.

    Graphs go first, because prepared writes are smaller by far; of each, those of the least weight. A graph by itself
    takes some 850 KB of the process for GPT-2's 248 nodes, more than half of which the driver keeps for the next one.
    """
    kept = [member for member in members if member.graph is not None or member.prepared is not None]
    for member in kept:
        if member.graph is not None and not _is_needed(member):
            _let_go(member, member.graph)
    graphs = [(member, member.graph) for member in kept if member.graph is not None]
    writes = [(member, member.prepared) for member in kept if member.prepared is not None]
    total = sum(graph.host_bytes for _, graph in graphs) + sum(prepared.nbytes for _, prepared in writes)
    if total <= budget_bytes:
        return
    graphs.sort(key=lambda pair: weight(pair[0].shape))
    for member, graph in graphs:
        if total <= budget_bytes:
            return
        total -= graph.host_bytes
        _let_go(member, graph)
    writes.sort(key=lambda pair: weight(pair[0].shape))
    for member, prepared in writes:
        if total <= budget_bytes:
            return
        total -= prepared.nbytes
        member.prepared = None


def _let_go(member: Member, graph: UpdatableGraph) -> None:
    member.graph = None
    graph.release()


def _is_needed(member: Member) -> bool:
    """Whether a switch to the shape would be made from its graph."""
    return member.prepared is None or not member.kin.prefers_nodes(len(member.changed))
