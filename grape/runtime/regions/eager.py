"""How a call runs as the person wrote it, and what is learned from it meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch

from ...model.call import Args, Kwargs
from ...originals import perf_counter
from ..accounts.memory import evict_all, run_eagerly
from ..dispatch.interrupts import handlers_held
from ..guarding.structure import Layout, Unsupported, flatten
from ..replaying.node_numbers import unnumbered
from ..training import seal_all
from .call_profiles import CallProfiles
from .captures import MAX_ENTRIES, Captures
from .observer import Observer
from .region_state import RegionState
from .replays import Replays
from .specialization import Specialization

UNUSED = 4
"""Where no gradient came for the results of so many calls, nobody wants any."""


class EagerCalls:
    """Of one region."""

    def __init__(
        self, region: RegionState, observer: Observer, profiles: CallProfiles, captures: Captures, serving: Replays
    ) -> None:
        self._region, self._observer, self._profiles = region, observer, profiles
        self._captures, self._serving = captures, serving

    def observe(self, shape: Specialization, layout: Layout, args: Args, kwargs: Kwargs, may_capture: bool) -> object:
        """Run one call of a cell that is observed. `may_capture`: a graph of this call could serve others."""
        region = self._region
        self._serving.was_eager = True
        self._captures.note_addresses(layout)
        region.context.predictor.passed(region)
        lifetimes = region.lifetimes
        if lifetimes.enough:
            return self._watched(shape, layout, args, kwargs, may_capture)
        lifetimes.arrive(region.calls, layout, region.context.store.sides(region.owner))
        result = self._watched(shape, layout, args, kwargs, may_capture)
        self._note_results(result, args, kwargs)
        return result

    def _note_results(self, result: object, args: Args, kwargs: Kwargs) -> None:
        region = self._region
        with contextlib.suppress(Unsupported):
            region.lifetimes.leave(region.calls, flatten((result, args, kwargs), "result"))

    def _watched(self, shape: Specialization, layout: Layout, args: Args, kwargs: Kwargs, may_capture: bool) -> object:
        """Run one call eagerly, in the way that tells most."""
        region = self._region
        tally, attention = shape.tally, region.context.attention
        spend = attention.spend
        if self._observer.trace_now(shape, may_capture):
            region.context.progress(f"observing {region.name}, call {region.calls:,}")
            with spend("record"), tally.tracing(attention, region.context.tracer, self._observer):
                result = self._or_give_way(lambda: self._observer.trace(shape, layout, args, kwargs))
        elif self._profiles.profile_now(shape, may_capture):
            tally.watched["record"] += 1
            with spend("record"):
                result = self._or_give_way(lambda: self._profiles.profile(shape, args, kwargs))
        elif may_capture and self._may_capture(shape) and self._captures.pays(shape):
            tally.watched["capture"] += 1
            with handlers_held(), spend("capture"):
                result = self._or_give_way(lambda: self._captures.capture(shape, layout, args, kwargs))
        else:
            timer = region.context.backend.timer()  # what observation costs is not the person's time
            timer.start()
            began = perf_counter()
            result = self.plain(shape, args, kwargs)
            self._profiles.eager_s += perf_counter() - began
            timer.stop()
            if not shape.before.full:
                shape.before.add(timer, cold=shape.calls == 1)
        if region.refused is None and self._observer.leaves_graph and torch.is_grad_enabled():
            with contextlib.suppress(Unsupported):
                shape.backwards.watch(flatten((result, args, kwargs), "result").leaves, layout.leaves)
        elif region.refused is None and self._observer.trains:
            with unnumbered(), torch._C.DisableTorchFunction():
                seal_all(result)
        return result

    def _may_capture(self, shape: Specialization) -> bool:
        """Where results carry an autograd graph, it must be known what gradients come for them, or that none do."""
        region = self._region
        if not region.context.apply or shape.closed:
            return False
        if len(shape.entries) >= MAX_ENTRIES and all(one.waiting for one in shape.entries):
            return False  # more forwards than that come before their backward
        if not self._observer.leaves_graph or not torch.is_grad_enabled() or shape.backwards.known:
            return True
        return shape.backwards.unused >= UNUSED

    def _or_give_way(self, call: Callable[[], object]) -> object:
        """An eager call that is watched. Out of memory is the person's error, but graphs are not its cause twice."""
        try:
            return call()
        except torch.OutOfMemoryError:
            evict_all(self._region.context)
            raise

    def plain(self, shape: Specialization, args: Args, kwargs: Kwargs) -> object:
        """The person's code; a captured shape was run twice before, without effects but its results."""
        entries = shape.entries
        return run_eagerly(self._region, args, kwargs, repeatable=lambda: any(one.repeatable() for one in entries))

    def passed(self, args: Args, kwargs: Kwargs) -> object:
        """The person's code, of a region that was refused. Calls in which Grape had work inside are not timed."""
        region = self._region
        context = region.context
        entered, start = context.entered, perf_counter()
        result = run_eagerly(region, args, kwargs, repeatable=lambda: False)
        if context.entered == entered and len(region.host_ms) < 256:
            region.host_ms.append((perf_counter() - start) * 1e3)
        return result
