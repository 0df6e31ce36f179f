"""`policy.decide` in numbers: the ski rental, cells that run again, calls with nothing to save."""

from __future__ import annotations

import pytest

from grape.runtime.accounts.policy import RERUN_WEIGHT, Estimate, capture_cost, decide


def estimate(
    *, eager: float = 3.0, busy: float | None = 1.0, cost: float = 60.0, seen: int = 1, runs: int = 0
) -> Estimate:
    return Estimate(shapes="2, 8", eager_ms=eager, busy_ms=busy, capture_ms=cost, seen=seen, earlier_runs=runs)


@pytest.mark.parametrize(
    ("given", "action", "expected_calls", "saving_ms"),
    [
        # 2 ms saved per call, 60 ms to capture: it pays once more than 30 calls are expected
        (estimate(seen=1), "wait", 1, 2.0),
        (estimate(seen=30), "wait", 30, 2.0),
        (estimate(seen=31), "capture", 31, 2.0),
        # each earlier run counts for RERUN_WEIGHT calls
        (estimate(seen=1, runs=1), "wait", 1 + RERUN_WEIGHT, 2.0),
        (estimate(seen=7, runs=1), "capture", 7 + RERUN_WEIGHT, 2.0),
        (estimate(seen=1, runs=2), "capture", 1 + 2 * RERUN_WEIGHT, 2.0),
        # no profile: half of the call
        (estimate(busy=None, seen=40), "wait", 40, 1.5),
        (estimate(busy=None, seen=41), "capture", 41, 1.5),
        # the device is busy nearly all the time: no number of calls helps
        (estimate(eager=100.0, busy=97.1, seen=10_000, runs=9), "drop", 10_000 + 9 * RERUN_WEIGHT, 2.9),
        (estimate(eager=100.0, busy=97.0, seen=21), "capture", 21, 3.0),
        # kernels that overlap can sum up to more than the call
        (estimate(eager=3.0, busy=4.0, seen=10_000), "drop", 10_000, 0.0),
        # a capture that costs nothing (the tape) pays at the first call that saves anything
        (estimate(cost=0.0, seen=1), "capture", 1, 2.0),
    ],
)
def test_decisions(given: Estimate, action: str, expected_calls: float, saving_ms: float) -> None:
    decision = decide(given)
    assert decision.action == action
    assert decision.expected_calls == expected_calls
    assert decision.saving_ms == pytest.approx(saving_ms)
    assert (decision.shapes, decision.seen, decision.capture_ms) == (given.shapes, given.seen, given.capture_ms)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (estimate(seen=31), "31 expected calls save 62 ms; the capture costs 60"),
        (estimate(seen=30), "30 expected calls would save 60 ms, less than 60 ms"),
        (estimate(eager=100.0, busy=99.0), "the device is busy for 99 of 100 ms: little to save"),
    ],
)
def test_a_decision_says_why(given: Estimate, why: str) -> None:
    assert decide(given).why == why


def test_waiting_never_costs_more_than_twice_the_best() -> None:
    """Ski rental (Karlin et al. 1988): whenever the calls end, what was lost is at most twice what had to be lost."""
    saving, cost = 2.0, 60.0
    for calls in range(1, 200):
        captured_at = next((n for n in range(1, calls + 1) if decide(estimate(seen=n)).action == "capture"), None)
        lost = saving * calls if captured_at is None else saving * captured_at + cost
        best = min(saving * calls, cost)
        assert lost <= 2 * best + saving


def test_the_foreseen_cost_is_that_of_the_fit() -> None:
    assert capture_cost(474) == pytest.approx(65, abs=1)
    assert capture_cost(0) == 8.0
    assert capture_cost(1000) - capture_cost(500) == pytest.approx(60)
