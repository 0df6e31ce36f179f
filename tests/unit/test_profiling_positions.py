"""Profiled operators get the lines of the traced ones."""

from __future__ import annotations

import _thread
import threading

from grape.model import Event, OpRecord, Position, Trace
from grape.profiling.positions import trace_positions
from grape.tracing import PositionFinder


def at(line: int) -> Position:
    return Position(file="In[1]", line=line, function="f")


def traced(*ops: tuple[str, int]) -> Trace:
    return Trace(
        ops=tuple(
            OpRecord(i, name, "compute", (), (), (), (), (), at(line), None) for i, (name, line) in enumerate(ops)
        )
    )


def op(name: str, start: int, end: int, thread: int = 1) -> Event:
    return Event(name=name, lane="host", category="operator", start_ns=start, end_ns=end, thread=thread)


LINEAR = [
    op("aten::linear", 0, 100),
    op("aten::t", 5, 30),
    op("aten::transpose", 10, 25),
    op("aten::addmm", 40, 90),
    op("aten::copy_", 50, 60),
]
LINEAR_TRACE = [("aten.t.default", 3), ("aten.addmm.default", 4)]


def lines(trace: Trace, events: list[Event]) -> list[int | None]:
    return [found.line if found else None for found in trace_positions(trace)(events)]


def test_callers_and_callees_of_a_traced_operator_have_its_line() -> None:
    assert lines(traced(*LINEAR_TRACE), LINEAR) == [3, 3, 3, 4, 4]


def test_an_inner_operator_does_not_stand_for_a_traced_one_of_its_name() -> None:
    trace = traced(*LINEAR_TRACE, ("aten.copy_.default", 9))
    assert lines(trace, [*LINEAR, op("aten::copy_", 200, 210)]) == [3, 3, 3, 4, 4, 9]


def test_the_trace_repeats_for_several_calls() -> None:
    again = [op(e.name, e.start_ns + 1000, e.end_ns + 1000) for e in LINEAR]
    assert lines(traced(*LINEAR_TRACE), LINEAR + again) == [3, 3, 3, 4, 4] * 2


def test_where_the_code_departs_from_the_trace_nothing_is_guessed() -> None:
    trace = traced(("aten.relu.default", 1), ("aten.sin.default", 2), ("aten.relu.default", 3))
    profiled = [op("aten::relu", 0, 1), op("aten::cos", 2, 3), op("aten::relu", 4, 5)]
    assert lines(trace, profiled) == [1, None, None]


def test_other_threads_are_left_alone() -> None:
    trace = traced(("aten.relu.default", 1), ("aten.sin.default", 2))
    profiled = [op("aten::relu", 0, 10), op("aten::sin", 2, 3, thread=2), op("aten::sin", 11, 12)]
    assert lines(trace, profiled) == [1, None, 2]


def test_nothing_traced_or_nothing_profiled() -> None:
    assert lines(traced(), LINEAR) == [None] * 5
    assert lines(traced(*LINEAR_TRACE), []) == []


def test_a_thread_with_nothing_of_python_below_has_no_position() -> None:
    """As the one in which autograd calls operators on a GPU."""
    found: list[object] = []
    done = threading.Event()
    finder = PositionFinder()

    def look() -> None:
        try:
            found.append(finder.find(5))
        finally:
            done.set()

    _thread.start_new_thread(look, ())
    assert done.wait(10) and found == [(None, None)]
