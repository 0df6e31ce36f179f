"""Which line the nodes of a replayed graph stand for: those of the eager call that ran the same kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..model import Event, Timeline


def place_nodes(before: Timeline, after: Timeline) -> Timeline:
    """`after` with positions on the nodes of its graphs, from the first eager call in `before`.

    A replay runs the kernels of its capture in their order. Where a graph's kernels are those of the eager call, name
    by name, each gets the position of its twin; where they are not, the graph gets none: none is guessed.
    """
    twins = _first_call(before)
    if not any(twin.position for twin in twins):
        return after
    names = [twin.name for twin in twins]
    placed: dict[int, Event] = {}
    for nodes in _graphs(after.events):
        if [after.events[index].name for index in nodes] == names:
            for index, twin in zip(nodes, twins, strict=True):
                placed[index] = replace(after.events[index], position=twin.position, inner=twin.inner)
    if not placed:
        return after
    return replace(after, events=tuple(placed.get(index, event) for index, event in enumerate(after.events)))


def _first_call(timeline: Timeline) -> Sequence[Event]:
    """The events of the first of several calls that follow each other; all of them have the same number of kernels."""
    work = [event for event in timeline.events if event.category == "kernel"]
    return work[: len(work) // max(1, timeline.calls)]


def _graphs(events: Sequence[Event]) -> Iterator[list[int]]:
    """The indices of the kernels of each graph replay, in order of their start."""
    replays = {event.correlation for event in events if event.category == "graph" and event.lane == "device"}
    nodes: dict[int, list[int]] = {correlation: [] for correlation in replays}
    for index, event in enumerate(events):
        if event.category == "kernel" and event.correlation in nodes:
            nodes[event.correlation].append(index)
    yield from nodes.values()
