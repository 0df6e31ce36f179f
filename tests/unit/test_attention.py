"""The account of Grape's own time: every nanosecond once, for the innermost span; the person's for nobody."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from grape.runtime.accounts.attention import Allowance, Attention
from grape.runtime.accounts.tally import Tally


class Clock:
    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns

    def pass_ms(self, ms: float) -> None:
        self.ns += int(ms * 1e6)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def attention(clock: Clock) -> Attention:
    return Attention(clock)


def test_nested_spans_are_booked_for_the_innermost(clock: Clock, attention: Attention) -> None:
    with attention.spend("observe"):
        clock.pass_ms(1)
        with attention.spend("capture"):
            clock.pass_ms(10)
            with attention.spend("verify"):
                clock.pass_ms(100)
        clock.pass_ms(2)
    spent = [attention.spent_ms(one) for one in ("observe", "capture", "verify", "record", "report")]
    assert spent == [3, 10, 100, 0, 0]
    assert attention.spent_ms() == 113


def test_the_persons_code_inside_costs_nothing_and_what_it_calls_does(clock: Clock, attention: Attention) -> None:
    with attention.spend("observe"):
        clock.pass_ms(1)
        with attention.spend(None):
            clock.pass_ms(1000)
            with attention.spend("observe"):
                clock.pass_ms(2)
            clock.pass_ms(1000)
    assert attention.spent_ms() == 3


def test_a_span_ends_with_an_exception(clock: Clock, attention: Attention) -> None:
    with pytest.raises(KeyboardInterrupt), attention.spend("record"):
        clock.pass_ms(5)
        raise KeyboardInterrupt
    clock.pass_ms(100)
    assert attention.spent_ms("record") == 5


def test_what_is_handed_back_is_the_persons_from_where_a_span_inside_began(clock: Clock, attention: Attention) -> None:
    with attention.spend("observe"):
        with attention.spend("record"):
            clock.pass_ms(7)
            with attention.spend("observe"):
                clock.pass_ms(1)
                attention.hand_back("record")
                clock.pass_ms(1)
            clock.pass_ms(500)
        clock.pass_ms(3)
    assert (attention.spent_ms("record"), attention.spent_ms("observe")) == (7, 5)
    assert attention.handed_back_ns == 7e6


def test_a_new_cell_begins_with_nothing_even_inside_a_span(clock: Clock, attention: Attention) -> None:
    with attention.spend("record"):
        clock.pass_ms(5)
        attention.begin_run(Allowance())
        clock.pass_ms(5)
    assert attention.spent_ms() == 0


def test_the_allowance_grows_with_the_cell(clock: Clock, attention: Attention) -> None:
    attention.begin_run(Allowance(share=0.1, beside_ms=2))
    attention.book("record", 2.5e6)
    assert attention.overdrawn
    clock.pass_ms(10)
    assert not attention.overdrawn
    assert attention.left_ms == 0.5
    attention.book("record", -1e6)
    assert attention.left_ms == 1.5


def test_without_an_allowance_nothing_is_too_much(clock: Clock, attention: Attention) -> None:
    attention.book("capture", 1e15)
    assert not attention.overdrawn


def test_a_span_may_have_begun_before_it_was_known_to_be_one(clock: Clock, attention: Attention) -> None:
    with attention.spend("record"):
        clock.pass_ms(1)
        since = attention.now()
        clock.pass_ms(2)
        attention.begin("observe", since)
        clock.pass_ms(3)
        attention.end()
    assert (attention.spent_ms("record"), attention.spent_ms("observe")) == (1.0, 5.0)


@pytest.mark.parametrize("reaches", [True, False])
def test_a_traced_call_that_raises_is_taken_back_as_any_other(reaches: bool) -> None:
    observer, tally = SimpleNamespace(body_ns=(0, 0), watched_ns=0), Tally()
    tracer = SimpleNamespace(own_ns=0)

    def raises() -> None:
        with tally.tracing(Attention(), tracer, observer):  # type: ignore[arg-type]
            if reaches:
                now = time.perf_counter_ns()
                observer.body_ns = now, now + 5_000
            raise ValueError

    with pytest.raises(ValueError):
        raises()
    assert tally.traced_ns == ([(5_000, 0)] if reaches else [])
