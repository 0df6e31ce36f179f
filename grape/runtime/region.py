"""One region: a callable that is called repeatedly, observed, captured where that pays, and replayed.

States follow from what is known: calls are traced (twice), profiled (twice), then timed until the policy expects a
capture to pay; a captured shape is replayed from then on. A refusal ends it: the callable runs as it would without
Grape.
"""

from __future__ import annotations

import contextlib
import statistics
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..model import (
    Decision,
    Measured,
    OpRecord,
    Position,
    Refused,
    RegionEvidence,
    ScalarChange,
    Timeline,
    Trace,
)
from ..profiling import TimelineRecorder, place_nodes
from ..tracing import LIMIT, Recorder, Tracer, record
from .alias import MIN_BYTES, ROUNDS, Predictor
from .backends.protocol import Backend, CallTimer
from .capture import Request, capture_call, judge
from .effects import EffectWatch, effect_of
from .entry import BLOCKED, MISMATCH, OTHER_MODES, Entry
from .environment import environment, quick_modes
from .guards import GuardSet, TooLarge
from .ledger import Ledger
from .lifetimes import Lifetimes
from .policy import Estimate, capture_cost, decide
from .probe import compile_probe
from .prologue import refuse_read, slice_of
from .region_evidence import evidence_of
from .samples import CallTimes
from .shape import Shape
from .slots import SlotStore
from .structure import Layout, Unsupported, first_difference, flatten

__all__ = ["Region", "Situation"]

TRACED = 2
PROFILED = 1
INTERLEAVE = 4
"""Once a graph replays, every so many calls one runs eagerly until there are `WANTED` times of both."""
WANTED = 20
FEW = 5
AUDIT_BY = 160
PROFILE_AFTER_S = 1.0
"""A profiled call costs about 30 ms, and CUPTI slows the launches after it: nothing for a cell that is soon over."""
VARIANTS = 8
MAX_ENTRIES = 4
MAX_CAPTURES = 8
"""So often a shape is captured; a value that the host reads and that is another one at each call ends there."""
MIN_OPERATORS = 3
STRAYS = 3
"""After so many copies out of one slot into another, a graph is captured that reads the arguments where they are."""
RECHECK = 64
UNSETTLED = 4
"""So often a shape is captured whose kernels do not repeat themselves, until a replay gives what an eager run gave."""
TAPE_LIMIT_MS = 3000.0
"""The tape shows what a GPU would do; so much time for captures is enough for that."""
NO_WORK = "it issues next to no device work"


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
        self.gave_up = False
        self.root_is_module = isinstance(root, torch.nn.Module)
        self.parent: str | None = None
        self.refused: Refused | None = None
        self.calls = 0
        self.replays = 0
        self.shapes: dict[Any, Shape] = {}
        self.traces: list[Trace] = []
        self.scalar_changes: list[ScalarChange] = []
        self.decisions: list[Decision] = []
        self.captures_ms: list[float] = []
        self.verified: set[str] = set()
        self._writes: set[str] = set()
        self._failures = 0
        self._profiled = 0
        self._profiled_after = 0
        self._before = TimelineRecorder(situation.backend.device)
        self._after = TimelineRecorder(situation.backend.device)
        self._eager_s = 0.0
        self._busy_ms: float | None = None
        self._addresses: dict[str, tuple[int, int]] = {}
        self._plain: set[Any] = set()
        self._unbound: set[str] = set()
        """Arguments that were bound to an address at which they did not stay."""
        self.host_ms: list[float] = []
        self._last: Shape | None = None
        self._last_layout: tuple[Any, list[str]] | None = None
        self._start_of_run = (0, 0)
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
        self._pace = (time.perf_counter(), 0)

    @property
    def root(self) -> Any:
        """Where the guards start; None for a module that was deleted."""
        return self._root() if self._root is not None else self._function_root

    def begin_run(self) -> None:
        """Count calls and replays from here: a new cell runs."""
        self._start_of_run = (self.calls, self.replays)
        self.ledger = Ledger(copy_ns=self.ledger.copy_ns)
        for entry in self.entries:
            entry.ledger = self.ledger

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
                    return self._serve_unknown(args, kwargs, timer)
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

    def _modes(self) -> tuple[Any, ...]:
        return environment(self.situation.backend.device, int(self.situation.tracer.on_stack))

    def _serve_unknown(self, args: tuple[Any, ...], kwargs: dict[str, Any], timer: Any) -> Any:
        try:
            layout = flatten((args, kwargs), "args")
        except Unsupported as unsupported:
            self.refuse(Refused(code="GR405", why=str(unsupported), at=self.at))
            return self._pass(args, kwargs)
        modes = self._modes()
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
                elif result is not MISMATCH and result is not OTHER_MODES:
                    if shape.probe is not None:
                        shape.probe.tensors.add(layout.leaves)
                    return result
        if not self.situation.observing:
            return self.function(*args, **kwargs)
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
            return self.function(*args, **kwargs)
        return self._observe(shape, flatten((args, kwargs), "args"), args, kwargs, may_capture)

    def _pass(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        start = time.perf_counter()
        result = self.function(*args, **kwargs)
        if len(self.host_ms) < 256:
            self.host_ms.append((time.perf_counter() - start) * 1e3)
        return result

    def _count(self, shape: Shape) -> None:
        shape.calls += 1
        if not self.situation.observing:
            return
        if shape.run != self.situation.run:
            shape.run = self.situation.run
            shape.seen = 0
        shape.seen += 1
        shape.runs.add(shape.run)

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
            self._unbound.update(entry.moved(leaves))
        astray, predictor = ranked[0][0], self.situation.predictor
        if predictor.waits_for(self):
            self._rounds += predictor.learned(self, leaves, ranked[0][1], astray)
            predictor.arrived(self, leaves)
        settled = not again or shape.strays < STRAYS or not astray or len(ranked) >= MAX_ENTRIES
        if not settled:
            if self._in_slots(leaves, astray):
                return BLOCKED
            shape.strays = -RECHECK
        for astray, entry in ranked:
            served = self._serve(shape, entry, leaves, containers, timer, astray)
            if served is BLOCKED:
                outcome = BLOCKED
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
        if self._busy_ms is None or self.calls <= calls:
            return False
        interval_ms = (time.perf_counter() - since) * 1e3 / (self.calls - calls)
        self._pace = (time.perf_counter(), self.calls)
        return self._busy_ms > 0.7 * interval_ms

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
        profile = (
            situation.observing and situation.profile and self._profiled_after < PROFILED and len(shape.after) >= 3
        )
        if profile:
            self._profiled_after += 1
            self._after.start()
        try:
            outcome = entry.serve(leaves, containers, astray)
        except torch.OutOfMemoryError:
            if entry.acted:  # what the replay changed, an eager call would change once more
                raise
            outcome = MISMATCH
        finally:
            if profile:
                self._after.stop()
        if outcome is MISMATCH or outcome is BLOCKED or outcome is OTHER_MODES:
            return outcome
        self.replays += 1
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
        self.decisions.append(
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
        self._note_addresses(layout)
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
        if self._trace_now(shape, may_capture):
            self.situation.progress(f"observing {self.name}")
            result = self._trace(shape, layout, args, kwargs)
        elif self._profile_now(shape, may_capture):
            result = self._profile(args, kwargs)
        elif may_capture and self.situation.apply and not shape.closed and self._pays(shape):
            result = self._capture(shape, layout, args, kwargs)
        else:
            timer = self.situation.backend.timer()  # what observation costs is not the person's time
            timer.start()
            began = time.perf_counter()
            result = self.function(*args, **kwargs)
            self._eager_s += time.perf_counter() - began
            timer.stop()
            if not shape.before.full:
                shape.before.add(timer)
        return result

    def _trace(self, shape: Shape, layout: Layout, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        backend = self.situation.backend
        watch = EffectWatch(self.situation.tracer.positions)

        def body() -> Any:
            with watch:
                return self.function(*args, **kwargs)

        guards: GuardSet | None = None
        try:
            guards = GuardSet(self.root)
        except TooLarge as error:
            self.refuse(Refused(code="GR405", why=str(error), at=self.at))
        result, call, escapes = record(
            self.situation.tracer, backend.device, layout.leaves, body, on_wait=self._on_wait
        )
        if self.gave_up and not self.traces and self.calls == 1:
            return result  # a callable inside took over; this trace tells nothing
        self.traces.append(call.trace)
        if len(call.trace.ops) >= LIMIT:
            why = f"it issues {LIMIT:,} operators or more in one call: too many for one graph"
            self.refuse(Refused(code="GR405", why=why, at=self.at))
        work = sum(op.kind not in ("view", "host") for op in call.trace.ops)
        if self.refused is None and work < MIN_OPERATORS:
            self.refuse(self._no_work(call.trace))
        if self.refused is None:
            prologue = judge(call, layout.leaves, escapes, backend)
            if isinstance(prologue, Refused):
                self.refuse(prologue)
        if self.refused is None:
            effect = effect_of(watch)
            if effect is not None:
                self.refuse(effect)
        if self.refused is None and guards is not None and not guards.holds():
            changed = guards.difference()
            self.refuse(Refused(code="GR404", why=f"the call changes {changed}, which a replay would not", at=self.at))
        if self.refused is None:
            self._audit(shape, call.trace)
        return result

    def give_up(self) -> None:
        """Let a callable inside take over for the rest of this call."""
        self.gave_up = True

    def _no_work(self, trace: Trace) -> Refused:
        if self.situation.backend.kind == "cuda" and sum(op.kind == "host" for op in trace.ops) >= MIN_OPERATORS:
            why = "its tensors are in CPU memory: move the model and its inputs to the GPU, .to('cuda')"
            return Refused(code="GR405", why=why, at=self.at)
        return Refused(code="GR406", why=NO_WORK, at=self.at)

    def _on_wait(self, recorder: Recorder, op: OpRecord) -> None:
        """The host waits in a traced call. If the value does not follow from the inputs, others may have the floor."""
        if self.refused is not None:
            return
        if op.kind == "dynamic":
            why = f"the shape of {op.name}'s result depends on data"
            self.refuse(Refused(code="GR103", why=why, at=op.user or op.inner))
        elif op.kind == "transfer-out" or slice_of(recorder.ops, op.ordinal, recorder.born) is None:
            self.refuse(refuse_read(recorder.last_read, op))

    def _audit(self, shape: Shape, trace: Trace) -> None:
        """Two calls under one key must issue the same operators with the same scalars."""
        for earlier in shape.traces:
            if [r.value for r in earlier.host_reads] != [r.value for r in trace.host_reads]:
                continue
            difference = earlier.first_difference(trace)
            if difference is not None:
                self.refuse(self._explain(*difference))
                return
        if len(shape.traces) < 2:
            shape.traces.append(trace)

    def _explain(self, one: OpRecord | None, other: OpRecord | None) -> Refused:
        here = other or one
        at = (here.user or here.inner) if here is not None else self.at
        if one is not None and other is not None and one.name == other.name and one.scalars() != other.scalars():
            pairs = zip(one.scalars(), other.scalars(), strict=False)
            values = next((pair for pair in pairs if pair[0] != pair[1]), (None, None))
            self.scalar_changes.append(ScalarChange(operator=one.name, values=values, at=at))
            why = f"a Python value that reaches {one.name} changes from call to call"
            return Refused(code="GR403", why=why, at=at)
        names = f"{one.name if one else 'nothing'} and {other.name if other else 'nothing'}"
        return Refused(code="GR404", why=f"equal calls ran different operators ({names}): hidden state decides", at=at)

    def _trace_now(self, shape: Shape, may_capture: bool) -> bool:
        """Trace two calls. The first call of a module is often another one than the rest (a prompt), and is let be."""
        if self.root_is_module and self.calls == 1:
            return False
        if not self.traces:
            return True
        if len(self.traces) >= TRACED or (may_capture and shape.run > 1 and self._pays(shape)):
            return False  # a capture traces its eager run itself
        return not self.root_is_module or shape.calls > 1 or self.calls > AUDIT_BY

    def _profile_now(self, shape: Shape, may_capture: bool) -> bool:
        """Profile before the first capture, or once enough calls were timed: CUPTI slows what is launched after it."""
        if not self.situation.profile or self._profiled >= PROFILED:
            return False
        timed = sum(len(s.before) for s in self.shapes.values())
        if not self.situation.apply:
            return timed >= FEW
        if self._eager_s > PROFILE_AFTER_S:
            return True
        # Shapes that recur from cell to cell are not spent on a profile; the first capture times a replay instead.
        return timed >= FEW and shape.seen >= FEW and may_capture and not shape.closed and self._pays(shape)

    def _profile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._profiled += 1
        self._before.start()
        try:
            return self.function(*args, **kwargs)
        finally:
            self._before.stop()

    def _note_addresses(self, layout: Layout) -> None:
        """How often in a row each argument has lain at the same address."""
        for path, leaf in zip(layout.paths, layout.leaves, strict=True):
            address, times = self._addresses.get(path, (0, 0))
            here = leaf.data_ptr()
            self._addresses[path] = (here, times + 1 if here == address and here else 1)

    # -- deciding and capturing --------------------------------------------------------------------------------------

    def _pays(self, shape: Shape) -> bool:
        if shape.seen + len(shape.runs) < 3:
            return False
        times = shape.before.ms(leave=2) or CallTimes.joined(s.before for s in self.shapes.values() if len(s.before))
        if sum(len(s.before) for s in self.shapes.values()) < FEW:
            return False
        if self.situation.backend.kind == "cuda" and self._busy_ms is None and self._profiled:
            timeline = self.timeline_before()
            self._busy_ms = timeline.gpu_busy_ns / 1e6 / timeline.calls if timeline else None
        if self.situation.backend.kind == "tape" and sum(self.captures_ms) > TAPE_LIMIT_MS:
            return False
        estimate = Estimate(
            shapes=", ".join(str(size) for _, size in shape.shapes[:4]),
            eager_ms=statistics.median(times),
            busy_ms=self._busy_ms if self._profiled or self._busy_ms is not None else 0.0,
            capture_ms=self._capture_ms(),
            seen=shape.seen,
            earlier_runs=len(shape.runs) - 1,
        )
        decision = decide(estimate)
        if decision.action == "capture" and self._budget_spent():
            why = f"the graphs hold {self._held() / 2**20:.0f} MB, the memory budget"
            decision = replace(decision, action="wait", why=why)
        shape.decision = decision
        return decision.action == "capture"

    def _held(self) -> int:
        """Bytes of executables and placeholders."""
        return sum(entry.nbytes for entry in self.entries) + self.situation.store.nbytes

    def _budget_spent(self) -> bool:
        budget = self.situation.memory_budget
        return budget is not None and self._held() >= budget

    def _capture_ms(self) -> float:
        """What a capture costs: measured, else foreseen. The tape gains nothing on a device, so it captures at once."""
        if self.situation.backend.kind == "tape":
            return 0.0
        if self.captures_ms:
            return statistics.median(self.captures_ms)
        return capture_cost(len(self.traces[-1].ops) if self.traces else 0)

    def _capture(self, shape: Shape, layout: Layout, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        situation = self.situation
        if situation.backend.kind == "cuda" and situation.stream is None:
            situation.stream = shape.modes[-1]
        situation.progress(f"capturing {self.name}")
        existing = next((e.guards for s in self.shapes.values() for e in s.entries if e.guards.holds()), None)
        request = Request(
            function=self.function,
            root=self.root,
            backend=situation.backend,
            tracer=situation.tracer,
            bound=[
                i
                for i, (path, leaf) in enumerate(zip(layout.paths, layout.leaves, strict=True))
                if self._addresses[path][1] >= 3
                and path not in self._unbound
                and leaf.device.type == situation.backend.device.type
            ],
            store=situation.store,
            owner=self.owner,
            in_place=self.lifetimes.passing(),
            plain=self._plain,
            next=shape.successor.entries if shape.successor not in (None, shape) else (),
            writes=frozenset(self._writes),
            tolerance=situation.tolerance,
            guards=existing,
        )
        captured = capture_call(request, layout, args, kwargs)
        outcome = captured.outcome
        if isinstance(outcome, Entry):
            if not shape.entries:  # else what the guards found changed explains another trace
                self._audit(shape, captured.trace)
            if self.refused is None:
                self._adopt(shape, layout, outcome)
            else:
                outcome.release()
            return captured.result
        if outcome.code == "retry" and not (set(outcome.evidence) <= self._writes and captured.plain <= self._plain):
            self._writes.update(outcome.evidence)
            self._plain.update(captured.plain)
            return captured.result
        if outcome.code == "unsettled":
            shape.unsettled += 1
            if shape.unsettled < UNSETTLED:
                return captured.result
            outcome = replace(outcome, code="GR405")
        self._audit(shape, captured.trace)
        self._failures += 1
        shape.closed = True
        if self.refused is None and (self._failures >= 2 or not self.replays):
            if outcome.code == "GR403":
                evidence = dict(outcome.evidence)
                self.scalar_changes.append(
                    ScalarChange(operator=evidence["operator"], values=(evidence["values"],), at=outcome.at)
                )
            self.refuse(outcome)
        return captured.result

    def _adopt(self, shape: Shape, layout: Layout, entry: Entry) -> None:
        if shape.decision is not None:
            self.decisions.append(shape.decision)
        self.captures_ms.append(entry.capture_ms)
        if self._busy_ms is None and self.situation.backend.kind == "cuda":
            self._busy_ms = entry.replay_ms
        shape.captures += 1
        shape.closed = shape.captures >= MAX_CAPTURES
        self.verified.add(entry.verified)
        entry.ledger = self.ledger
        entry.modes, entry.modes_now = shape.modes, self._modes
        if len(shape.entries) >= MAX_ENTRIES:
            shape.entries.pop(0).release()
        shape.entries.append(entry)
        exact = any(one.needs_aliasing for one in shape.entries)
        shape.probe = compile_probe(layout, aliasing=exact)

    def refuse(self, refused: Refused) -> None:
        """Leave the region eager from now on, and let callables inside it become regions."""
        self.refused = refused
        self.release()
        if refused.code in ("GR101", "GR102", "GR103", "GR302", "GR404", "GR405"):
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

    # -- the report --------------------------------------------------------------------------------------------------

    def timeline_before(self) -> Timeline | None:
        if self.traces:
            self._before.follow(self.traces[-1])
        return self._before.timeline() if self._profiled else None

    def timeline_after(self) -> Timeline | None:
        before, after = self.timeline_before(), self._after.timeline() if self._profiled_after else None
        return place_nodes(before, after) if before and after else after

    def evidence(self) -> RegionEvidence:
        """All that is known, as frozen data."""
        return evidence_of(self)


def _shapes_of(layout: Layout) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((path, tuple(leaf.shape)) for path, leaf in zip(layout.paths, layout.leaves, strict=True))
