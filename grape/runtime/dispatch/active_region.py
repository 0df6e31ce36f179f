"""The active region: which of the callables that may become a region does.

One candidate at a time is active: the outermost that has not been refused. What it calls passes through; once it is
refused, the candidates inside it may become active.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import TypeVar

import torch

from ...model.call import Args, Kwargs
from ...tracing import Recorder, busy
from ..guarding.effects import EffectWatch
from ..guarding.environment import is_transformed
from ..predication import in_loop
from ..regions.context import RegionContext
from ..regions.region import Region

T = TypeVar("T")

LOOPS = 24
"""So often a candidate is called by the active one, before it is taken to be the step of a loop."""
_REGION_CALL = Region.call.__code__
_is_capturing: Callable[[], bool] = getattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)


class ActiveRegion:
    """`regions` gives all that are known. While one is active, no region is released: one may be capturing."""

    def __init__(self, context: RegionContext, regions: Callable[[], list[Region]]) -> None:
        self._context = context
        self._regions = regions
        self.outside: Recorder | None = None
        """Where operators outside every region are recorded while a cell is observed."""
        self._running: list[Region] = []
        self.counts: dict[int, int] | None = None
        """How often the active one called each candidate; None where none of those may become active."""
        self._dead: list[Region] = []
        context.let_inner_in = self.open

    @property
    def free(self) -> bool:
        """True where a candidate that is called now may become a region. While one runs, none may."""
        return not self._context.predictor.paused

    @free.setter
    def free(self, free: bool) -> None:
        self._context.predictor.paused = not free

    def open(self) -> None:
        """Let the candidates inside the running one become active."""
        self.free = True

    def repeats(self, candidate: object, wrapper: types.CodeType | None) -> bool:
        """Does `candidate` become active, because the callable that is holds the whole loop?

        A function that is called for the first time may be a step, or everything; what it has called `LOOPS` times is
        taken to be the step.
        """
        if self.counts is None or (wrapper is not None and inside_module(wrapper, 1)):
            return False
        if in_loop():  # one that the device can run as a whole, with the callable around it
            return False
        times = self.counts[id(candidate)] = self.counts.get(id(candidate), 0) + 1
        if times < LOOPS or not self._running:
            return False
        self.counts = None
        self._running[-1].observer.gave_up = True
        self.free = True
        return True

    def closed(self, body: Callable[[], T]) -> T:
        """Run `body`, in which nothing becomes a region unless `open` is called."""
        self.free = False
        try:
            return body()
        finally:
            self.free = True
            if self._dead:
                self._release_dead()

    def enter(self, region: Region, args: Args, kwargs: Kwargs, since: int | None = None) -> object:
        """Make the region active, and call it. `since`: when the call came to Grape, by the account's clock."""
        context = self._context
        attention = context.attention
        observing = context.observing
        busy.now = True  # until the person's code goes on, and while that is not called
        try:
            if observing:
                if attention.overdrawn and not region.needs_another_graph():
                    context.stand_aside()
                attention.begin("observe", since)
            return self._enter(region, args, kwargs)
        finally:
            busy.now = False
            if observing:
                attention.end()

    def _enter(self, region: Region, args: Args, kwargs: Kwargs) -> object:
        context, predictor = self._context, self._context.predictor
        tracer = context.tracer
        if is_transformed() or (context.backend.kind == "cuda" and _is_capturing()):
            return self.closed(lambda: region.function(*args, **kwargs))
        if tracer.recorder is not None or EffectWatch.is_at_work():  # of a call that holds more than was to be recorded
            self.record_no_more()
        if self.outside is not None and self.outside.overflowed:
            self.outside = None
        stepped_off = tracer.on_stack and tracer.retire()
        if self._running and region.parent is None and self._running[-1] is not region:
            region.parent = self._running[-1].name
        self._running.append(region)
        counts, self.counts = self.counts, None
        if region.calls == 0 and not region.root_is_module and context.observing:
            self.counts = {}
        try:
            if region.checked:
                return self.closed(lambda: region.call(args, kwargs, aside=True))
            if region.yields_to_inner() or (region.observer.gave_up and self._lost(region)):
                return region.call(args, kwargs, aside=True)
            predictor.paused = True  # as in `closed`, but for calls of Python
            try:
                return region.call(args, kwargs)
            finally:
                predictor.paused = False
                if self._dead:
                    self._release_dead()
        finally:
            self._running.pop()
            self.counts = counts
            if self.outside is not None and context.observing and not context.comparing and tracer.recorder is None:
                if stepped_off:
                    tracer.enter()
                self._resume()

    def record_no_more(self) -> None:
        """The call that is recorded, if one is, goes on by itself: what is left of it is the person's."""
        self._context.tracer.mute()
        EffectWatch.stop()
        self._context.attention.hand_back("record")

    def mute(self, quiet: bool) -> None:
        """Let nothing be recorded outside of regions, while whole iterations of a loop are timed."""
        tracer = self._context.tracer
        if quiet and tracer.recorder is not None and tracer.recorder is self.outside:
            tracer.mute()
            EffectWatch.stop()
        elif not quiet and self._context.observing and tracer.recorder is None and self.outside is not None:
            tracer.rejoin()
            self._resume()

    def _lost(self, region: Region) -> bool:
        """True where `region`, which gave up, made way for a callable inside it, and that one replays now, or would if
        there were memory; or may yet, at a cell's first call where the last cell called it once: it holds their loop.
        Called again it may be a step itself.
        """
        inside = [inner for inner in self._regions() if inner.parent == region.name]
        once = region.called_once and not region.calls_in_run
        return any(
            inner.entries or inner.over_budget_at is not None or (once and inner.calls and inner.refused is None)
            for inner in inside
        )

    def _resume(self) -> None:
        tracer = self._context.tracer
        if self.outside is not None and not self.outside.overflowed and tracer.on_stack:
            tracer.listen(self.outside)

    def release_later(self, region: Region) -> None:
        """Its module was deleted. A capture may run just now, which no graph may be released in."""
        self._dead.append(region)
        if self.free:
            self._release_dead()

    def _release_dead(self) -> None:
        free, self.free = self.free, False  # one that dies meanwhile waits its turn
        try:
            while self._dead:
                self._dead.pop().release()
        finally:
            self.free = free

    def undisturbed(self, body: Callable[[], T]) -> T:
        """Run `body` while no region is released because its module died: it looks through what regions hold."""
        free, self.free = self.free, False
        try:
            return body()
        finally:
            self.free = free
            if free and self._dead:
                self._release_dead()


def inside_module(wrapper: types.CodeType, skip: int = 0) -> bool:
    """True where a module that was not taken as a region is running: its parts are no regions either.

    That happens when a callable around it turns out not to be capturable in the middle of its trace.
    `wrapper` is the code that stands for `nn.Module.__call__`; `skip` frames lie between it and this.
    """
    frame: types.FrameType | None = sys._getframe(2 + skip)
    while frame is not None and frame.f_code is not _REGION_CALL:
        if frame.f_code is wrapper:
            return True
        frame = frame.f_back
    return False
