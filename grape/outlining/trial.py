"""True where the regions of a loop make its iterations faster: blocks of iterations with them and as written, in turn.

A region knows what its own calls take. What stands between the person's statements and the region, and what a replay
leaves to the host, shows only in whole iterations.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import torch

from ..originals import perf_counter

if TYPE_CHECKING:
    from ..runtime.regions.context import RegionContext
    from .run import Run

BLOCK = 6
"""Iterations of a block; the device is idle where one begins and where it ends."""
BLOCKS = 5
"""Of each kind."""
SPOILT = 12
"""So many blocks with graphs may be in vain before a trial is given up: a capture or a new shape fell into them."""
REPLAYS = 16
"""So many replays before a region is tried: by then it is known which results may stay in place."""
BACKENDS = ("cuda",)


class Trial:
    """One trial of `runs`. Call `turn` before each iteration, `pause` where the loop ends; `over` once it is decided.

    `sees_end`: `pause` is called however the loop is left. Else callables inside it go on being looked at.
    """

    def __init__(self, runs: list[Run], context: RegionContext, *, sees_end: bool) -> None:
        self._runs = [run for run in runs if run.live]
        self._context = context
        self._active = runs[0].outliner.interceptor.active
        self._sees_end = sees_end
        self._closed = False
        self._times: tuple[list[float], list[float]] = ([], [])
        self._written = False
        self._left = 0
        self._began = 0.0
        self._unserved = 0
        self._spoilt = 0
        self.over = False

    @classmethod
    def of(cls, runs: list[Run], *, sees_end: bool) -> Trial | None:
        """None while no region of these replays, or where nothing is measured."""
        regions = [part.region for run in runs for part in run.regions if run.live and part.region is not None]
        if not any(region.replays_in_run >= REPLAYS for region in regions):
            return None
        context, active = regions[0].context, runs[0].outliner.interceptor.active
        if not context.observing or not active.free or context.backend.kind not in BACKENDS:
            return None
        return cls(runs, context, sees_end=sees_end)

    def turn(self) -> None:
        """An iteration begins."""
        if self._is_disturbed():
            self._left = -1
            self._context.comparing = False  # the active region goes on recording behind it
            self._switch(written=False)
            return
        self._left -= 1
        if self._left > 0:
            return
        self._context.backend.synchronize()
        now = perf_counter()
        if self._left == 0 and (self._written or self._unserved == self._misses()):
            self._times[self._written].append((now - self._began) / BLOCK)
            self._written = not self._written
        elif self._left == 0:
            self._spoilt += 1
        if len(self._times[True]) == BLOCKS or self._spoilt == SPOILT:
            self._decide()
            return
        self._left = BLOCK
        self._resume(written=self._written)
        self._unserved = self._misses()
        self._began = perf_counter()

    def _misses(self) -> int:
        """Captures so far, and calls of the tried regions that no graph could serve: those of others are the same in
        both kinds of blocks."""
        regions = [part.region for run in self._runs for part in run.regions]
        return self._context.captures + sum(region.unserved for region in regions if region is not None)

    def _is_disturbed(self) -> bool:
        """True if the loop runs in a region's call now, in a capture of the person's or in a cell that nobody observes:
        nobody may wait for the device there.
        """
        context = self._context
        held = not self._active.free and not self._closed
        captured = context.backend.kind == "cuda" and torch.cuda.is_current_stream_capturing()
        return held or captured or not context.observing

    def pause(self) -> None:
        """The loop is left: a block that is not complete does not count."""
        if self._left >= 0:
            self._left = -1
            self._resume(written=False)

    def _resume(self, *, written: bool) -> None:
        self._context.comparing = comparing = not self.over and self._left >= 0
        self._active.mute(comparing)
        self._switch(written=written)

    def _switch(self, *, written: bool) -> None:
        """Have the next iterations run with graphs, or as written and unseen."""
        if self._sees_end and written is not self._closed:
            self._active.free, self._closed = not written, written
        for run in self._runs:
            run.live = not written and not run.given_up and bool(run.regions)

    def _decide(self) -> None:
        self.over = True
        self._resume(written=False)
        graphs, written = self._times
        if len(written) < BLOCKS:
            return
        took, would = statistics.median(graphs) * 1e3, statistics.median(written) * 1e3
        if took <= would:
            return
        why = f"an iteration of its loop took {took:.3g} ms with the graph, {would:.3g} ms as written; left eager"
        for run in self._runs:
            run.give_up(why)
