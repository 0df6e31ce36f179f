"""Profiles of a region's calls and replays: an example of each, by the device's own clock."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ...model import Timeline
from ...model.call import Args, Kwargs
from ...profiling import TimelineRecorder, place_nodes
from ...tracing import person_runs
from ..accounts import policy
from .context import CellName
from .region_state import RegionState
from .specialization import Specialization
from .traced_calls import TracedCall

MOST_PROFILED = 3
STRANGE = 3.0
"""A profiled call that took more than this times what calls take is no example of them: another one is profiled."""
PROFILE_AFTER_S = 1.0
"""Nothing for a cell that is soon over."""
PROFILE_MS, PROFILED_OPERATOR_MS = 30.0, 0.2
"""What a profiled call takes, and more for each of its operators: its events are read in Python."""


class CallProfiles:
    """Of one region, of which `traced` calls are known. `eager_s` is the time of its timed calls, in seconds."""

    def __init__(
        self, region: RegionState, traced: Sequence[TracedCall], pays: Callable[[Specialization], bool]
    ) -> None:
        self._region, self._traced, self._pays = region, traced, pays
        self.eager_s = 0.0
        self._profiled = 0
        self._profiled_after = 0
        self._lacks_example = self._lacks_replay = True
        self._profiled_in: tuple[Specialization | None, CellName] = None, CellName()
        self._before = TimelineRecorder(region.context.backend.device)
        self._after = TimelineRecorder(region.context.backend.device)

    @property
    def profiled(self) -> bool:
        """True where an eager call was profiled."""
        return self._profiled > 0

    def profile_now(self, shape: Specialization, may_capture: bool) -> bool:
        """Profile before the first capture, or once enough calls were timed: CUPTI may stay and slow later launches."""
        if not self._region.context.profile or not self._lacks_example:
            return False
        if self._region.context.attention.left_ms < self._profile_ms():
            return False
        timed = sum(len(s.before) for s in self._region.shapes.values())
        if not self._region.context.apply:
            return timed >= policy.FEW
        if self.eager_s > PROFILE_AFTER_S:
            return True
        # Shapes that recur from cell to cell are not spent on a profile; the first capture times a replay instead.
        return (
            timed >= policy.FEW and shape.seen >= policy.FEW and may_capture and not shape.closed and self._pays(shape)
        )

    def _profile_ms(self) -> float:
        """What profiling a call takes."""
        return PROFILE_MS + PROFILED_OPERATOR_MS * max((len(one.trace.ops) for one in self._traced), default=0)

    def _is_strange(self, recorder: TimelineRecorder) -> bool:
        """True where the call that was profiled last took far more than eager calls do."""
        timed = sum(len(s.before) for s in self._region.shapes.values())
        usual_ms = self.eager_s * 1e3 / timed if timed else 0.0
        return recorder.last_ms is not None and recorder.last_ms > STRANGE * usual_ms > 0

    def profile(self, shape: Specialization, args: Args, kwargs: Kwargs) -> object:
        self._profiled += 1
        self._profiled_in = shape, self._region.context.cell
        self._before.start()
        try:
            with person_runs():
                return self._region.function(*args, **kwargs)
        finally:
            self._before.stop()
            self._lacks_example = self._profiled < MOST_PROFILED and self._is_strange(self._before)

    def profile_replay_now(self, shape: Specialization) -> bool:
        """True where this replay is to be profiled, with `replayed`."""
        context = self._region.context
        return context.observing and context.profile and self._lacks_replay and len(shape.after) >= 3

    @contextmanager
    def replayed(self) -> Iterator[None]:
        self._profiled_after += 1
        self._after.start()
        try:
            yield
        finally:
            self._after.stop()
            self._lacks_replay = self._profiled_after < MOST_PROFILED and self._is_strange(self._after)

    @property
    def profile_holds(self) -> bool:
        """True where what was profiled is a call as this cell makes them."""
        context = self._region.context
        shape, cell = self._profiled_in
        return cell.source == context.cell.source or (shape is not None and shape.run == context.run)

    def _median_ms(self, *, after: bool) -> float | None:
        """Of the calls that were timed, but for the newest, which the device may not have finished."""
        times = [ms for s in self._region.shapes.values() for ms in (s.after if after else s.before).warm_ms(leave=2)]
        return statistics.median(times) if times else None

    def timeline_before(self) -> Timeline | None:
        if self._traced:
            self._before.follow(self._traced[-1].trace)
        self._before.typical_ms = self._median_ms(after=False)
        return self._before.timeline() if self._profiled else None

    def timeline_after(self) -> Timeline | None:
        self._after.typical_ms = self._median_ms(after=True)
        before, after = self.timeline_before(), self._after.timeline() if self._profiled_after else None
        return place_nodes(before, after) if before and after else after
