"""One region: a callable that is called repeatedly, observed, captured where that pays, and replayed.

States follow from what is known: calls are traced (twice), profiled (twice), then timed until the policy expects a
capture to pay; a captured shape is replayed from then on. A refusal ends it: the callable runs as it would without
Grape.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..model import (
    Decision,
    Measured,
    Position,
    Refused,
    RegionEvidence,
)
from ..tracing import Tracer
from .alias import MIN_BYTES, ROUNDS, Predictor
from .backends.protocol import Backend, CallTimer
from .captures import MAX_ENTRIES, Captures
from .compression import ExecutableStore
from .entry import BLOCKED, MISMATCH, NO_EXECUTABLE, OTHER_MODES, Entry
from .environment import environment, quick_modes
from .ledger import Ledger
from .lifetimes import Lifetimes
from .memory import give_way, run_eagerly
from .observer import Observer
from .region_evidence import evidence_of
from .samples import CallTimes
from .shape import Shape
from .slots import SlotStore
from .structure import Layout, Unsupported, first_difference, flatten
from .training import seal_all

__all__ = ["Region", "Situation"]

INTERLEAVE = 4
"""Once a graph replays, every so many calls one runs eagerly until there are `WANTED` times of both."""
WANTED = 20
VARIANTS = 8
STRAYS = 3
"""After so many copies out of one slot into another, a graph is captured that reads the arguments where they are."""
RECHECK = 64


@dataclass(slots=True)
class Situation:
    """What the regions of one process share. `observing` is set while a cell runs under Grape.

    `run` numbers the cells; `open_floor` is called when the region being traced turns out not to be capturable, so
    that callables inside it may become regions.
    """

    backend: Backend
    tracer: Tracer
    store: SlotStore
    predictor: Predictor
    observing: bool = False
    apply: bool = True
    profile: bool = True
    tolerance: float = 0.0
    memory_budget: int | None = None
    run: int = 0
    stream: int | None = None
    """The stream of the first capture. Graphs share memory without events between them, so all run on this one."""
    open_floor: Callable[[], None] = lambda: None
    progress: Callable[[str], None] = lambda text: None
    exhausted: bool = False
    """The person's code ran out of memory: nothing is captured any more."""
    executables: ExecutableStore | None = None
    """Of all regions; None where each graph keeps an executable of its own."""
    regions: weakref.WeakSet[Region] = field(default_factory=weakref.WeakSet)

    def __post_init__(self) -> None:
        if self.executables is None and self.backend.updatable:
            self.executables = ExecutableStore()


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
        self.root_is_module = isinstance(root, torch.nn.Module)
        self.parent: str | None = None
        self.refused: Refused | None = None
        self.starved_at: int | None = None
        """The memory budget that was too small for this region; 0: the device had no room."""
        self.calls = 0
        self.replays = 0
        self.wasted = 0
        """Replays of an iteration, in this cell, that were issued after their loop had been left."""
        self.shapes: dict[Any, Shape] = {}
        self.host_ms: list[float] = []
        self._last: Shape | None = None
        self._last_layout: tuple[Any, list[str]] | None = None
        self._start_of_run = (0, 0)
        self.observer = Observer(self)
        self.captures = Captures(self)
        self.owner = object()
        """Stands for this region among the owners of slots."""
        self.ledger = Ledger()
        self.lifetimes = Lifetimes()
        self.origins: dict[str, Position] = {}
        """Where arguments that had to be copied were made, by path."""
        self.learned_paths: set[str] = set()
        self.small_paths: set[str] = set()
        """Copied arguments whose makers were looked for, and those too small for a prediction."""
        self._rounds = 0
        self._was_eager = False
        self._pace = (time.perf_counter(), 0)
        situation.regions.add(self)

    @property
    def root(self) -> Any:
        """Where the guards start; None for a module that was deleted."""
        return self._root() if self._root is not None else self._function_root

    def begin_run(self) -> None:
        """Count calls and replays from here: a new cell runs."""
        self._start_of_run = (self.calls, self.replays)
        budget = self.situation.memory_budget
        more = self.starved_at is not None and (budget is None or budget > self.starved_at)
        if more and not self.situation.exhausted:
            self.refused = self.starved_at = None
        for shape in self.shapes.values():
            if shape.starved_at is not None and (budget is None or budget > shape.starved_at):
                shape.starved_at, shape.closed = None, False
        self.wasted = 0
        self.ledger = Ledger(copy_ns=self.ledger.copy_ns)
        for entry in self.entries:
            entry.ledger = self.ledger
        for shape in self.shapes.values():
            shape.after = CallTimes()  # of this cell; eager times of earlier ones go on counting

    @property
    def calls_in_run(self) -> int:
        return self.calls - self._start_of_run[0]

    @property
    def replays_in_run(self) -> int:
        return self.replays - self._start_of_run[1]

    # -- the call ----------------------------------------------------------------------------------------------------

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Serve one call: by a replay where one is possible, else as the person wrote it."""
        self.calls += 1
        situation = self.situation
        if self.refused is not None:
            return self._pass(args, kwargs)
        last = self._last
        timer: CallTimer | None = None
        if situation.observing and not (last is not None and last.after.full):
            timer = situation.backend.timer()
            timer.start()
        known = self._recognize(args, kwargs)
        if known is not None:
            shape, leaves, containers = known
            self._count(shape)
            if not self._interleave(shape):
                again = last is shape
                result = self._replay(shape, leaves, containers, timer, again)
                if result is BLOCKED:
                    may_capture = again or self._held_elsewhere(shape, leaves)
                    return self._serve_eagerly(args, kwargs, shape, may_capture=may_capture)
                if result is OTHER_MODES:
                    self._uncount(shape)
                    return self._serve_unknown(args, kwargs, timer)
                if result is NO_EXECUTABLE:
                    return self._serve_eagerly(args, kwargs, shape, may_capture=False)
                if result is not MISMATCH:
                    return result
                return self._serve_eagerly(args, kwargs, shape, may_capture=True)
            return self._serve_eagerly(args, kwargs, shape, may_capture=False)
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
            if shape is None or shape.probe is None or not shape.entries or shape.modes[:3] != modes:
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
            self.refuse(Refused(code="GR405", why=str(unsupported), at=self.at))
            return self._pass(args, kwargs)
        modes = self.modes()
        if not self.on_its_stream():
            return self.function(*args, **kwargs)
        key = (layout.key, modes)
        shape = self.shapes.get(key)
        if shape is None:
            shape = self.shapes[key] = Shape(_shapes_of(layout), self.calls - 1, modes)
            changing = self._changing_value(shape, layout)
            if changing is not None:
                why = f"`{changing}` is no tensor and another one at each call"
                self.refuse(Refused(code="GR403", why=why, at=self.at))
                return self._pass(args, kwargs)
        last = self._last
        if last is not None:
            last.successor = shape
        self._last = shape
        self._count(shape)
        may_capture = True
        if shape.entries and self.situation.apply:
            if self._interleave(shape):
                may_capture = False
            else:
                result = self._replay(shape, layout.leaves, layout.containers, timer, last is shape)
                if result is BLOCKED:
                    may_capture = last is shape or self._held_elsewhere(shape, layout.leaves)
                elif result is NO_EXECUTABLE:
                    may_capture = False
                elif result is not MISMATCH and result is not OTHER_MODES:
                    if shape.probe is not None:
                        shape.probe.tensors.add(layout.leaves)
                    return result
        if not self.situation.observing:
            return self._eagerly(shape, args, kwargs)
        return self._observe(shape, layout, args, kwargs, may_capture)

    def _changing_value(self, shape: Shape, layout: Layout) -> str | None:
        """The path of a plain argument that has had a new value at every call, after `VARIANTS` of them."""
        last, self._last_layout = self._last_layout, (layout.root, layout.paths)
        variants = [s for s in self.shapes.values() if s.shapes == shape.shapes] if len(self.shapes) >= VARIANTS else []
        if len(variants) < VARIANTS or any(s.calls > 1 for s in variants) or last is None:
            return None
        return first_difference(last[0], layout.root)

    def _serve_eagerly(self, args: tuple[Any, ...], kwargs: dict[str, Any], shape: Shape, *, may_capture: bool) -> Any:
        if not self.situation.observing:
            return self._eagerly(shape, args, kwargs)
        return self._observe(shape, flatten((args, kwargs), "args"), args, kwargs, may_capture)

    def _pass(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        start = time.perf_counter()
        result = run_eagerly(self, args, kwargs, repeatable=lambda: False)
        if len(self.host_ms) < 256:
            self.host_ms.append((time.perf_counter() - start) * 1e3)
        return result

    def _eagerly(self, shape: Shape, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The person's code; a captured shape was run twice before, without effects but its results."""
        return run_eagerly(self, args, kwargs, repeatable=lambda: any(one.repeatable() for one in shape.entries))

    def _count(self, shape: Shape) -> None:
        shape.calls += 1
        if not self.situation.observing:
            return
        if shape.run != self.situation.run:
            shape.run = self.situation.run
            shape.seen = 0
        shape.seen += 1
        shape.runs.add(shape.run)

    def _uncount(self, shape: Shape) -> None:
        """The call only looked as if it had this shape."""
        shape.calls -= 1
        if self.situation.observing:
            shape.seen -= 1

    def _interleave(self, shape: Shape) -> bool:
        """Is it this call's turn to run eagerly, for the sake of the comparison?"""
        if not self.situation.observing or shape.calls % INTERLEAVE or len(shape.before) >= WANTED:
            return False
        before = [s for s in self.shapes.values() if s.entries]
        return sum(len(s.before) for s in before) < WANTED

    def _replay(
        self, shape: Shape, leaves: Sequence[torch.Tensor], containers: Sequence[Any], timer: Any, again: bool
    ) -> Any:
        """What the best of the shape's graphs returns; MISMATCH or BLOCKED if none can serve the call.

        `again`: the last call had the same shape. A recurrence needs two graphs that read what the other wrote.
        """
        outcome: Any = MISMATCH
        ranked = [(entry.astray(leaves), entry) for entry in shape.entries]
        if len(ranked) > 1:
            ranked.sort(key=lambda pair: len(pair[0]))
        if self.situation.store.side_streams:
            self.situation.store.wait()
        for _, entry in ranked:
            self.captures.unbound.update(entry.moved(leaves))
        astray, predictor = ranked[0][0], self.situation.predictor
        if predictor.waits_for(self):
            self._rounds += predictor.learned(self, leaves, ranked[0][1], astray)
            predictor.arrived(self, leaves)
        settled = not again or shape.strays < STRAYS or not astray or len(ranked) >= MAX_ENTRIES
        if not settled:
            if self._in_slots(leaves, astray):
                return BLOCKED
            if not self._was_eager:  # else nothing could lie in a slot
                shape.strays = -RECHECK
        for astray, entry in ranked:
            served = self._serve(shape, entry, leaves, containers, timer, astray)
            if served is BLOCKED:
                outcome = BLOCKED
            elif served is NO_EXECUTABLE:
                self.captures.without_executable(shape, entry)
                if self.refused is not None:
                    return NO_EXECUTABLE
                outcome = NO_EXECUTABLE if outcome is MISMATCH else outcome
            elif served is OTHER_MODES:
                return OTHER_MODES
            elif served is not MISMATCH:
                if astray:
                    self._after_copies(shape, leaves, astray, again)
                return served
        if outcome is BLOCKED:
            self.ledger.blocked += 1
        return outcome

    def _after_copies(self, shape: Shape, leaves: Sequence[torch.Tensor], astray: Sequence[int], again: bool) -> None:
        """Arguments were copied: see to it that they need not be."""
        shape.strays += again and shape.strays < STRAYS
        if self._rounds >= ROUNDS or not self.situation.observing or self.replays < 2:
            return
        if any(leaves[i].nbytes >= MIN_BYTES for i in astray):
            self.situation.predictor.learn(self)

    def _held_elsewhere(self, shape: Shape, leaves: Sequence[torch.Tensor]) -> bool:
        """Whether what blocks every graph of the shape is kept for other purposes than to be this call's argument."""
        given = {leaf.untyped_storage()._cdata for leaf in leaves}
        blockers = [entry.blocker for entry in shape.entries if entry.blocker is not None and entry.blocker.occupied]
        return bool(blockers) and all(slot.cdata not in given for slot in blockers)

    @property
    def expected(self) -> Sequence[Entry]:
        """The graphs that are likely to serve the next call."""
        last = self._last
        shape = (last.successor or last) if last is not None else None
        return shape.entries if shape is not None else ()

    @property
    def copy_ns(self) -> float:
        """What it costs the host to copy one argument into its placeholder, in nanoseconds."""
        return self.ledger.copy_ns

    @property
    def device_bound(self) -> bool:
        """Whether the device works most of the time between two calls."""
        since, calls = self._pace
        if self.captures.busy_ms is None or self.calls <= calls:
            return False
        interval_ms = (time.perf_counter() - since) * 1e3 / (self.calls - calls)
        self._pace = (time.perf_counter(), self.calls)
        return self.captures.busy_ms > 0.7 * interval_ms

    def on_its_stream(self) -> bool:
        """Whether work that is enqueued now is ordered with the region's replays."""
        situation = self.situation
        if situation.stream is None:
            return True
        index = situation.backend.device.index or 0
        return torch._C._cuda_getCurrentRawStream(index) == situation.stream

    def _in_slots(self, leaves: Sequence[torch.Tensor], indices: Sequence[int]) -> bool:
        """Whether one of these arguments is a result that lies where an earlier replay put it."""
        occupants = self.situation.store.occupants()
        return any(leaves[i].untyped_storage()._cdata in occupants for i in indices)

    def _serve(
        self,
        shape: Shape,
        entry: Entry,
        leaves: Sequence[torch.Tensor],
        containers: Sequence[Any],
        timer: Any,
        astray: Sequence[int],
    ) -> Any:
        situation = self.situation
        profile = self.observer.profile_replay_now(shape)
        try:
            with self.observer.replayed() if profile else contextlib.nullcontext():
                outcome = entry.serve(leaves, containers, astray)
        except torch.OutOfMemoryError:
            if entry.acted:  # what the replay changed, an eager call would change once more
                raise
            outcome = MISMATCH
        if outcome is MISMATCH or outcome is BLOCKED or outcome is OTHER_MODES or outcome is NO_EXECUTABLE:
            return outcome
        self.replays += 1
        self._was_eager = False
        if timer is not None and not profile and not shape.after.full:
            timer.stop()
            shape.after.add(timer)
        if situation.observing and entry.replays == 48 and situation.backend.kind == "cuda":
            self._weigh(shape, entry)
        return outcome

    def _weigh(self, shape: Shape, entry: Entry) -> None:
        """Drop a graph that turned out not to be faster (GR406)."""
        before, after = Measured.of(shape.before.ms()), Measured.of(shape.after.ms(leave=2))
        if before is None or after is None or before.n < 5 or not before.clearly_below(after):
            return
        why = f"the graph took {after.median_ms:.3g} ms a call, eager {before.median_ms:.3g} ms; left eager"
        self.captures.decisions.append(
            Decision(
                action="drop",
                shapes=entry.shapes,
                seen=shape.seen,
                expected_calls=float(shape.seen),
                saving_ms=before.median_ms - after.median_ms,
                capture_ms=entry.capture_ms,
                why=why,
            )
        )
        self.refuse(Refused(code="GR406", why=why, at=self.at))

    # -- observation -------------------------------------------------------------------------------------------------

    def _observe(
        self,
        shape: Shape,
        layout: Layout,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        may_capture: bool,
    ) -> Any:
        self._was_eager = True
        self.captures.note_addresses(layout)
        self.situation.predictor.passed(self)
        if not self.lifetimes.enough:
            self.lifetimes.arrive(self.calls, layout.leaves)
            result = self._watched(shape, layout, args, kwargs, may_capture)
            self._note_results(result, args, kwargs)
            return result
        return self._watched(shape, layout, args, kwargs, may_capture)

    def _note_results(self, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with contextlib.suppress(Unsupported):
            self.lifetimes.leave(self.calls, flatten((result, args, kwargs), "result"))

    def _watched(
        self, shape: Shape, layout: Layout, args: tuple[Any, ...], kwargs: dict[str, Any], may_capture: bool
    ) -> Any:
        """Run one call eagerly, in the way that tells most."""
        if self.observer.trace_now(shape, may_capture):
            self.situation.progress(f"observing {self.name}")
            result = self._or_give_way(lambda: self.observer.trace(shape, layout, args, kwargs))
        elif self.observer.profile_now(shape, may_capture):
            result = self._or_give_way(lambda: self.observer.profile(args, kwargs))
        elif may_capture and self.situation.apply and not shape.closed and self.captures.pays(shape):
            result = self._or_give_way(lambda: self.captures.capture(shape, layout, args, kwargs))
        else:
            timer = self.situation.backend.timer()  # what observation costs is not the person's time
            timer.start()
            began = time.perf_counter()
            result = self._eagerly(shape, args, kwargs)
            self.observer.eager_s += time.perf_counter() - began
            timer.stop()
            if not shape.before.full:
                shape.before.add(timer)
        if self.refused is None and self.observer.trains:
            seal_all(result)
        return result

    def _or_give_way(self, call: Callable[[], Any]) -> Any:
        """An eager call that is watched. Out of memory is the person's error, but graphs are not its cause twice."""
        try:
            return call()
        except torch.OutOfMemoryError:
            give_way(self.situation)
            raise

    def refuse(self, refused: Refused) -> None:
        """Leave the region eager from now on, and let callables inside it become regions."""
        self.refused = refused
        self.release()
        if refused.code in ("GR101", "GR102", "GR103", "GR302", "GR403", "GR404", "GR405"):
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

    @property
    def entries(self) -> list[Entry]:
        return [entry for shape in self.shapes.values() for entry in shape.entries]

    def evidence(self) -> RegionEvidence:
        """All that is known, as frozen data."""
        return evidence_of(self)


def _shapes_of(layout: Layout) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((path, tuple(leaf.shape)) for path, leaf in zip(layout.paths, layout.leaves, strict=True))
