"""Nodes of a replayed graph get the lines of the eager call that ran the same kernels."""

from __future__ import annotations

from collections.abc import Sequence

from grape.model import Event, Position, Timeline
from grape.profiling import place_nodes


def eager(names: Sequence[str], calls: int = 1) -> Timeline:
    events = [
        Event(
            name=name,
            lane="device",
            category="kernel",
            start_ns=100 * k,
            end_ns=100 * k + 10,
            stream=7,
            position=Position(file="In[1]", line=k % len(names) + 1, function="f"),
        )
        for k, name in enumerate([*names] * calls)
    ]
    return Timeline(events=tuple(events), wall_ns=100_000, calls=calls)


def replay(names: Sequence[str], extra: Sequence[Event] = ()) -> Timeline:
    graph = Event(name="CUDA graph", lane="device", category="graph", start_ns=0, end_ns=999, stream=7, correlation=5)
    nodes = [
        Event(name=name, lane="device", category="kernel", start_ns=k, end_ns=k + 1, stream=7, correlation=5)
        for k, name in enumerate(names)
    ]
    return Timeline(events=(graph, *nodes, *extra), wall_ns=1000)


def lines(timeline: Timeline) -> list[int | None]:
    return [event.position.line if event.position else None for event in timeline.events if event.category == "kernel"]


def test_equal_kernels_are_placed() -> None:
    assert lines(place_nodes(eager(["a", "b", "a"]), replay(["a", "b", "a"]))) == [1, 2, 3]


def test_several_eager_calls_count_as_one() -> None:
    assert lines(place_nodes(eager(["a", "b"], calls=3), replay(["a", "b"]))) == [1, 2]


def test_other_kernels_are_not_guessed() -> None:
    for names in (["a"], ["a", "b", "c"], ["b", "a"]):
        after = replay(names)
        assert place_nodes(eager(["a", "b"]), after) is after


def test_kernels_outside_the_graph_stay_without() -> None:
    copy = Event(name="copy", lane="device", category="kernel", start_ns=1500, end_ns=1600, stream=7, correlation=6)
    assert lines(place_nodes(eager(["a", "b"]), replay(["a", "b"], extra=[copy]))) == [1, 2, None]


def test_without_lines_nothing_changes() -> None:
    bare = Timeline(events=replay(["a"]).events, wall_ns=10)
    assert place_nodes(bare, bare) is bare
