"""What a region's calls take as written, what captures take, and whether another one may take as much."""

from __future__ import annotations

import statistics

from ..accounts import policy
from ..accounts.policy import capture_cost
from ..accounts.samples import CallTimes
from ..replaying.entry import Entry
from .observer import Observer
from .region_state import RegionState
from .specialization import Specialization

RUNS_OF_A_CAPTURE = 3
"""The code runs again for the capture, then what was captured is replayed and compared."""


class Costs:
    """Of one region. `durations_ms` are what captures took."""

    def __init__(self, region: RegionState, observer: Observer) -> None:
        self._region, self._observer = region, observer
        self.durations_ms: list[float] = []

    def eager_ms(self, shape: Specialization) -> list[float]:
        """Milliseconds of eager calls of the shape; where none was timed, of all."""
        return shape.before.ms(leave=2) or CallTimes.joined(s.before for s in self._region.shapes.values())

    def have_earned_another(self, shape: Specialization) -> bool:
        """True where graphs, which cannot serve a call now, have saved more than they and another one take. So it is
        where results of the last run are kept, and lie in their way.
        """
        eager_ms = self.eager_ms(shape) if shape.entries else []
        if not eager_ms:
            return False
        median_ms = statistics.median(eager_ms)
        saved_ms = sum(entry.replays * (median_ms - entry.replay_ms) for entry in shape.entries)
        return saved_ms > sum(self.durations_ms) + self.takes_ms(median_ms)

    def has_room(self, shape: Specialization, eager_ms: float) -> bool:
        takes_ms = self.takes_ms(eager_ms)
        return self.have_earned_another(shape) or self._region.context.attention.has_room(takes_ms)

    def takes_ms(self, eager_ms: float) -> float:
        """Milliseconds that the next capture takes of the cell: the code runs twice more, traced, and what was captured
        once.
        """
        if self.durations_ms:
            return statistics.median(self.durations_ms)
        traces = self._observer.traces
        operator_ms = self._region.context.attention.operator_ms
        return RUNS_OF_A_CAPTURE * eager_ms + 2 * operator_ms * (len(traces[-1].ops) if traces else 0)

    def saving_ns(self, shape: Specialization, entry: Entry) -> float | None:
        """The saving of a replay against an eager call, as measured; the tape saves nothing, and shows all the same."""
        times = self.eager_ms(shape)
        if self._region.context.backend.kind == "tape" or not times:
            return None
        return (statistics.median(times) - entry.replay_ms) * 1e6

    def capture_ms(self) -> float:
        """The cost of a capture: measured, else foreseen. The tape gains nothing on a device, so it captures at once.

        The first one also loads libraries and compiles, which no other does; so a few are not believed alone.
        """
        if self._region.context.backend.kind == "tape" or self._region.context.unhurried:
            return 0.0
        if len(self.durations_ms) >= policy.FEW:
            return statistics.median(self.durations_ms)
        traces = self._observer.traces
        return min((capture_cost(len(traces[-1].ops) if traces else 0), *self.durations_ms))
