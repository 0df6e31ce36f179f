"""True where a capture of a region pays, and what becomes of one."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import replace

from ...model import Decision, Later, NoMemory, NoRoom, Reason, Refused, RetryLater, ScalarChange, Trace
from ...model.call import Args, Kwargs
from ...model.overlap import Overlapped
from ...model.sizes import size_text
from ...originals import perf_counter
from ..accounts import policy
from ..accounts.memory import apply_budget, beside, budget_without_room, enforce_budget, leave_eager, no_room
from ..accounts.policy import Estimate
from ..buffers.growable import is_supported
from ..capture import Request, capture_call
from ..compression import StoredGraph
from ..guarding.input_guard import compile_input_guard
from ..guarding.mentions import blamed
from ..guarding.structure import Layout, stateful
from ..replaying.entry import Entry, identities
from ..replaying.value_guards import refuse_read
from .call_profiles import CallProfiles
from .costs import Costs
from .observer import Observer
from .region_state import RegionState
from .specialization import Specialization

MAX_ENTRIES = 4
MAX_CAPTURES = 8
"""So often a shape is captured; a value that the host reads and that is another one at each call ends there."""
WORTH = 16
"""After so many replays of its last graph a shape may be captured as often again: a learning rate changes now and then.
"""
UNSETTLED = 4
"""So often a shape is captured whose kernels do not repeat themselves, until a replay gives what an eager run gave."""
ALIKE = 2
"""With so many graphs a new one is compared, to keep once what is equal: of a recurrence every other one is alike."""
TAPE_LIMIT_MS = 3000.0
"""The tape shows what a GPU would do; so much time for captures is enough for that."""


class Captures:
    """Of one region."""

    def __init__(self, region: RegionState, observer: Observer, profiles: CallProfiles) -> None:
        self._region, self._observer, self._profiles = region, observer, profiles
        self.decisions: list[Decision] = []
        self.costs = Costs(region, observer)
        self.verified: set[str] = set()
        self.unbound: set[str] = set()
        """Arguments that were bound to an address at which they did not stay."""
        self._writes: set[str] = set()
        self._plain: set[object] = set()
        self._faithful: set[object] = set()
        self._doubted: set[object] = set()
        self._overlaps = True
        self.overlapped: Overlapped | None = None
        """What branches gained in the last graph that had some."""
        self._failures = 0
        self._out_of_memory: Counter[int] = Counter()
        self._addresses: dict[str, tuple[int, int]] = {}

    def note_addresses(self, layout: Layout) -> None:
        """How often in a row each argument has lain at the same address."""
        for path, leaf in zip(layout.paths, layout.leaves, strict=True):
            address, times = self._addresses.get(path, (0, 0))
            here = leaf.data_ptr()
            self._addresses[path] = (here, times + 1 if here == address and here else 1)

    def pays(self, shape: Specialization) -> bool:
        context = self._region.context
        if shape.seen + shape.runs < 3:
            return False
        if context.memory_budget == 0:
            if not self._is_part_of_a_starved():
                leave_eager(self._region, Refused.because(Reason.NO_BUDGET), retry_above=0)
            return False
        if context.exhausted:
            if self._region.parent is None:
                leave_eager(self._region, Refused.because(Reason.EXHAUSTED), retry_above=0)
            return False
        if sum(len(s.before) for s in self._region.shapes.values()) < policy.FEW:
            return False
        if context.backend.kind == "cuda" and self._region.busy_ms is None and self._profiles.profiled:
            timeline = self._profiles.timeline_before()
            self._region.busy_ms = timeline.gpu_busy_ns / 1e6 / timeline.calls if timeline else None
        if context.backend.kind == "tape" and sum(self.costs.durations_ms) > TAPE_LIMIT_MS:
            return False
        estimate = Estimate(
            shapes=", ".join(map(str, shape.sizes[:4])),
            eager_ms=statistics.median(self.costs.eager_ms(shape)),
            busy_ms=self._region.busy_ms if self._profiles.profiled or self._region.busy_ms is not None else 0.0,
            capture_ms=self.costs.capture_ms(),
            seen=shape.seen,
            earlier_runs=shape.runs - 1,
        )
        decision = policy.decide(estimate)
        if decision.action == "capture" and self._budget_spent():
            why = f"the graphs hold {size_text(self._held())}, the memory budget"
            decision = replace(decision, action="wait", why=why)
        if decision.action == "capture" and not self.costs.has_room(shape, estimate.eager_ms):
            decision = replace(decision, action="wait", why="a capture would take more of this run than it may")
        shape.decision = decision
        return decision.action == "capture"

    def _is_part_of_a_starved(self) -> bool:
        """True where a region around this one tells of the want of memory already."""
        regions = {region.name: region for region in list(self._region.context.regions)}
        around = regions.get(self._region.parent or "")
        return around is not None and around.over_budget_at is not None

    def _held(self) -> int:
        """Bytes of executables, placeholders and pool, of all regions."""
        context = self._region.context
        entries = [entry for region in list(context.regions) for entry in region.entries]
        return sum(entry.nbytes for entry in entries) + beside(context)

    def _budget_spent(self) -> bool:
        """Where graphs share no executables, nothing can be evicted, and nothing more is captured."""
        context = self._region.context
        budget = context.memory_budget
        return context.executables is None and budget is not None and self._held() >= budget

    def capture(self, shape: Specialization, layout: Layout, args: Args, kwargs: Kwargs) -> object:
        context = self._region.context
        if context.backend.kind == "cuda" and context.stream is None:
            stream = shape.modes[-1]
            assert isinstance(stream, int)
            context.stream = stream
        context.captures += 1
        context.progress(f"capturing {self._region.name}, graph {len(self._region.entries) + 1:,}")
        reached = identities(stateful(layout))
        entries = self._region.entries
        guarded = {id(entry.guards): entry.guards for entry in entries if entry.reached == reached}
        lifetimes = self._region.lifetimes
        existing = next((guards for guards in guarded.values() if guards.holds()), None)
        request = Request(
            function=self._region.function,
            root=self._region.root,
            backend=context.backend,
            tracer=context.tracer,
            bound=[
                i
                for i, (path, leaf) in enumerate(zip(layout.paths, layout.leaves, strict=True))
                if self._addresses[path][1] >= 3
                and path not in self.unbound
                and leaf.device.type == context.backend.device.type
            ],
            store=context.store,
            executables=context.executables,
            owner=self._region.owner,
            in_place=lifetimes.passing() if is_supported() else frozenset(),
            plain=self._plain,
            landing={path: (of, lifetimes.sides[path]) for path, of in lifetimes.came_back.items()},
            next=shape.successor.entries if shape.successor not in (None, shape) else (),
            writes=frozenset(self._writes),
            tolerance=context.tolerance,
            guards=existing,
            backwards=shape.backwards if self._region.may_pair else None,
            paused=context.paused,
            attention=context.attention,
            overlaps=self._overlaps and context.overlaps,
            alike=entries[-ALIKE:],
        )
        apply_budget(context)
        context.store.wait()  # the capture fills placeholders, and its first replay writes results
        captured = capture_call(request, layout, args, kwargs)
        outcome = captured.outcome
        self._faithful |= captured.faithful
        later = outcome.later if isinstance(outcome, RetryLater) else None
        if later is Later.OVERLAP and self._overlaps:
            self._overlaps = False
            return captured.result
        if later in (Later.WRITES, Later.FORMS) and self._is_unlikely(shape, captured.plain):
            later = Later.UNSETTLED  # a kernel gave other bits, as some do now and then
        if isinstance(outcome, Entry):
            if outcome.overlapped is not None:
                self.overlapped = outcome.overlapped
            if not shape.entries:  # else what the guards found changed explains another trace
                self._observer.audit(shape, captured.trace, captured.found)
            self._observer.note(shape, captured.trace)
            if self._region.refused is None:
                self._adopt(shape, layout, outcome, captured.trace)
                enforce_budget(context)  # the pool may have grown
            else:
                outcome.release()
            return captured.result
        if isinstance(outcome, NoRoom):
            self._no_room(shape)
            return captured.result
        if isinstance(outcome, NoMemory):
            self._no_memory(shape, outcome.refused)
            return captured.result
        if isinstance(outcome, RetryLater):
            if later in (Later.WRITES, Later.FORMS):
                if not (self._writes.issuperset(outcome.names) and captured.plain <= self._plain):
                    self._writes.update(outcome.names)
                    self._plain.update(captured.plain)
                    return captured.result
            else:
                shape.unsettled += 1
                if later is Later.MOVED:  # the iteration copies from now on what it handed on before
                    for one in self._region.shapes.values():
                        one.traces.clear()
                if shape.unsettled < UNSETTLED:
                    return captured.result
            outcome = outcome.refused
        self._observer.audit(shape, captured.trace, captured.found)
        self._failures += 1
        shape.closed = True
        if self._region.refused is None and (self._failures >= 2 or not self._region.replays):
            evidence = dict(outcome.evidence) if outcome.code == "GR403" else {}
            if "operator" in evidence:
                self._observer.scalar_changes.append(
                    ScalarChange(operator=evidence["operator"], values=(evidence["values"],), at=outcome.at)
                )
            self._region.refuse(outcome)
        return captured.result

    def _is_unlikely(self, shape: Specialization, blamed: frozenset[object]) -> bool:
        """True if what a replay's difference is blamed on was right elsewhere or was not doubted before, and the shape
        has further tries."""
        first = not blamed <= self._doubted
        self._doubted |= blamed
        return bool(blamed) and (first or blamed <= self._faithful) and shape.unsettled < UNSETTLED - 1

    def without_executable(self, shape: Specialization, entry: Entry) -> None:
        """A graph could not be replayed for want of an executable: it goes, unless it only has to wait."""
        missing = entry.missing
        if missing is None or missing.waiting:
            return
        shape.entries.remove(entry)
        entry.release()
        if not missing.gone:
            self._no_room(shape)

    def _no_room(self, shape: Specialization) -> None:
        """Nothing more is captured for this shape; a region for which no shape has room stays eager."""
        refused = no_room(self._region.context)
        shape.closed = True
        shape.over_budget_at = budget_without_room(self._region.context)
        if shape.decision is not None:
            shape.decision = replace(shape.decision, action="wait", why=refused.why)
        store = self._region.context.executables
        if not self._region.entries or (store is not None and not store.fits(self._region.owner)):
            leave_eager(self._region, refused, retry_above=shape.over_budget_at)

    def _no_memory(self, shape: Specialization, refused: Refused) -> None:
        """A capture ran out of memory, which the next cell may find. The second time in a cell ends the region's."""
        run = self._region.context.run
        self._out_of_memory[run] += 1
        shape.closed, shape.over_budget_at = True, 0
        if shape.decision is not None:
            shape.decision = replace(shape.decision, action="wait", why=refused.why)
        if not self._region.entries or self._out_of_memory[run] >= 2:
            leave_eager(self._region, refused, retry_above=0)

    def _never_the_same(self, shape: Specialization, trace: Trace) -> Refused | None:
        """Why no graph of a shape served a call: what it depends on is another one each time. None where it is not."""
        region = self._region
        guards = next((entry.guards for entry in shape.entries if entry.guards.difference() is not None), None)
        read = next((read for read in trace.host_reads if read.ordinal >= 0), None)
        if guards is None:
            kept = region.replay_counts.blocked > 0  # the results of all calls, and a replay would overwrite them
            return refuse_read(read, trace.ops[read.ordinal]) if read is not None and not kept else None
        what = guards.difference() or "what the region reads"
        path, at = blamed(region.root, guards.culprits, region.at)
        return Refused.because(Reason.STATE_CHANGES, at, changed=what, by=f" (`{path}`)" if path else "")

    def _adopt(self, shape: Specialization, layout: Layout, entry: Entry, trace: Trace) -> None:
        if shape.decision is not None:
            self.decisions.append(shape.decision)
        self.costs.durations_ms.append(entry.capture_ms)
        if self._region.busy_ms is None and self._region.context.backend.kind == "cuda":
            self._region.busy_ms = entry.replay_ms
        if shape.entries and shape.entries[-1].replays >= WORTH:
            shape.captures = 0
        shape.captures, shape.unsettled = shape.captures + 1, 0
        shape.closed = shape.captures >= MAX_CAPTURES
        never = self._never_the_same(shape, trace) if shape.closed and not self._region.replays else None
        if never is not None:
            entry.release()
            self._region.refuse(never)
            return
        self.verified.add(entry.verified)
        if not self._region.context.serves:
            entry.release()
            shape.closed = self._region.checked = True
            return
        if self._region.context.observing:
            self._region.context.captured_at_s.append(perf_counter())
        entry.replay_counts = self._region.replay_counts
        if isinstance(entry.graph, StoredGraph):
            entry.graph.replayed_by = entry
            entry.graph.saving_ns = self.costs.saving_ns(shape, entry)
        entry.modes, entry.modes_now = shape.modes, self._region.modes
        for old in [one for one in shape.entries if one.outdated]:
            shape.entries.remove(old)
            old.release()
        if len(shape.entries) >= MAX_ENTRIES:
            shape.entries.pop(0).release()
        shape.entries.append(entry)
        shape.traces.clear()  # they were compared; of many shapes they would hold more memory than the records
        exact = any(one.needs_aliasing for one in shape.entries)
        shape.input_guard = compile_input_guard(layout, aliasing=exact)
