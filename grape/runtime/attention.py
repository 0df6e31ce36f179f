"""The account of the time that Grape takes from a cell, by what it is spent on.

Nested spans count once, for the innermost. What cannot be told apart while it runs (a traced call is the person's work
and Grape's at once) is booked afterwards, with `book`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

__all__ = ["Attention", "Purpose"]

Purpose = Literal["observe", "record", "capture", "verify", "report"]
"""Looking on (hooks, modes, timers); tracing and profiling calls; capturing; comparing; what happens after the cell."""


class Attention:
    """What was spent in the cell that runs. `clock` gives nanoseconds."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._spans: list[tuple[Purpose, int]] = []
        self._spent_ns: dict[Purpose, int] = {}
        self.begin_run()

    def begin_run(self) -> None:
        """A cell begins: nothing is spent yet."""
        self._spans.clear()
        self._spent_ns = dict.fromkeys(get_args(Purpose), 0)

    def book(self, purpose: Purpose, ns: float) -> None:
        """Add time that was measured elsewhere; a negative amount takes back what was booked too much."""
        self._spent_ns[purpose] += int(ns)

    @contextmanager
    def spend(self, purpose: Purpose) -> Iterator[None]:
        """Book the time of the block, but for the blocks inside it that are booked on their own."""
        self._spans.append((purpose, self._clock()))
        try:
            yield
        finally:
            if self._spans:  # else a cell began meanwhile
                inner, since = self._spans.pop()
                took = self._clock() - since
                self._spent_ns[inner] += took
                if self._spans:
                    self._spent_ns[self._spans[-1][0]] -= took

    def spent_ms(self, purpose: Purpose | None = None) -> float:
        """Milliseconds for one purpose, or for all."""
        ns = sum(self._spent_ns.values()) if purpose is None else self._spent_ns[purpose]
        return ns / 1e6
