"""Whether operator streams go on serving a cell that regions left to them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from grape.sessions.past.history import History, Past
from grape.sessions.streamed.judged import after_streamed_run, did_other_work, without_streams
from tests.unit.sample_past import LEFT


def after(past: Past, matched: int = 90, wall_ms: float = 500.0, plain_ms: float | None = 1000.0) -> Past:
    return after_streamed_run(past, operators=100, matched=matched, wall_ms=wall_ms, plain_ms=plain_ms)


@pytest.mark.parametrize(
    ("runs", "why"),
    [
        ([{}, {}, {}], None),
        ([{"wall_ms": 1100.0}], None),
        ([{"wall_ms": 1035.0}] * 3, None),
        ([{"wall_ms": 1036.0}] * 2, "operator streams made it slower (1.00 -> 1.04 s)"),
        ([{"wall_ms": 1100.0}, {}, {"wall_ms": 1100.0}], None),
        ([{"wall_ms": 1100.0, "plain_ms": None}] * 3, None),
        ([{"matched": 5}] * 3, None),
        ([{"matched": 4}] * 2, "operator streams matched 4 of 100 operators"),
        ([{"matched": 4, "plain_ms": None}] * 2, "operator streams matched 4 of 100 operators"),
        ([{"wall_ms": 1200.0}, {"matched": 4}], "operator streams matched 4 of 100 operators"),
    ],
)
def test_two_runs_in_a_row_without_a_gain_end_it(runs: list[dict[str, float]], why: str | None) -> None:
    past = LEFT
    for run in runs:
        past = after(past, **run)  # type: ignore[arg-type]
    assert past.streamless == why
    assert past.streamed == (why is None) and past.settled and not past.served


def test_regions_look_again_where_they_made_room() -> None:
    past = replace(LEFT, outbid=True, why=None)
    assert not without_streams(past, "a reason", again=True).settled
    for foreseen, settled in ((None, True), ("graphs would save 20% of the cell", False)):
        tried = replace(past, why=foreseen)
        assert after(after(tried, matched=0), matched=0).settled == settled


@pytest.mark.parametrize(
    ("segments", "plain_ms", "goes_on"), [(46, 1000.0, False), (46, 1100.0, True), (44, 1000.0, True)]
)
def test_groups_of_hardly_two_operators_are_none(segments: int, plain_ms: float, goes_on: bool) -> None:
    past = LEFT
    for _ in range(2):
        past = after_streamed_run(
            past, operators=100, matched=90, segments=segments, captured=1, wall_ms=1000.0, plain_ms=plain_ms
        )
    assert past.streamed == goes_on
    assert goes_on or "90 in 46 groups" in str(past.streamless)


def goes_on(runs: int, wall_ms: float = 1000.0, plain_ms: float | None = 1000.0, **made: int) -> bool:
    """Whether streams serve a cell still behind so many runs in which next to nothing matched."""
    past = LEFT
    for _ in range(runs):
        past = after_streamed_run(past, operators=100, matched=0, wall_ms=wall_ms, plain_ms=plain_ms, **made)
        if not past.streamed:
            return False
    return True


@pytest.mark.parametrize("made", [{"captured": 1}, {"rested": 3}, {"waiting": 5}])
def test_runs_in_which_graphs_are_made_or_on_their_way_are_not_held_against_it(made: dict[str, int]) -> None:
    assert goes_on(9, **made) and not goes_on(10, **made)
    assert not goes_on(2, waiting=4)


def test_but_they_may_not_cost_much() -> None:
    assert goes_on(2, wall_ms=1200.0, captured=1) and not goes_on(3, wall_ms=1200.0, captured=1)
    assert goes_on(2, wall_ms=9000.0, captured=1) and not goes_on(3, wall_ms=9000.0, captured=1), "it may be one run"
    assert goes_on(9, wall_ms=1200.0, plain_ms=None, captured=1)


def test_what_was_slow_while_it_learned_is_not_given_up_in_a_run_that_is_not() -> None:
    past = LEFT
    for wall_ms in (1240.0, 1240.0, 1034.0, 1034.0, 1240.0, 1034.0):
        past = after_streamed_run(past, operators=100, matched=90, wall_ms=wall_ms, plain_ms=1000.0, captured=1)
        assert past.streamed, wall_ms
    assert past.paid > 0.5


def test_runs_that_gain_and_few_milliseconds_are_none_of_them() -> None:
    assert goes_on(20, wall_ms=950.0, captured=1) and not goes_on(20, wall_ms=951.0, captured=1)
    assert goes_on(9, wall_ms=8.0, plain_ms=4.0, captured=1) and not goes_on(9, wall_ms=12.0, plain_ms=4.0, captured=1)


def test_what_mostly_waits_for_its_captures_goes_on() -> None:
    assert goes_on(20, waiting=50) and not goes_on(20, waiting=49)


def test_a_run_that_did_other_work() -> None:
    assert not did_other_work(LEFT, 100)
    served = after(LEFT)
    assert [did_other_work(served, operators) for operators in (74, 75, 125, 126)] == [True, False, False, True]


def test_whether_any_cell_is_streamed() -> None:
    history = History()
    told = []
    for past in (LEFT, after(LEFT), without_streams(after(LEFT), "a reason", again=False)):
        history.remember(("a", frozenset()), past)
        told.append(history.streamed)
    assert told == [False, True, False]
