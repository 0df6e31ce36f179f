"""The account of the time that Grape takes from a cell, and what it may take.

Spans nest, and each nanosecond is booked once, for the innermost span. A span of the person's own code inside one of
Grape's is booked for nothing. A call that is traced, profiled or captured is the person's work and Grape's at once: it
is booked whole, and what a plain call takes is taken back when that is known (`book` with a negative amount).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

from ...originals import perf_counter_ns

TRACED_OPERATOR_MS = 0.03
"""Milliseconds that it takes to record one operator, at least."""
TRACING = 3.0
"""Recording takes so often what the tracer's own clock says."""
_FEW = 20

Purpose = Literal["observe", "record", "capture", "verify", "report"]
"""Looking on (hooks, modes, timers); tracing and profiling calls; capturing; comparing; what happens after the cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """How much of a cell may be spent on it: a share of its time so far, and milliseconds beside it."""

    share: float = 0.0
    beside_ms: float = float("inf")

    def ms(self, elapsed_ms: float) -> float:
        return self.share * elapsed_ms + self.beside_ms


class Attention:
    """The account of the cell that runs: what was spent, and what may be. `clock` gives nanoseconds."""

    def __init__(self, clock: Callable[[], int] = perf_counter_ns) -> None:
        self._clock = clock
        self._spans: list[tuple[Purpose | None, int]] = []
        self._spent_ns: dict[Purpose | None, int] = {}
        self.handed_back_ns = 0
        """How long the spans were that `hand_back` ended."""
        self.operator_ms = TRACED_OPERATOR_MS
        """Milliseconds that it took to record one operator, on this machine."""
        self.begin_run(Allowance())

    def begin_run(self, allowance: Allowance) -> None:
        """A cell begins: nothing is spent yet."""
        self._spans.clear()
        self._spent_ns = dict.fromkeys((None, *get_args(Purpose)), 0)
        self._began = self._clock()
        self.allowance = allowance
        self.denied = False
        """True where something was not done because the allowance had no room for it."""

    def recorded(self, own_ns: int, operators: int) -> None:
        """So many operators were recorded, which the tracer says took so long."""
        if operators >= _FEW:
            self.operator_ms = max(TRACED_OPERATOR_MS, TRACING * own_ns / operators / 1e6)

    def book(self, purpose: Purpose, ns: float) -> None:
        """Add time that was measured elsewhere; a negative amount takes back what was booked too much."""
        self._spent_ns[purpose] += int(ns)

    def now(self) -> int:
        return self._clock()

    def begin(self, purpose: Purpose | None, since: int | None = None) -> None:
        """A span begins that `end` ends, or began at `since`, a time that `now` gave. None: the person's own code."""
        self._spans.append((purpose, self._clock() if since is None else since))

    def end(self) -> None:
        """The innermost span ends."""
        if not self._spans:  # a cell began meanwhile
            return
        purpose, since = self._spans.pop()
        took = self._clock() - since
        self._spent_ns[purpose] += took
        if self._spans:
            self._spent_ns[self._spans[-1][0]] -= took

    def hand_back(self, purpose: Purpose) -> None:
        """Under a span of `purpose` that is open the person's code goes on by itself: what follows is not Grape's."""
        for index, (open_for, since) in enumerate(self._spans):
            if open_for == purpose:
                until = self._spans[index + 1][1] if index + 1 < len(self._spans) else self._clock()
                self._spent_ns[purpose] += until - since
                if index:
                    self._spent_ns[self._spans[index - 1][0]] -= until - since
                self._spans[index] = (None, until)
                self.handed_back_ns += until - since

    @contextmanager
    def spend(self, purpose: Purpose | None) -> Iterator[None]:
        """Book the time of the block, but for the blocks inside it that are booked on their own."""
        self.begin(purpose)
        try:
            yield
        finally:
            self.end()

    def spent_ms(self, purpose: Purpose | None = None) -> float:
        """Milliseconds for one purpose, or for all."""
        if purpose is not None:
            return self._spent_ns[purpose] / 1e6
        return sum(self._spent_ns[one] for one in get_args(Purpose)) / 1e6

    @property
    def left_ms(self) -> float:
        """Milliseconds that may still be spent as things stand. Spans that are open do not count yet."""
        elapsed_ms = (self._clock() - self._began) / 1e6
        return self.allowance.ms(elapsed_ms) - self.spent_ms()

    @property
    def overdrawn(self) -> bool:
        """True where more was spent than the cell allows so far."""
        return not self.has_room(0.0)

    def has_room(self, ms: float) -> bool:
        """True where so much may still be spent; where it may not, something is not done for that reason."""
        room = self.left_ms >= ms
        self.denied |= not room
        return room
