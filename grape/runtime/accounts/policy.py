"""When is a capture expected to pay?

A capture costs tens of milliseconds; a replay saves a few at each later call with the same shapes. Without knowledge
of the future the rule is the one of ski rental: expect as many calls as there were so far in this cell, and capture
when what they would save exceeds what the capture costs. A person who runs a cell again under `%%grape` will run it
again: shapes that an earlier run has seen count for `RERUN_WEIGHT` calls each. Sources: Karlin et al., "Competitive
snoopy caching" (1988), for the first rule; the second is a choice, stated here and in the report.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...model import Decision

FEW = 5
"""Eager calls that must be timed before anything is decided."""

RERUN_WEIGHT = 24
MINIMUM_SAVING = 0.03
"""A graph that saves less than this share of a call is not worth its memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The facts that are known when a call with some shapes arrives.

    `eager_ms` is the median eager call; `busy_ms` the device time within it: 0 before the profile, which precedes every
    capture and is taken when a graph could pay at best; None where there can be no profile.
    `capture_ms` is what a capture costs. `seen` counts calls with these shapes in this cell,
    `earlier_runs` the cells before this one that had them.
    """

    shapes: str
    eager_ms: float
    busy_ms: float | None
    capture_ms: float
    seen: int
    earlier_runs: int

    @property
    def saving_ms(self) -> float:
        """The saving of a replay: the time in which the device waits; half the call where that is unknown."""
        if self.busy_ms is None:
            return self.eager_ms * 0.5
        return max(0.0, self.eager_ms - self.busy_ms)

    @property
    def expected_calls(self) -> float:
        return float(self.seen + RERUN_WEIGHT * self.earlier_runs)


def capture_cost(operators: int) -> float:
    """Milliseconds that the first capture of a call with so many operators should cost, verification included.

    Fitted to GPT-2's decode step on an H200: 474 operators, 65 ms with a pool that has to grow.
    """
    return 8.0 + 0.12 * operators


def decide(estimate: Estimate) -> Decision:
    """Capture now, or wait; with the reason in one sentence."""
    capture_ms = estimate.capture_ms
    gain_ms = estimate.expected_calls * estimate.saving_ms
    worthwhile = estimate.saving_ms >= MINIMUM_SAVING * estimate.eager_ms
    if not worthwhile:
        action = "drop"
        why = f"the device is busy for {estimate.busy_ms or 0.0:.3g} of {estimate.eager_ms:.3g} ms: little to save"
    elif gain_ms > capture_ms:
        action = "capture"
        why = f"{estimate.expected_calls:.0f} expected calls save {gain_ms:.3g} ms; the capture costs {capture_ms:.3g}"
    else:
        action = "wait"
        why = f"{estimate.expected_calls:.0f} expected calls would save {gain_ms:.3g} ms, less than {capture_ms:.3g} ms"
    return Decision(
        action=action,
        shapes=estimate.shapes,
        seen=estimate.seen,
        expected_calls=estimate.expected_calls,
        saving_ms=estimate.saving_ms,
        capture_ms=capture_ms,
        why=why,
    )
