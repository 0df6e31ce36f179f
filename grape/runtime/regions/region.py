"""One region: a callable that is called repeatedly, observed, captured where that pays, and replayed.

States follow from what is known: calls are traced (twice), profiled (twice), then timed until the policy expects a
capture to pay; a captured shape is replayed from then on. A refusal ends it: the callable runs as it would without
Grape.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

import torch

from ...model import FEWEST_SAMPLES, Position, Reason, Refused, RegionEvidence
from ...model.call import Args, Kwargs
from ...profiling import CallTimer
from ...tracing import person_runs
from ..accounts.memory import name_budget
from ..accounts.replay_counts import ReplayCounts
from ..accounts.samples import CallTimes
from ..accounts.tally import Tally
from ..guarding.environment import quick_modes
from ..guarding.structure import Layout, Unsupported, flatten
from ..replaying.entry import OTHER_MODES, NoReplay
from .call_profiles import CallProfiles
from .captures import Captures
from .context import RegionContext
from .eager import EagerCalls
from .observer import Observer
from .region_evidence import evidence_of
from .region_state import LATELY, RegionState
from .replays import Replays
from .specialization import Specialization
from .workless import reaches_no_tensor

INTERLEAVE = 4
"""Once a graph replays, every so many calls one runs eagerly until there are `FEWEST_SAMPLES` times of both."""


class Region(RegionState):
    """See the module."""

    def __init__(
        self,
        context: RegionContext,
        function: Callable[..., object],
        root: object,
        name: str,
        at: Position,
        end_line: int | None = None,
    ) -> None:
        super().__init__(context, function, root, name, at, end_line)
        self.observer = Observer(self, self._pays)
        self.profiles = CallProfiles(self, self.observer.traced, self._pays)
        self.captures = Captures(self, self.observer, self.profiles)
        self.serving = Replays(self, self.captures, self.profiles)
        self.eager = EagerCalls(self, self.observer, self.profiles, self.captures, self.serving)
        context.regions.add(self)

    def end_run(self) -> None:
        """A cell has ended: nothing of its calls is held."""
        self.shapes.end_run()
        for shape in self.shapes.values():
            shape.tally = Tally()
        self._settled_calls = self.calls

    def begin_run(self) -> None:
        """Count calls and replays from here: a new cell runs."""
        self.called_once = self.calls_in_run == 1 or (self.called_once and not self.calls_in_run)
        self._start_of_run = (self.calls, self.replays)
        self.lifetimes.begin_run()
        budget = self.context.memory_budget
        more = self.over_budget_at is not None and (budget is None or budget > self.over_budget_at)
        if more and not self.context.exhausted:
            self.refused = self.over_budget_at = None
        elif not more:
            name_budget(self)
        for shape in self.shapes.values():
            if shape.over_budget_at is not None and (budget is None or budget > shape.over_budget_at):
                shape.over_budget_at, shape.closed = None, False
        self.wasted = 0
        self.gave_way_in_run = False
        self.replay_counts = ReplayCounts(copy_ns=self.replay_counts.copy_ns)
        for entry in self.entries:
            entry.replay_counts = self.replay_counts
            entry.guards.begin_run()
        for shape in self.shapes.values():
            shape.after = CallTimes()  # of this cell; eager times of earlier ones go on counting
            shape.tally = Tally()
        self._looks = (0, 0)
        self.host_ms.clear()
        self.captures.decisions.clear()
        self.observer.begin_run()

    # -- the call ----------------------------------------------------------------------------------------------------

    def call(self, args: Args, kwargs: Kwargs, *, aside: bool = False) -> object:
        """Serve one call: by a replay where one is possible, else as the person wrote it. `aside`: callables inside
        are active, so the call tells nothing of this region.
        """
        self.calls += 1
        self.call_began_ns = perf_counter_ns()
        context = self.context
        observing = context.observing
        if aside or self.yields_to_inner():
            self.gave_way_in_run |= self.of_gradients is not None and torch.is_grad_enabled()
            return self.eager.passed(args, kwargs)
        context.entered += 1
        last = self._last
        timer: CallTimer | None = None
        if observing and not (last is not None and last.after.full):
            timer = context.backend.timer()
            timer.start()
        known = self._recognize(args, kwargs)
        if known is None:
            return self._serve_unknown(args, kwargs, timer)
        shape, leaves, containers = known
        shape.count(context.run if observing else None)
        if observing and self._interleave(shape):
            return self._serve_eagerly(args, kwargs, shape, timer, may_capture=False)
        again = last is shape
        result = self.serving.serve(shape, leaves, containers, timer, again)
        if result is OTHER_MODES:
            shape.uncount(observing=context.observing)
            return self._serve_unknown(args, kwargs, timer)
        if type(result) is not NoReplay:
            return result
        may_capture = self.serving.wants_another(result, shape, leaves, again)
        return self._serve_eagerly(args, kwargs, shape, timer, may_capture=may_capture)

    def _recognize(self, args: Args, kwargs: Kwargs) -> tuple[Specialization, list[torch.Tensor], list[object]] | None:
        """The captured shape of this call, found by the input guard of the shape that came next last time, or last."""
        last, context = self._last, self.context
        if last is None or not context.apply:
            return None
        root = (args, kwargs)
        if context.stream is not None and not self.on_its_stream():
            return None
        # The other modes are compared while the device already works; see `Entry.serve`.
        modes = quick_modes(context.backend.device)
        for shape in (last.successor, last):
            if shape is None or shape.input_guard is None or not shape.entries or shape.modes[: len(modes)] != modes:
                continue
            try:
                found = shape.input_guard.check(root)
            except (AttributeError, KeyError, TypeError, ValueError, IndexError, RuntimeError):
                continue
            if found is not None:
                last.successor = self._last = shape
                return shape, found[0], found[1]
        return None

    def _serve_unknown(self, args: Args, kwargs: Kwargs, timer: CallTimer | None) -> object:
        layout = self._layout(args, kwargs)
        if layout is None:
            return self.eager.passed(args, kwargs)
        modes = self.modes()
        if not self.on_its_stream():
            with person_runs():
                return self.function(*args, **kwargs)
        shape = self.shapes.get((layout.key, modes))
        if shape is None:
            shape = self.shapes.note(layout, modes, self.calls - 1)
            if self.context.recalled and shape.shapes in self.context.recalled:
                shape.runs = shape.recalled = 1
            changing = self.shapes.changing_value(shape, layout)
            if changing is not None:
                self.refuse(Refused.because(Reason.ARGUMENT_CHANGES, self.at, argument=changing))
                return self.eager.passed(args, kwargs)
        last = self._last
        if last is not None:
            last.successor = shape
        self._last = shape
        shape.count(self.context.run if self.context.observing else None)
        may_capture = True
        self.unserved += not shape.entries
        if shape.entries and self.context.apply:
            if self._interleave(shape):
                may_capture = False
            else:
                result = self.serving.serve(shape, layout.leaves, layout.containers, timer, last is shape)
                if type(result) is not NoReplay:
                    if shape.input_guard is not None:
                        shape.input_guard.tensors.add(layout.leaves)
                    return result
                may_capture = self.serving.wants_another(result, shape, layout.leaves, last is shape)
        if not self.context.observing or self.context.aside():
            return self.eager.plain(shape, args, kwargs)
        return self.eager.observe(shape, layout, args, kwargs, may_capture)

    def _layout(self, args: Args, kwargs: Kwargs) -> Layout | None:
        """None refuses the region; an error of Grape's has ended by then, or those of the person's would name it."""
        try:
            return flatten((args, kwargs), "args")
        except Unsupported as unsupported:
            if self.loop_line is None and reaches_no_tensor(self.root, args, kwargs):
                self.refuse(Refused.because(Reason.NO_WORK, self.at))
            else:
                self.refuse(Refused.because(Reason.ARGUMENTS, self.at, what=unsupported))
            return None

    def _serve_eagerly(
        self, args: Args, kwargs: Kwargs, shape: Specialization, timer: CallTimer | None, *, may_capture: bool
    ) -> object:
        if not self.context.observing or self.context.aside():
            return self.eager.plain(shape, args, kwargs)
        layout = flatten((args, kwargs), "args")
        if self.shapes.get((layout.key, self.modes())) is not shape:
            # Arguments that share memory: a graph of others may serve them, but a graph of theirs not those others.
            shape.uncount(observing=True)
            return self._serve_unknown(args, kwargs, timer)
        return self.eager.observe(shape, layout, args, kwargs, may_capture)

    def _interleave(self, shape: Specialization) -> bool:
        """Is it this call's turn to run eagerly, for the sake of the comparison?"""
        context = self.context
        if not context.observing or context.comparing:
            return False
        if shape.calls % INTERLEAVE or len(shape.before) >= FEWEST_SAMPLES:
            return False
        before = [s for s in self.shapes.values() if s.entries]
        return sum(len(s.before) for s in before) < FEWEST_SAMPLES

    def needs_another_graph(self) -> bool:
        """True where a graph more is worth a look at the next calls, whatever the cell has spent on looks: at the first
        ones of a run, which what the last run left may block, and behind one that was blocked.
        """
        last, costs = self._last, self.captures.costs
        lately = self.calls_in_run < LATELY or self.calls - self.blocked_at < LATELY
        if not lately or last is None or last.closed or not self.on_its_stream() or _is_capturing(self.context):
            return False
        captures = len(costs.durations_ms)
        looks = self._looks[1] if self._looks[0] == captures else 0
        self._looks = captures, looks + 1
        return looks < 2 * LATELY and costs.have_earned_another(last)

    def _pays(self, shape: Specialization) -> bool:
        return self.captures.pays(shape)

    def evidence(self) -> RegionEvidence:
        """All that is known, as frozen data."""
        return evidence_of(self, self.observer, self.profiles, self.captures)


def _is_capturing(context: RegionContext) -> bool:
    """True in a capture of the person's, in which times on the device must not be asked for."""
    return context.backend.kind == "cuda" and torch.cuda.is_current_stream_capturing()
