"""How a call of a shape that has graphs is served by one of them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from time import perf_counter_ns

import torch

from ...model import Decision, Measured, Reason, Refused
from ...profiling import CallTimer
from ..alias import MIN_BYTES, ROUNDS
from ..replaying.entry import BLOCKED, MISMATCH, NO_EXECUTABLE, OTHER_MODES, Entry, NoReplay
from ..replaying.node_numbers import instead_of
from .call_profiles import CallProfiles
from .captures import MAX_ENTRIES, Captures
from .region_state import RegionState
from .specialization import Specialization

STRAYS = 3
"""After so many copies out of one slot into another, a graph is captured that reads the arguments where they are."""
RECHECK = 64
WEIGHED_AT = (16, 48)
"""After so many replays a graph is compared with eager calls; the rest when the cell is over."""
FEWEST = 8
"""So many timed replays are compared, at least."""


class Replays:
    """Of one region. `was_eager`: the region's last call ran as written."""

    def __init__(self, region: RegionState, captures: Captures, profiles: CallProfiles) -> None:
        self._region, self._captures, self._profiles = region, captures, profiles
        self.was_eager = False
        self._rounds = 0

    def serve(
        self,
        shape: Specialization,
        leaves: Sequence[torch.Tensor],
        containers: Sequence[object],
        timer: CallTimer | None,
        again: bool,
    ) -> object:
        """The result of the best of the shape's graphs; MISMATCH or BLOCKED if none can serve the call.

        `again`: the last call had the same shape. A recurrence needs two graphs that read what the other wrote.
        """
        region, context = self._region, self._region.context
        outcome: object = MISMATCH
        ranked = [(entry.needing_copies(leaves), entry) for entry in shape.entries]
        if len(ranked) > 1:
            ranked.sort(key=lambda pair: len(pair[0]))
        if context.store.side_streams:
            context.store.wait()
        for _, entry in ranked:
            if entry.placeholders.bound:
                self._captures.unbound.update(entry.moved(leaves))
        to_copy, predictor = ranked[0][0], context.predictor
        if predictor.waits_for(region):
            self._rounds += predictor.learned(region, leaves, ranked[0][1], to_copy)
            predictor.arrived(region, leaves)
        settled = not to_copy or not again or shape.strays < STRAYS or len(ranked) >= MAX_ENTRIES
        if not settled:
            if self._in_slots(leaves, to_copy):
                return BLOCKED
            if not self.was_eager:  # else nothing could lie in a slot
                shape.strays = -RECHECK
        for to_copy, entry in ranked:
            served = self._serve(shape, entry, leaves, containers, timer, to_copy)
            if served is BLOCKED:
                outcome = BLOCKED
            elif served is NO_EXECUTABLE:
                self._captures.without_executable(shape, entry)
                if region.refused is not None:
                    return NO_EXECUTABLE
                outcome = NO_EXECUTABLE if outcome is MISMATCH else outcome
            elif served is OTHER_MODES:
                return OTHER_MODES
            elif served is not MISMATCH:
                if to_copy and entry.predictable:
                    self._after_copies(shape, leaves, to_copy, again)
                return served
        if outcome is BLOCKED:
            region.replay_counts.blocked += 1
            region.blocked_at = region.calls
        return outcome

    def _after_copies(
        self, shape: Specialization, leaves: Sequence[torch.Tensor], to_copy: Sequence[int], again: bool
    ) -> None:
        """Arguments were copied: see to it that they need not be."""
        region = self._region
        shape.strays += again and shape.strays < STRAYS
        if self._rounds >= ROUNDS or not region.context.observing or region.replays < 2:
            return
        if any(leaves[i].nbytes >= MIN_BYTES for i in to_copy):
            region.context.predictor.learn(region)

    def wants_another(
        self, outcome: object, shape: Specialization, leaves: Sequence[torch.Tensor], again: bool
    ) -> bool:
        """No graph of the shape could serve the call, for `outcome`: whether another one would serve later calls.

        Where every graph was blocked, one that writes elsewhere may: a recurrence needs two, and so does what the
        person keeps. Where this call's arguments stand in the way of a shape that comes once a run (two graphs of a
        growing cache that were captured in different runs), the second time tells that they always will.
        """
        if outcome is not BLOCKED:
            return outcome is not NO_EXECUTABLE
        shape.blocked += 1
        return again or shape.blocked > 1 or self._held_elsewhere(shape, leaves)

    def _held_elsewhere(self, shape: Specialization, leaves: Sequence[torch.Tensor]) -> bool:
        """True if what blocks every graph of the shape is kept for other purposes than to be this call's argument."""
        given = {leaf.untyped_storage()._cdata for leaf in leaves}
        blockers = [entry.blocker for entry in shape.entries if entry.blocker is not None and entry.blocker.occupied]
        return bool(blockers) and all(slot.cdata not in given for slot in blockers)

    def _in_slots(self, leaves: Sequence[torch.Tensor], indices: Sequence[int]) -> bool:
        """True where one of these arguments is a result that lies where an earlier replay put it."""
        occupants = self._region.context.store.occupants()
        return any(leaves[i].untyped_storage()._cdata in occupants for i in indices)

    def _serve(
        self,
        shape: Specialization,
        entry: Entry,
        leaves: Sequence[torch.Tensor],
        containers: Sequence[object],
        timer: CallTimer | None,
        to_copy: Sequence[int],
    ) -> object:
        region, context = self._region, self._region.context
        observing = context.observing
        profile = observing and self._profiles.profile_replay_now(shape)
        attention = context.attention
        if observing:
            attention.begin(None)  # a replay is no more Grape's own time than the call is that it stands for
        began = perf_counter_ns()
        try:
            if profile or entry.nodes:
                outcome = self._watched(entry, leaves, containers, to_copy, profile=profile)
            else:
                outcome = entry.serve(leaves, containers, to_copy)
        except torch.OutOfMemoryError:
            if entry.acted:  # what the replay changed, an eager call would change once more
                raise
            outcome = MISMATCH
        finally:
            took = perf_counter_ns() - began
            if observing:
                attention.end()
        if type(outcome) is NoReplay:
            attention.book("observe", took)
            return outcome
        region.replays += 1
        self.was_eager = False
        shape.tally.replayed(took, began - region.call_began_ns, profiled=profile)
        if timer is not None and not profile and not shape.after.full:
            timer.stop()
            shape.after.add(timer)
        if observing and entry.replays in WEIGHED_AT and context.backend.kind == "cuda":
            self._weigh(shape, entry, leave=2)
        return outcome

    def _watched(
        self,
        entry: Entry,
        leaves: Sequence[torch.Tensor],
        containers: Sequence[object],
        to_copy: Sequence[int],
        *,
        profile: bool,
    ) -> object:
        """The outcome of a replay that is profiled, or takes numbers of autograd's nodes as the eager call does."""
        with self._profiles.replayed() if profile else contextlib.nullcontext():
            if not entry.nodes:
                return entry.serve(leaves, containers, to_copy)
            with instead_of(entry.nodes) as numbers:
                outcome = entry.serve(leaves, containers, to_copy)
                if type(outcome) is NoReplay:
                    numbers.nodes = 0
                return outcome

    def weigh_all(self) -> None:
        """The observed cell is over: shapes that were replayed too seldom to be weighed before are weighed now."""
        for shape in list(self._region.shapes.values()):
            if shape.entries and len(shape.after) >= FEWEST and self._region.refused is None:
                self._weigh(shape, shape.entries[-1], leave=0)

    def lost(self, replays: int, took_ms: float, eager_ms: float) -> None:
        """In the cell as a whole the replays took longer than the same calls as written: the graphs go (GR406)."""
        region = self._region
        if region.refused is None:
            now_ms, then_ms = f"{took_ms / replays:.3g}", f"{eager_ms / replays:.3g}"
            slower = Refused.because(Reason.REPLAYS_SLOWER, region.at, replays=replays, now=now_ms, then=then_ms)
            region.refuse(slower)

    def _weigh(self, shape: Specialization, entry: Entry, leave: int) -> None:
        """Drop a graph that turned out not to be faster (GR406). `leave`: so many replays may still be under way."""
        region = self._region
        before, after = Measured.of(shape.before.warm_ms()), Measured.of(shape.after.ms(leave=leave))
        if before is None or after is None or before.n < 5 or not before.clearly_below(after):
            return
        if not region.context.weighs:
            return
        now, then = f"{after.median_ms:.3g}", f"{before.median_ms:.3g}"
        refused = Refused.because(Reason.GRAPH_SLOWER, region.at, now=now, then=then)
        self._captures.decisions.append(
            Decision(
                action="drop",
                shapes=entry.shapes,
                seen=shape.seen,
                expected_calls=float(shape.seen),
                saving_ms=before.median_ms - after.median_ms,
                capture_ms=entry.capture_ms,
                why=refused.why,
            )
        )
        region.refuse(refused)
