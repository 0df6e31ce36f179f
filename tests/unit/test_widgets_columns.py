"""Timelines as binary columns: what a viewer relies on."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grape.model import Event, Position, Timeline
from grape.render.timeline.columns import BYTES_PER_EVENT, Columns, Strings, pack, text_tables
from tests.unit.sample_evidence import eager_timeline, replay_timeline


def at(line: int, function: str = "decode") -> Position:
    return Position(file="In[1]", line=line, function=function)


def operator(start: int, end: int, line: int | None = None, inner: str | None = None, name: str = "aten::mm") -> Event:
    return Event(
        name=name,
        lane="host",
        category="operator",
        start_ns=start,
        end_ns=end,
        position=at(line) if line is not None else None,
        inner=Position(file="lib.py", line=1, function=inner) if inner else None,
    )


def kernel(start: int, end: int, stream: int = 7, correlation: int = 0) -> Event:
    return Event(
        name="k", lane="device", category="kernel", start_ns=start, end_ns=end, stream=stream, correlation=correlation
    )


def timeline(*events: Event, wall_ns: int = 1000, dropped: int = 0) -> Timeline:
    return Timeline(events=tuple(sorted(events, key=lambda e: e.start_ns)), wall_ns=wall_ns, dropped=dropped)


def column(packed: Columns, number: int, code: str) -> Sequence[int]:
    n = len(packed.blob) // BYTES_PER_EVENT
    return struct.unpack_from(f"<{n}{code}", packed.blob, 4 * n * number)


def spans(packed: Columns) -> dict[str, list[list[tuple[int, int]]]]:
    starts, durations = column(packed, 0, "I"), column(packed, 1, "I")
    found: dict[str, list[list[tuple[int, int]]]] = {}
    for row in packed.rows:
        part = range(row.first, row.first + row.count)
        found.setdefault(row.label, []).append([(starts[i], starts[i] + durations[i]) for i in part])
    return found


def test_lanes_and_rows() -> None:
    packed = pack(
        timeline(
            operator(0, 100, line=3, inner="Block.forward"),
            operator(10, 60, line=3),
            operator(120, 180, line=3, inner="Block.forward"),
            operator(200, 300, line=4),
            kernel(50, 70, stream=20),
            kernel(60, 90, stream=7),
        ),
        Strings(),
        limit=100,
    )
    assert spans(packed) == {
        "lines": [[(0, 180), (200, 300)], [(0, 180)]],
        "operators": [[(0, 100), (120, 180), (200, 300)], [(10, 60)]],
        "stream 7": [[(60, 90)]],
        "stream 20": [[(50, 70)]],
    }
    assert (packed.count, packed.total) == (6, 6), "spans of lines are derived, not recorded"


def test_a_line_ends_where_another_lines_operator_comes_between() -> None:
    events = [
        operator(0, 10, line=3),
        operator(10, 20, line=4),
        operator(20, 30, line=3),
        operator(40, 50),
        kernel(0, 1),
    ]
    packed = pack(timeline(*events, operator(60, 70, line=3)), Strings(), limit=100)
    assert spans(packed)["lines"] == [[(0, 10), (10, 20), (20, 30), (60, 70)]]


def test_tables_hold_each_name_and_place_once() -> None:
    strings = Strings()
    pack(timeline(operator(0, 1, line=3), operator(2, 3, line=3), operator(4, 5)), strings, limit=10)
    pack(timeline(operator(0, 1, line=3)), strings, limit=10)
    kinds, places = text_tables(strings)
    assert kinds == [["decode, line 3", "python"], ["aten::mm", "operator"]]
    assert places == [[["In[1]", 3, "decode"], None]]


def test_a_graph_stands_above_its_nodes() -> None:
    graph = Event(name="CUDA graph, 2 nodes", lane="device", category="graph", start_ns=10, end_ns=50, stream=7)
    packed = pack(timeline(graph, kernel(10, 20), kernel(30, 50)), Strings(), limit=10)
    assert spans(packed) == {"stream 7": [[(10, 50)], [(10, 20), (30, 50)]]}


def test_the_cap_keeps_device_work_and_counts_the_rest() -> None:
    whole = eager_timeline(calls=1, kernels=100)
    packed = pack(whole, Strings(), limit=150)
    assert (packed.count, packed.total) == (150, 300)
    assert sum(row.count for row in packed.rows if row.lane == "device") == 100
    recorded = Timeline(events=whole.events, wall_ns=whole.wall_ns, dropped=7)
    assert pack(recorded, Strings(), limit=150).total == 307


def test_what_nests_too_deep_is_counted_as_left_out() -> None:
    packed = pack(timeline(*(operator(i, 1000 - i) for i in range(20))), Strings(), limit=100)
    assert (packed.count, packed.total) == (12, 20)


def test_times_beyond_31_bits_are_in_longer_ticks() -> None:
    packed = pack(timeline(kernel(0, 10**10), kernel(3 * 10**10, 4 * 10**10), wall_ns=4 * 10**10), Strings(), limit=10)
    assert packed.tick_ns == 19
    assert column(packed, 0, "I")[1] * packed.tick_ns - 3 * 10**10 in range(-19, 1)


def test_correlation_joins_launch_and_nodes() -> None:
    packed = pack(replay_timeline(calls=1, nodes=3), Strings(), limit=10)
    assert set(column(packed, 4, "i")) == {9000}


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 200), st.sampled_from([7, 20])), max_size=60),
    st.integers(1, 80),
)
def test_rows_are_ordered_and_do_not_overlap(drawn: list[tuple[int, int, int]], limit: int) -> None:
    events = [kernel(start, start + length, stream) for start, length, stream in drawn]
    packed = pack(timeline(*events), Strings(), limit=limit)
    assert packed.count <= min(limit, len(events))
    for rows in spans(packed).values():
        for row in rows:
            assert all(left[1] <= right[0] for left, right in pairwise(row))


@pytest.mark.parametrize(
    ("file", "function", "name"),
    [
        ("In[4]", "decode", "decode, line 5"),
        ("In[4]", "<module>", "In[4], line 5"),
        ("/home/someone/project/train.py", "<module>", "project/train.py, line 5"),
    ],
)
def test_lines_outside_of_functions_have_the_name_of_their_cell(file: str, function: str, name: str) -> None:
    strings = Strings()
    position = Position(file=file, line=5, function=function)
    event = Event(name="aten::mm", lane="host", category="operator", start_ns=0, end_ns=9, position=position)
    pack(timeline(event), strings, limit=9)
    assert text_tables(strings)[0][0] == [name, "python"]


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("/home/someone/.venv/lib/python3.12/site-packages/transformers/cache_utils.py", "transformers/cache_utils.py"),
        ("C:\\venv\\Lib\\site-packages\\torch\\_tensor.py", "torch\\_tensor.py"),
        ("/usr/lib/python3/dist-packages/numpy/core.py", "numpy/core.py"),
        ("/home/someone/project/train.py", "/home/someone/project/train.py"),
        ("In[4]", "In[4]"),
    ],
)
def test_files_of_libraries_are_named_without_their_folder(file: str, shown: str) -> None:
    strings = Strings()
    inner = Position(file=file, line=5, function="update")
    event = Event(name="aten::mm", lane="host", category="operator", start_ns=0, end_ns=9, inner=inner)
    pack(timeline(event), strings, limit=9)
    assert text_tables(strings)[1] == [[None, [shown, 5, "update"]]]
