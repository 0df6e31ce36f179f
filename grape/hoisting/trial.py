"""Whether the regions of a loop make its iterations faster: blocks of iterations with them and as written, in turn.

A region knows what its own calls take. What stands between the person's statements and the region, and what a replay
leaves to the host, shows only in whole iterations.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from ..model import Refused
from .parts import RegionPart

if TYPE_CHECKING:
    from ..runtime.situation import Situation
    from .run import Run

__all__ = ["BACKENDS", "BLOCK", "BLOCKS", "REPLAYS", "Trial"]

BLOCK = 6
"""Iterations of a block; the device is idle where one begins and where it ends."""
BLOCKS = 3
"""Of each kind."""
REPLAYS = 16
"""So many replays before a region is tried: by then it is known which results may stay in place."""
BACKENDS = ("cuda",)


class Trial:
    """One trial of `runs`. Call `turn` before each iteration, `pause` where the loop ends; `over` once it is decided.

    `sees_end`: `pause` is called however the loop is left. Else callables inside it go on being looked at.
    """

    def __init__(self, runs: list[Run], situation: Situation, *, sees_end: bool) -> None:
        self._runs = [run for run in runs if run.live]
        self._situation = situation
        self._floor = runs[0].hoister.interceptor.floor
        self._was_free = self._floor.free
        self._sees_end = sees_end
        self._times: tuple[list[float], list[float]] = ([], [])
        self._written = False
        self._left = 0
        self._began = 0.0
        self.over = False

    @classmethod
    def of(cls, runs: list[Run], *, sees_end: bool) -> Trial | None:
        """None while no region of these replays, or where nothing is measured."""
        regions = [part.region for run in runs for part in run.regions if run.live and part.region is not None]
        if not any(region.replays_in_run >= REPLAYS for region in regions):
            return None
        situation = regions[0].situation
        if not situation.observing or situation.backend.kind not in BACKENDS:
            return None
        return cls(runs, situation, sees_end=sees_end)

    def turn(self) -> None:
        """An iteration begins."""
        self._left -= 1
        if self._left > 0:
            return
        self._situation.backend.synchronize()
        now = time.perf_counter()
        if self._left == 0:
            self._times[self._written].append((now - self._began) / BLOCK)
            self._written = not self._written
        if len(self._times[True]) == BLOCKS:
            self._decide()
            return
        self._left = BLOCK
        self._resume(written=self._written)
        self._began = time.perf_counter()

    def pause(self) -> None:
        """The loop is left: a block that is not complete does not count."""
        self._left = -1
        self._resume(written=False)

    def _resume(self, *, written: bool) -> None:
        self._situation.comparing = comparing = not self.over and self._left >= 0
        self._floor.hush(comparing)
        if self._sees_end:
            self._floor.free = self._was_free and not written
        for run in self._runs:
            run.live = not written and not run.given_up and bool(run.regions)

    def _decide(self) -> None:
        self.over = True
        self._resume(written=False)
        graphs, written = self._times
        if min(graphs) <= max(written):
            return
        took, would = statistics.median(graphs) * 1e3, statistics.median(written) * 1e3
        why = f"an iteration of its loop took {took:.3g} ms with the graph, {would:.3g} ms as written; left eager"
        for run in self._runs:
            for part in run.parts:
                if isinstance(part, RegionPart) and part.region is not None and part.region.refused is None:
                    part.region.refuse(Refused(code="GR406", why=why, at=part.region.at))
            run.live = False
            run.given_up = True
