"""What is kept on the host beside records, because a switch from it takes less time: graphs, and prepared writes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from .members import Member

__all__ = ["shrink"]


def shrink(members: Iterable[Member], budget_bytes: int, weight: Callable[[Hashable], float]) -> None:
    """Let go of graphs and prepared writes until they fit into the budget.

    First go graphs of shapes whose prepared writes take less time, then other graphs, then prepared writes, which are
    smaller by far; of each, those of the least weight first.
    """
    kept = [member for member in members if member.graph is not None or member.prepared is not None]
    graphs = [(member, member.graph) for member in kept if member.graph is not None]
    writes = [(member, member.prepared) for member in kept if member.prepared is not None]
    total = sum(graph.host_bytes for _, graph in graphs) + sum(prepared.nbytes for _, prepared in writes)
    if total <= budget_bytes:
        return
    graphs.sort(key=lambda pair: (_is_needed(pair[0]), weight(pair[0].shape)))
    for member, graph in graphs:
        if total <= budget_bytes:
            return
        total -= graph.host_bytes
        member.graph = None
        graph.release()
    writes.sort(key=lambda pair: weight(pair[0].shape))
    for member, prepared in writes:
        if total <= budget_bytes:
            return
        total -= prepared.nbytes
        member.prepared = None


def _is_needed(member: Member) -> bool:
    """Whether a switch to the shape would be made from its graph."""
    return member.prepared is None or not member.kin.prefers_nodes(len(member.changed))
