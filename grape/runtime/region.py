"""One region: a callable that is called repeatedly, observed, captured where that pays, and replayed.

States follow from what is known: calls are traced (twice), profiled (twice), then timed until the policy expects a
capture to pay; a captured shape is replayed from then on. A refusal ends it: the callable runs as it would without
Grape.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..model import FEWEST_SAMPLES, Position, Reason, Refused, RegionEvidence
from ..tracing import person_runs
from .backends.protocol import CallTimer
from .captures import Captures
from .eager import EagerCalls
from .entry import BLOCKED, MISMATCH, NO_EXECUTABLE, OTHER_MODES, Entry
from .environment import environment, quick_modes
from .ledger import Ledger
from .lifetimes import Lifetimes
from .memory import name_budget
from .observer import Observer
from .region_evidence import evidence_of
from .replays import Replays
from .samples import CallTimes
from .shape import Shape
from .shapes import Shapes
from .situation import Situation
from .structure import Unsupported, flatten
from .tally import Tally
from .training import need_gradients
from .training.pair_entry import PairEntry

__all__ = ["Region", "Situation"]

INTERLEAVE = 4
"""Once a graph replays, every so many calls one runs eagerly until there are `FEWEST_SAMPLES` times of both."""


class Region:
    """See the module. `function` runs the person's code; `root` is where the guards start."""

    def __init__(
        self,
        situation: Situation,
        function: Callable[..., Any],
        root: Any,
        name: str,
        at: Position,
        end_line: int | None = None,
    ) -> None:
        self.situation = situation
        self.function = function
        # A module is the person's, and its graphs die with it; a function that was taken over is held here.
        self._root = weakref.ref(root) if isinstance(root, torch.nn.Module) else None
        self._function_root = None if self._root else root
        self.name = name
        self.at = at
        self.end_line = end_line
        self.called_in = situation.run
        """The run in which `at` is: of a module, where it is called first."""
        self.loop_line: int | None = None
        """Where it is a part of a loop's body: the line of the loop."""
        self.root_is_module = isinstance(root, torch.nn.Module)
        self.parent: str | None = None
        self.refused: Refused | None = None
        self.of_gradients: Refused | None = None
        """Why calls that record gradients stay eager, where others are tried."""
        self.gave_way_in_run = False
        """True where a call of this cell stayed eager for that."""
        self.checked = False
        """A graph of it gave the same bits and serves nobody: where nothing gets faster, that is all there is."""
        self.starved_at: int | None = None
        """The memory budget that was too small for this region; 0: the device had no room."""
        self.starved_beside = 0
        """Bytes of placeholders and workspace, of all graphs, beside which no executable of it had room."""
        self.calls = 0
        self.replays = 0
        self.call_began_ns = 0
        self.called_once = False
        """True where the last cell that called it did so once."""
        self.unserved = 0
        """Calls of shapes that had no graph."""
        self.wasted = 0
        """Replays of an iteration, in this cell, that were issued after their loop had been left."""
        self.shapes = Shapes()
        self.host_ms: list[float] = []
        self._last: Shape | None = None
        self._start_of_run = (0, 0)
        self._settled_calls = 0
        self.observer = Observer(self)
        self.captures = Captures(self)
        self.serving = Replays(self)
        self.eager = EagerCalls(self)
        self.owner = object()
        """Stands for this region among the owners of slots."""
        self.ledger = Ledger()
        self.lifetimes = Lifetimes()
        self.origins: dict[str, Position] = {}
        """Where arguments that had to be copied were made, by path."""
        self.learned_paths: set[str] = set()
        self.small_paths: set[str] = set()
        """Copied arguments whose makers were looked for, and those too small for a prediction."""
        self._pace = (time.perf_counter(), 0)
        situation.regions.add(self)

    @property
    def root(self) -> Any:
        """Where the guards start; None for a module that was deleted."""
        return self._root() if self._root is not None else self._function_root

    @property
    def may_pair(self) -> bool:
        """True where a pair of graphs may serve calls whose results carry an autograd graph: those of a module."""
        situation = self.situation
        return situation.pairs and self.root_is_module and situation.apply and situation.backend.autograd

    @property
    def paired(self) -> bool:
        """True where forward and backward replay as two graphs."""
        return any(isinstance(entry, PairEntry) for entry in self.entries)

    @property
    def unused_gradients(self) -> Refused | None:
        """Its results carried autograd graphs that nobody has gone through: what no call is captured for."""
        current = [shape for shape in self.shapes.values() if shape.run == self.situation.run]
        served = any(shape.entries or shape.backwards.known for shape in current)
        if served or not any(shape.backwards.unused for shape in current):
            return None
        return need_gradients(at=self.at)

    def called_from(self, at: Position) -> None:
        """The first call of the run that goes on comes from here: what is told of the region names this place."""
        if self.refused is not None and self.refused.at == self.at:
            self.refused = replace(self.refused, at=at)
        self.called_in, self.at = self.situation.run, at

    def end_run(self) -> None:
        """A cell has ended: nothing of its calls is held."""
        self.shapes.end_run()
        for shape in self.shapes.values():
            shape.tally = Tally()
        self._settled_calls = self.calls

    @property
    def is_idle(self) -> bool:
        """True where nothing has called it since the last cell ended."""
        return self.calls == self._settled_calls

    def begin_run(self) -> None:
        """Count calls and replays from here: a new cell runs."""
        self.called_once = self.calls_in_run == 1 or (self.called_once and not self.calls_in_run)
        self._start_of_run = (self.calls, self.replays)
        self.lifetimes.begin_run()
        budget = self.situation.memory_budget
        more = self.starved_at is not None and (budget is None or budget > self.starved_at)
        if more and not self.situation.exhausted:
            self.refused = self.starved_at = None
        elif not more:
            name_budget(self)
        for shape in self.shapes.values():
            if shape.starved_at is not None and (budget is None or budget > shape.starved_at):
                shape.starved_at, shape.closed = None, False
        self.wasted = 0
        self.gave_way_in_run = False
        self.ledger = Ledger(copy_ns=self.ledger.copy_ns)
        for entry in self.entries:
            entry.ledger = self.ledger
            entry.guards.begin_run()
        for shape in self.shapes.values():
            shape.after = CallTimes()  # of this cell; eager times of earlier ones go on counting
            shape.tally = Tally()
        self.host_ms.clear()
        self.captures.decisions.clear()
        self.observer.begin_run()

    @property
    def calls_in_run(self) -> int:
        return self.calls - self._start_of_run[0]

    @property
    def replays_in_run(self) -> int:
        return self.replays - self._start_of_run[1]

    def gives_way(self) -> bool:
        """True where the call that comes now is to run as written, and callables inside have the floor.

        Who was told that the results need gradients, and puts `torch.no_grad()` around the call, has another call.
        """
        refused = self.refused
        if refused is None and self.of_gradients is None:
            return False
        with_gradients = torch.is_grad_enabled()
        tried = self.situation.observing and not with_gradients
        if tried and refused is not None and refused.recording:
            self.refused, self.of_gradients = None, refused
        return self.refused is not None or with_gradients

    # -- the call ----------------------------------------------------------------------------------------------------

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, aside: bool = False) -> Any:
        """Serve one call: by a replay where one is possible, else as the person wrote it. `aside`: callables inside
        have the floor, so the call tells nothing of this region.
        """
        self.calls += 1
        self.call_began_ns = time.perf_counter_ns()
        situation = self.situation
        if aside or self.gives_way():
            self.gave_way_in_run |= self.of_gradients is not None and torch.is_grad_enabled()
            return self.eager.passed(args, kwargs)
        situation.entered += 1
        last = self._last
        timer: CallTimer | None = None
        if situation.observing and not (last is not None and last.after.full):
            timer = situation.backend.timer()
            timer.start()
        known = self._recognize(args, kwargs)
        if known is not None:
            shape, leaves, containers = known
            shape.count(self.situation.run if self.situation.observing else None)
            if not self._interleave(shape):
                again = last is shape
                result = self.serving.serve(shape, leaves, containers, timer, again)
                if result is BLOCKED:
                    may_capture = self.serving.wants_another(shape, leaves, again)
                    return self._serve_eagerly(args, kwargs, shape, timer, may_capture=may_capture)
                if result is OTHER_MODES:
                    shape.uncount(observing=self.situation.observing)
                    return self._serve_unknown(args, kwargs, timer)
                if result is NO_EXECUTABLE:
                    return self._serve_eagerly(args, kwargs, shape, timer, may_capture=False)
                if result is not MISMATCH:
                    return result
                return self._serve_eagerly(args, kwargs, shape, timer, may_capture=True)
            return self._serve_eagerly(args, kwargs, shape, timer, may_capture=False)
        return self._serve_unknown(args, kwargs, timer)

    def _recognize(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Shape, list[torch.Tensor], list[Any]] | None:
        """The captured shape of this call, found by the probe of the shape that came next last time, or came last."""
        last = self._last
        if last is None or not self.situation.apply:
            return None
        root = (args, kwargs)
        if not self.on_its_stream():
            return None
        # The other modes are compared while the device already works; see `Entry.serve`.
        modes = quick_modes(self.situation.backend.device)
        for shape in (last.successor, last):
            if shape is None or shape.probe is None or not shape.entries or shape.modes[: len(modes)] != modes:
                continue
            try:
                found = shape.probe.check(root)
            except (AttributeError, KeyError, TypeError, ValueError, IndexError, RuntimeError):
                continue
            if found is not None:
                last.successor = self._last = shape
                return shape, found[0], found[1]
        return None

    def modes(self) -> tuple[Any, ...]:
        return environment(self.situation.backend.device, int(self.situation.tracer.on_stack))

    def _serve_unknown(self, args: tuple[Any, ...], kwargs: dict[str, Any], timer: Any) -> Any:
        try:
            layout = flatten((args, kwargs), "args")
        except Unsupported as unsupported:
            self.refuse(Refused.because(Reason.ARGUMENTS, self.at, what=unsupported))
            return self.eager.passed(args, kwargs)
        modes = self.modes()
        if not self.on_its_stream():
            with person_runs():
                return self.function(*args, **kwargs)
        shape = self.shapes.get((layout.key, modes))
        if shape is None:
            shape = self.shapes.note(layout, modes, self.calls - 1)
            if self.situation.recalled and shape.shapes in self.situation.recalled:
                shape.runs = shape.recalled = 1
            changing = self.shapes.changing_value(shape, layout)
            if changing is not None:
                self.refuse(Refused.because(Reason.ARGUMENT_CHANGES, self.at, argument=changing))
                return self.eager.passed(args, kwargs)
        last = self._last
        if last is not None:
            last.successor = shape
        self._last = shape
        shape.count(self.situation.run if self.situation.observing else None)
        may_capture = True
        self.unserved += not shape.entries
        if shape.entries and self.situation.apply:
            if self._interleave(shape):
                may_capture = False
            else:
                result = self.serving.serve(shape, layout.leaves, layout.containers, timer, last is shape)
                if result is BLOCKED:
                    may_capture = self.serving.wants_another(shape, layout.leaves, last is shape)
                elif result is NO_EXECUTABLE:
                    may_capture = False
                elif result is not MISMATCH and result is not OTHER_MODES:
                    if shape.probe is not None:
                        shape.probe.tensors.add(layout.leaves)
                    return result
        if not self.situation.observing or self.situation.aside():
            return self.eager.plain(shape, args, kwargs)
        return self.eager.observe(shape, layout, args, kwargs, may_capture)

    def _serve_eagerly(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], shape: Shape, timer: Any, *, may_capture: bool
    ) -> Any:
        if not self.situation.observing or self.situation.aside():
            return self.eager.plain(shape, args, kwargs)
        layout = flatten((args, kwargs), "args")
        if self.shapes.get((layout.key, self.modes())) is not shape:
            # Arguments that share memory: a graph of others may serve them, but a graph of theirs not those others.
            shape.uncount(observing=True)
            return self._serve_unknown(args, kwargs, timer)
        return self.eager.observe(shape, layout, args, kwargs, may_capture)

    def _interleave(self, shape: Shape) -> bool:
        """Is it this call's turn to run eagerly, for the sake of the comparison?"""
        situation = self.situation
        if not situation.observing or situation.comparing:
            return False
        if shape.calls % INTERLEAVE or len(shape.before) >= FEWEST_SAMPLES:
            return False
        before = [s for s in self.shapes.values() if s.entries]
        return sum(len(s.before) for s in before) < FEWEST_SAMPLES

    @property
    def expected(self) -> Sequence[Entry]:
        """The graphs that are likely to serve the next call."""
        last = self._last
        shape = (last.successor or last) if last is not None else None
        return [entry for entry in shape.entries if entry.predictable] if shape is not None else ()

    @property
    def copy_ns(self) -> float:
        """Nanoseconds that it costs the host to copy one argument into its placeholder."""
        return self.ledger.copy_ns

    @property
    def device_bound(self) -> bool:
        """True where the device works most of the time between two calls."""
        since, calls = self._pace
        if self.captures.busy_ms is None or self.calls <= calls:
            return False
        interval_ms = (time.perf_counter() - since) * 1e3 / (self.calls - calls)
        self._pace = (time.perf_counter(), self.calls)
        return self.captures.busy_ms > 0.7 * interval_ms

    def on_its_stream(self) -> bool:
        """True where work that is enqueued now is ordered with the region's replays."""
        situation = self.situation
        if situation.stream is None:
            return True
        index = situation.backend.device.index or 0
        return torch._C._cuda_getCurrentRawStream(index) == situation.stream

    def refuse(self, refused: Refused) -> None:
        """Leave the region eager from now on, and let callables inside it become regions."""
        self.refused = refused
        self.release()
        if refused.recording and self.root_is_module:
            return  # nor would modules inside it, whose results lead to the same backward
        if refused.reason.opens:
            self.situation.open_floor()

    def release(self) -> None:
        """Give back every graph; the next calls run eagerly."""
        for shape in self.shapes.values():
            for entry in shape.entries:
                entry.release()
            shape.entries.clear()
            shape.captures, shape.closed = 0, False
        self.situation.store.drop(self.owner)
        self.situation.predictor.settle()

    def forget_shape(self, shape: Shape) -> None:
        """It is none of `shapes` any more: no other one leads to it."""
        for other in (*self.shapes.values(), self._last):
            if other is not None and other.successor is shape:
                other.successor = None
        if self._last is shape:
            self._last = None
        self.shapes.forget(shape)

    @property
    def entries(self) -> list[Entry]:
        return [entry for shape in self.shapes.values() for entry in shape.entries]

    def evidence(self) -> RegionEvidence:
        """All that is known, as frozen data."""
        return evidence_of(self)
