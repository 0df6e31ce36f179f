"""Learns from calls that run eagerly: traces, which are audited, and reasons to refuse."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch
from torch.utils._pytree import tree_leaves

from ...model import HOST_RANDOM, OpRecord, Position, Reason, Refused, ScalarChange, Trace
from ...model.call import Args, Kwargs
from ...model.times.cold import may_be_cold
from ...originals import perf_counter_ns
from ...tracing import LIMIT, ByIdentity, RecordedCall, Recorder, person_runs, record
from ..accounts.attention import TRACING
from ..capture import is_left_to_device, judge
from ..guarding.calls import EVENT_NS
from ..guarding.effects import SHOWN, EffectWatch, effect_of
from ..guarding.guards import GuardSet
from ..guarding.mentions import blamed
from ..guarding.parallel import refuse_parallel
from ..guarding.structure import Layout, Unsupported, flatten, stateful
from ..replaying.value_guards import refuse_read, slice_of
from ..state.names import TooLarge
from ..training import leaves_a_graph, with_graphs_of_results
from .region_state import RegionState
from .specialization import Found, Specialization
from .traced_calls import TracedCall

TRACED = 2
UNSTEADY = 2
"""In so many calls a region that trains may change its Python state: optimizers make theirs at the first step. In so
many a library may do what it does once."""
AUDIT_BY = 160
MIN_OPERATORS = 3
LEAST_MS, AT_ONCE_MS = 20.0, 60.0
"""Milliseconds that the tracer may take of a call, by its own clock, before that is recorded no further, and of what a
cell allows beside its share: what operators take to be recorded is known only then, and the first of a process take
long. What is left beyond that is the call's as well, `TRACING` times as long as that clock says."""
FEWEST = 1000
"""So many operators are traced of any call that is traced at all."""


def _tensors_in(after: tuple[object, Args, Kwargs]) -> list[torch.Tensor]:
    """The tensors that leave a call; what cannot be opened is refused by the capture."""
    try:
        return flatten(after, "result").leaves
    except Unsupported:
        with contextlib.suppress(RecursionError):
            return [leaf for leaf in tree_leaves(after[0]) if isinstance(leaf, torch.Tensor)]
        return []


class Observer:
    """Of one region. `traced` are a few of its calls; `pays` tells whether a capture of a shape would."""

    def __init__(self, region: RegionState, pays: Callable[[Specialization], bool]) -> None:
        self._region, self._pays = region, pays
        self.traced: list[TracedCall] = []
        self.scalar_changes: list[ScalarChange] = []
        self.leaves_graph = False
        """True where results of a traced call had an autograd graph, for which a pair of graphs may be captured."""
        self.new_tensors: tuple[str, ...] = ()
        """Where the region was refused for that alone: by which names its code reaches objects that hold other tensors
        after a call (``cache.layers[0]``)."""
        self.warns = False
        """True where it warned in a traced call."""
        self.gave_up = False
        """Set while a callable inside takes over for the rest of the region's first call."""
        self.afterwards_ms: list[float] = []
        """Times of calls of this cell that brought new shapes after looking on had an end, on the host's clock."""
        self.traced_afterwards: list[Trace] = []
        """Of them, those that were traced."""
        self.body_ns = (0, 0)
        """When the person's code began and ended in the last traced call."""
        self.watched_ns = 0
        """Nanoseconds that it took to see the calls in it."""
        self._unsteady = 0
        self._formed_anew = False
        self._again = False
        self.guards_ms: float | None = None
        """Milliseconds that it takes the host to see that nothing has changed."""

    @property
    def traces(self) -> list[Trace]:
        """Those of all cells."""
        return [call.trace for call in self.traced]

    def begin_run(self) -> None:
        """A cell begins: what changed in an earlier one is told no more, unless it is why the region is refused."""
        self.afterwards_ms.clear()
        self.traced_afterwards.clear()
        if self._region.refused is None:
            self.scalar_changes.clear()

    def note(self, shape: Specialization, trace: Trace) -> None:
        """`trace` is of a call of this cell, of which no other may be known."""
        if not self._known_here:
            self._keep(shape, trace)

    def _keep(self, shape: Specialization, trace: Trace) -> None:
        self.traced.append(TracedCall(trace=trace, shape=shape, cell=self._region.context.cell))
        elsewhere = [call for call in self.traced if call.cell != self._region.context.cell]
        for call in elsewhere[:-TRACED]:
            self.traced.remove(call)

    @property
    def _known_here(self) -> bool:
        """True where a trace tells of the cell that runs."""
        context = self._region.context
        return any(call.holds_in(context.cell, context.run) for call in self.traced)

    @property
    def trains(self) -> bool:
        """True where a traced call recorded gradients."""
        return any(trace.needs_grad for trace in self.traces)

    def trace(self, shape: Specialization, layout: Layout, args: Args, kwargs: Kwargs) -> object:
        backend = self._region.context.backend
        watch = EffectWatch(self._region.context.tracer.positions)
        watch.calls.ends_at_imports = self._unsteady < UNSTEADY  # the next call is traced as well, and loads nothing
        watch.calls.limit = self._region.context.attention.left_ms * 1e6 / EVENT_NS
        watch.calls.on_limit = self._stops_here

        def body() -> object:
            with watch, person_runs():
                began = perf_counter_ns()
                self.body_ns = began, began
                try:
                    return self._region.function(*args, **kwargs)
                finally:
                    self.body_ns = began, perf_counter_ns()

        guards: GuardSet | None = None
        unguarded: Refused | None = None
        try:
            guards = GuardSet(self._region.root, stateful(layout))
        except TooLarge as error:
            unguarded = Refused.because(error.reason, self._region.at, what=error)
        found = Found()
        if guards is not None:
            found = Found(tuple(leaf.grad is not None for _, leaf in guards.leaves()), guards.form())
        limit, attention, tracer = self._limit(), self._region.context.attention, self._region.context.tracer
        stand_aside = self._region.context.stand_aside
        before_ns = tracer.recorded_ns

        def on_overflow() -> None:
            if limit < LIMIT or tracer.had_enough:
                stand_aside()  # half a call tells nothing, a whole one takes too long

        own_ms = max(attention.left_ms / TRACING, min(attention.allowance.beside_ms, AT_ONCE_MS), LEAST_MS)
        result, call, escapes = record(
            tracer,
            backend.device,
            layout.leaves,
            body,
            on_wait=self._on_wait,
            limit=limit,
            own_ns=1e6 * own_ms,
            beside_ns=1e6 * own_ms * TRACING,
            on_overflow=on_overflow,
        )
        attention.recorded(tracer.recorded_ns - before_ns, len(call.trace.ops))
        self.watched_ns = watch.calls.events * EVENT_NS
        if watch.calls.cut or (call.trace.cut and min(limit, len(call.trace.ops)) < LIMIT):
            stand_aside()
            return result
        if self.gave_up and not self.traced and self._region.calls == 1:
            return result  # a callable inside took over; this trace tells nothing
        with torch._C.DisableTorchFunction():  # a subclass of the person's is not told of what is read of its tensors
            self._learn(shape, call, layout, (result, args, kwargs), escapes, watch, guards or unguarded, found)
        return result

    def _learn(
        self,
        shape: Specialization,
        call: RecordedCall,
        layout: Layout,
        after: tuple[object, Args, Kwargs],
        escapes: Sequence[tuple[str, Position | None]],
        watch: EffectWatch,
        guards: GuardSet | Refused | None,
        found: Found,
    ) -> None:
        """Keep what a recorded call tells. `after` and `guards`: see `_why_not`."""
        if self._again:
            self.traced.pop()
        call = with_graphs_of_results(call, _tensors_in(after), layout.leaves)
        self._keep(shape, call.trace)
        training = call.trace.needs_grad or any(found.graded)
        self.warns |= any(name in ("warn", SHOWN) for name, _ in watch.found)
        settling = training and isinstance(guards, GuardSet) and not guards.holds()
        settling |= bool(watch.found) and not watch.direct  # a library that looks at the machine, and remembers it
        settling |= {name for name, _ in watch.found} == {SHOWN}  # most are shown once
        settling |= watch.calls.loaded or watch.set is not None
        self._again = self._unsteady < UNSTEADY and settling
        if self._again:
            self._unsteady += 1
            return
        # A loop that is left to the device is recorded once in a graph, however long the eager call was.
        if len(call.trace.ops) >= LIMIT and not is_left_to_device(call.trace):
            self._region.refuse(Refused.because(Reason.OPERATOR_LIMIT, self._region.at, limit=f"{LIMIT:,}"))
        if self._region.refused is not None:
            return
        refused = self._why_not(call, layout, after, escapes, watch, guards)
        if refused is not None:
            self._region.refuse(refused)
            return
        self.audit(shape, call.trace, found)
        if isinstance(guards, GuardSet):
            began = perf_counter_ns()
            guards.holds()
            took = (perf_counter_ns() - began) / 1e6
            self.guards_ms = took if self.guards_ms is None else min(took, self.guards_ms)

    def _why_not(
        self,
        call: RecordedCall,
        layout: Layout,
        after: tuple[object, Args, Kwargs],
        escapes: Sequence[tuple[str, Position | None]],
        watch: EffectWatch,
        guards: GuardSet | Refused | None,
    ) -> Refused | None:
        """Why a call like this one cannot be captured. `after`: its result and arguments. `guards`: of what it reads,
        or why there are none.
        """
        region = self._region
        if not call.trace.ops and not escapes:
            return Refused.because(Reason.NO_WORK, region.at)
        if isinstance(guards, GuardSet):
            parallel = refuse_parallel(guards, region.at)
            if parallel is not None:
                return parallel
        elif guards is not None:
            return effect_of(watch) or guards  # what the call did, and where, says more
        if sum(op.kind not in ("view", "host", HOST_RANDOM) for op in call.trace.ops) < MIN_OPERATORS:
            on_host = sum(op.kind == "host" for op in call.trace.ops) >= MIN_OPERATORS
            on_device = region.context.backend.kind == "cuda"
            return Refused.because(Reason.ON_THE_CPU if on_host and on_device else Reason.NO_WORK, region.at)
        results, pairs = _tensors_in(after), region.may_pair
        self.leaves_graph |= pairs and call.trace.needs_grad and leaves_a_graph(results, layout.leaves)
        value_guards = judge(call, layout.leaves, results, escapes, region.context.backend, pairs=pairs)
        if isinstance(value_guards, Refused):
            return value_guards
        effect = effect_of(watch)
        if effect is not None:
            return effect
        if not isinstance(guards, GuardSet):
            return None
        if guards.holds():
            return guards.refuse_strays(watch.calls.own)
        changed = guards.difference()
        self.new_tensors = tuple(guards.culprits) if guards.only_tensors else ()
        path, at = blamed(region.root, guards.culprits, region.at)
        by = f" (`{path}`)" if path else ""
        return Refused.because(Reason.CHANGES_STATE, at, changed=changed, by=by, path=path, name=guards.name)

    def _stops_here(self) -> bool:
        """Have the rest of the call run unobserved, unless an operator is on its way."""
        if self._region.context.tracer.is_called:
            return False
        self._region.context.stand_aside()
        return True

    def _limit(self) -> int:
        """So many operators of one call may be traced."""
        attention = self._region.context.attention
        fewest = FEWEST if attention.allowance.beside_ms >= FEWEST * attention.operator_ms else 1
        return int(min(LIMIT, max(fewest, attention.left_ms / attention.operator_ms)))

    def _on_wait(self, recorder: Recorder, op: OpRecord) -> None:
        """The host waits in a traced call. If the value does not follow from the inputs, others may become active."""
        if self._region.refused is not None:
            return
        if op.kind == "dynamic":
            self._region.refuse(Refused.because(Reason.DATA_SHAPE, op.user or op.inner, operator=op.name))
        elif op.kind == "transfer-out" or slice_of(recorder.ops, op.ordinal, recorder.born) is None:
            self._region.refuse(refuse_read(recorder.last_read, op, recorder.ops, recorder.born))

    def audit(self, shape: Specialization, trace: Trace, found: Found) -> None:
        """Two calls under one key, with the same gradients present, must issue equal operators with equal scalars."""
        once = not self._formed_anew
        for kept in list(shape.traces):
            then, earlier = kept
            same_reads = [r.value for r in earlier.host_reads] == [r.value for r in trace.host_reads]
            difference = earlier.first_difference(trace) if then.graded == found.graded and same_reads else None
            if difference is None:
                continue
            if then.form != found.form and once:  # a new head explains another trace
                self._formed_anew = True
                shape.traces.remove(kept)
                continue
            self._region.refuse(self._explain(*difference, hidden=then.form == found.form))
            return
        if len(shape.traces) < 2:
            shape.traces.append((found, trace))

    def _explain(self, one: OpRecord | None, other: OpRecord | None, *, hidden: bool) -> Refused:
        here = other or one
        at = (here.user or here.inner) if here is not None else self._region.at
        if one is not None and other is not None and one.name == other.name and one.scalars() != other.scalars():
            pairs = zip(one.scalars(), other.scalars(), strict=False)
            values = next((pair for pair in pairs if pair[0] != pair[1]), (None, None))
            opaque = next((value for value in values if isinstance(value, ByIdentity)), None)
            if opaque is not None:
                return Refused.because(Reason.UNCOMPARED, at, operator=one.name, kind=str(opaque))
            self.scalar_changes.append(ScalarChange(operator=one.name, values=values, at=at))
            return Refused.because(Reason.NUMBER_CHANGES, at, operator=one.name)
        if not hidden:
            return Refused.because(Reason.TENSORS_CHANGE, at)
        names = f"{one.name if one else 'nothing'} and {other.name if other else 'nothing'}"
        if one is not None and other is not None and one.name == other.name:
            names = f"{one.name}, {one.difference(other)}"
        return Refused.because(Reason.OTHER_OPERATORS, at, operators=names)

    def trace_now(self, shape: Specialization, may_capture: bool) -> bool:
        """Trace two calls. The first call of a module is often another one than the rest (a prompt), and is let be."""
        if self._region.root_is_module and self._region.calls == 1:
            return False
        if not self.traced or self._again:
            return True
        if may_capture and shape.run > 1 and self._pays(shape):
            return False  # a capture traces its eager run itself
        if not self._known_here:
            return True
        if len(self.traced) >= TRACED:
            return False
        if not self._region.root_is_module or shape.calls > 1 or self._region.calls > AUDIT_BY:
            return True
        return may_be_cold(self.traces)  # whether the next shape costs as much
