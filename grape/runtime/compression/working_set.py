"""Bounds what is kept on the host beside records, to replay from it in less time: graphs, writes, users' own."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from ..backends.executables import UpdatableGraph
from .members import Member


def shrink(members: Iterable[Member], budget_bytes: int, weight: Callable[[Hashable], float]) -> None:
    """Let go of graphs that no switch would be made from; then, where all is more than the budget, of others, of
    prepared writes and of what users keep, until an eighth of it is free: the next shapes need not ask all others.

    Graphs go first, because the others are smaller by far; of each, those of the least weight. A graph by itself takes
    some 850 KB of the process for GPT-2's 248 nodes, more than half of which the driver keeps for the next one.
    """
    kept: list[tuple[Member, int]] = []
    total = 0
    for member in members:
        if member.graph is not None and not _is_needed(member):
            _let_go(member, member.graph)
        small = member.user.kept_bytes + (member.prepared.nbytes if member.prepared is not None else 0)
        if small or member.graph is not None:
            kept.append((member, small))
            total += small + (member.graph.host_bytes if member.graph is not None else 0)
    if total <= budget_bytes:
        return
    limit = budget_bytes - budget_bytes // 8
    kept.sort(key=lambda pair: weight(pair[0].shape))
    for member, _ in kept:
        if total <= limit:
            return
        if member.graph is not None:
            total -= member.graph.host_bytes
            _let_go(member, member.graph)
    for member, small in kept:
        if total <= limit:
            return
        total -= small
        member.prepared = None
        member.user.let_go()


def _let_go(member: Member, graph: UpdatableGraph) -> None:
    member.graph = None
    graph.release()


def _is_needed(member: Member) -> bool:
    """True where a switch to the shape would be made from its graph."""
    return member.prepared is None or not member.group.prefers_nodes(len(member.changed))
