"""Captures one call of a region and proves the graph right before it is used.

The order is: snapshot what the region writes; run the person's code once, traced, for the result that the person gets;
run it again in step for the capture; replay from the same inputs, state and random state; compare every output and
every written tensor bit for bit. Whatever goes wrong after the eager run is a `Refused`, and the eager result stands.
"""

from __future__ import annotations

import contextlib
import time
import types
import weakref
from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.utils._pytree import tree_leaves

from ..model import DECISION, OpRecord, Position, Refused, Trace
from ..tracing import SPARSE, RecordedCall, Recorder, Tracer, record
from .backends.protocol import Backend, CaptureFailed, Graph, UpdatableGraph
from .compare import first_mismatch, nondeterministic_in, within
from .compression import ExecutableStore, StoredGraph
from .effects import EffectBan, EffectWatch, effect_of
from .entry import Entry, identities
from .environment import foreign_modes
from .guards import GuardSet, TooLarge
from .lockstep import Diverged, HostConstants, Lockstep
from .outputs import Outputs
from .placeholders import Placeholders, distinct, whole
from .predication import Arms, Flag, NodeLowering, Surveyed, iterations, survey
from .prologue import Prologue, build_prologue
from .recipe import ArgumentView, Outside, Recipe, write_recipe
from .redirect import out_form, redirect
from .slots import SlotStore
from .structure import Layout, Unsupported, flatten, leaf_meta, rebuild, stateful
from .training import GradientCapture, graph_that_leaves, seal, sealable

__all__ = ["Captured", "Observation", "Request", "capture_call", "judge"]

_arms: weakref.WeakValueDictionary[tuple[Hashable, Any], Arms] = weakref.WeakValueDictionary()
"""The branches that replays of a region took and were compared, by its owner and the layout of the arguments."""

EAGER_RUNS = 4
"""Where a replay differs, so many more eager runs tell whether eager differs from itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a capture needs to know: the person's function, how to call it, and what earlier calls taught."""

    function: Callable[..., Any]
    root: Any
    backend: Backend
    tracer: Tracer
    bound: Collection[int]
    store: SlotStore
    executables: ExecutableStore | None
    """Where the backend's graphs share executables."""
    owner: Hashable
    """Whose graphs use the slots."""
    in_place: Collection[str]
    """Paths of results that were seen to be dead, or to be the next call's arguments, one call later."""
    writes: Collection[str]
    """Names of arguments and outside tensors that earlier calls wrote in place; they are snapshotted."""
    tolerance: float
    guards: GuardSet | None
    """Those of another graph, where they guard the same state and hold."""
    plain: Collection[Any]
    """Operators whose `out=` form did not give the bits of the other."""
    next: Sequence[Entry]
    """The graphs that are likely to read what this one returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A call that was served eagerly and captured on the way."""

    result: Any
    outcome: Entry | Refused
    trace: Trace
    graded: tuple[bool, ...] = ()
    """Which leaf tensors that the region reaches had gradients when the call began."""
    plain: frozenset[Any] = frozenset()
    """See `Request.plain`: to be tried without, where the outcome is "retry"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A traced eager call, and why a region that behaves like this cannot be captured (or None)."""

    call: RecordedCall
    prologue: Prologue | None
    refused: Refused | None


def judge(
    call: RecordedCall,
    leaves: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
    escapes: Sequence[tuple[str, Position | None]],
    backend: Backend,
) -> Prologue | Refused:
    """Can a call with this trace and these tensors in its result be captured? Its prologue, or why not."""
    trace = call.trace
    if trace.needs_grad:
        if not backend.autograd:
            return Refused(code="GR405", why="its results need gradients")
        kept = graph_that_leaves(results, leaves)
        if kept is not None:
            return kept
        escapes = [escape for escape in escapes if escape[0] not in _AUTOGRAD]
    if escapes:
        name, at = escapes[0]
        if name == SPARSE:
            return Refused(code="GR405", why=f"it works on {name}, such as a sparse one", at=at)
        if name in _PLACES:
            return Refused(code="GR405", why=f".{name} tells where a tensor lies, which differs in a replay", at=at)
        return Refused(code="GR101", why=f".{name}() takes a tensor's contents to the host", at=at)
    for op in trace.ops:
        if op.name.startswith("aten.as_strided") and _is_absolute(op, trace):
            why = f"{op.name} takes an offset from the beginning of an argument's memory"
            return Refused(code="GR405", why=why, at=op.user or op.inner)
    devices = {view.device for op in trace.ops for view in (*op.tensors(), *op.outputs)}
    foreign = {d for d in devices if d.split(":")[0] not in ("cpu", backend.device.type)}
    several = {d for d in devices if d.startswith(backend.device.type)}
    if any(op.kind == "random" and op.outputs and op.outputs[0].device == "cpu" for op in trace.ops) and (
        backend.device.type != "cpu"
    ):
        return Refused(code="GR405", why="it draws random numbers on the CPU")
    if foreign or len(several) > 1:
        return Refused(code="GR405", why=f"it works on several devices: {', '.join(sorted(devices))}")
    return build_prologue(call, leaves)


_AUTOGRAD = ("backward", "register_hook")
"""Of these the trace shows all that they do, where the graph of autograd ends inside the region."""
_PLACES = ("storage_offset", "is_shared", "_base", "_version")


def _is_absolute(op: OpRecord, trace: Trace) -> bool:
    """Does `as_strided` with an offset of its own look at an argument? Where that lies in its memory is not guarded."""
    offset = op.args[3] if len(op.args) > 3 else dict(op.kwargs).get("storage_offset")
    return offset is not None and any(view.storage in trace.argument_storages for view in op.tensors())


def capture_call(request: Request, layout: Layout, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
    """Serve one call eagerly and capture it. The person's own exceptions propagate; nothing else does."""
    return _Capture(request, layout).run(args, kwargs)


class _Stop(Exception):
    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.why)
        self.refused = refused


class _Capture:
    def __init__(self, request: Request, layout: Layout) -> None:
        self.request = request
        self.backend = request.backend
        self.layout = layout
        self.unfaithful: frozenset[Any] = frozenset()
        self.surveyed: Surveyed | None = None
        self.arms: Arms | None = None
        self.checked = False

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
        request, backend = self.request, self.backend
        backend.prepare()
        started = time.perf_counter()
        before: Refused | GuardSet
        try:
            reached = stateful(self.layout)
            before = request.guards or GuardSet(request.root, reached)
        except TooLarge as error:
            before = Refused(code="GR405", why=str(error))
        self.random_before = backend.rng_state()
        found = before.leaves() if isinstance(before, GuardSet) else ()
        self.gradients = GradientCapture(found, backend)
        try:
            before = self.gradients.adopt(request.writes) or before
            self.snapshot_inputs(before if isinstance(before, GuardSet) else None)
        except torch.OutOfMemoryError:
            before = Refused(code="GR405", why="no memory for a snapshot of what the region writes")
        self.arguments_before = [_place(leaf) for leaf in self.layout.leaves]
        self.watch = EffectWatch(request.tracer.positions)

        def body() -> Any:
            with self.watch:
                return request.function(*args, **kwargs)

        iterations_before = iterations()
        result, call, escapes = record(request.tracer, backend.device, self.layout.leaves, body, keep=True)
        self.random_after = backend.rng_state()
        # The replays that are compared end, whatever the graph does: an eager run may take some more iterations where
        # its kernels do not repeat themselves.
        self.most_iterations = 2 * (iterations() - iterations_before) + 16
        self.call = call
        self.gradients.note()
        if isinstance(before, Refused):
            return Captured(result=result, outcome=before, trace=call.trace, graded=self.gradients.present)
        self.guards = before
        try:
            outcome: Entry | Refused = self.attempt(result, escapes, args, kwargs, started)
        except _Stop as stop:
            outcome = stop.refused
        except torch.OutOfMemoryError as error:
            outcome = Refused(code="GR405", why=f"out of memory while capturing: {str(error).splitlines()[0]}")
        except CaptureFailed as failed:
            outcome = Refused(code=failed.code, why=str(failed))
        except Unsupported as unsupported:
            outcome = Refused(code="GR405", why=str(unsupported))
        except Exception as error:  # a fault of Grape's or of the backend's must not reach the person's cell
            outcome = Refused(code="GR405", why=f"the capture failed: {type(error).__name__}: {str(error)[:200]}")
        finally:
            backend.set_rng_state(self.random_after)
            self.gradients.forget()
        if isinstance(outcome, Entry) and outcome.outputs.slots and outcome.verified == "identical":
            # The same bits from the slots: so the next call finds its arguments where a graph can read them.
            with contextlib.suppress(torch.OutOfMemoryError):
                result = outcome.results(self.layout.leaves, self.layout.containers)
        return Captured(
            result=result,
            outcome=outcome,
            trace=call.trace,
            graded=self.gradients.present,
            plain=self.unfaithful,
        )

    def snapshot_inputs(self, guards: GuardSet | None) -> None:
        """Copies of everything that exists before the call and that it may write (known from earlier traces)."""
        wanted = self.request.writes
        paths = self.layout.paths
        self.inputs_before = {
            i: leaf.detach().clone() for i, leaf in enumerate(self.layout.leaves) if paths[i] in wanted
        }
        self.bound_before = {i: whole(self.layout.leaves[i]).clone() for i in self.inputs_before}
        self.sources = {**guards.sources, **self.gradients.sources()} if guards is not None else {}
        self.sources_before = {
            key: whole(tensor).clone() for key, (where, tensor) in self.sources.items() if where in wanted
        }

    def attempt(
        self,
        result: Any,
        escapes: Sequence[tuple[str, Position | None]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        started: float,
    ) -> Entry | Refused:
        if not self.guards.holds():
            # An optimizer makes the state of a parameter that it has not seen before; the next call will not.
            code = "unsteady" if self.call.trace.needs_grad else "GR404"
            raise _Stop(Refused(code=code, why=f"the call changes {self.guards.difference()}"))
        self.check_effects()
        self.eager_after = flatten((result, args, kwargs), "result")
        prologue = judge(self.call, self.layout.leaves, self.eager_after.leaves, escapes, self.backend)
        if isinstance(prologue, Refused):
            return prologue
        request = self.request
        self.placeholders = Placeholders(
            request.store, request.owner, self.backend.device, self.layout.leaves, self.layout.paths, request.bound
        )
        if any(read.construct == DECISION for read in self.call.trace.host_reads):
            if self.call.trace.needs_grad:
                return Refused(code="GR102", why="control flow that is left to the device records gradients")
            prologue = self.survey(prologue)
            if isinstance(prologue, Refused):
                return prologue
        self.externals = self.find_externals()
        self.check_writes()
        self.prepare_gradients()
        if any(vars(leaf) for leaf in self.eager_after.leaves):
            raise _Stop(Refused(code="GR405", why="an argument or a result is a tensor with Python attributes"))
        self.keep_eager_state()
        self.fill_placeholders()
        self.hidden = {i: torch.empty_like(self.call.arrivals[i]).copy_(self.call.arrivals[i]) for i in prologue.inputs}
        graph, recipe, made = self.capture()
        try:
            homes = {target.untyped_storage()._cdata: slot for target, slot in self.redirected.values()}
            outputs = Outputs(self.backend, made, homes)
            if not outputs.uniform:
                raise _Stop(Refused(code="GR405", why="results of different dtypes share memory"))
            graph, verified = self.admit(graph)
            self.learn_arms()
            outputs.lend()
            plan = self.gradients.plan()
        except BaseException:
            graph.release()
            raise
        return Entry(
            backend=self.backend,
            graph=graph,
            guards=self.guards,
            reached=identities(stateful(self.layout)),
            prologue=prologue,
            placeholders=self.placeholders,
            hidden=[self.hidden[i] for i in prologue.inputs],
            outputs=outputs,
            recipe=recipe,
            externals=self.externals,
            written=self.written_leaves(),
            changed=[self.externals[number] for number in self.written & set(self.externals)],
            effectful=bool(self.written) or plan.active or any(op.kind == "random" for op in self.call.trace.ops),
            gradients=plan,
            verified=verified,
            arms=self.arms,
            checked=self.checked,
            replay_ms=self.replay_ms,
            capture_ms=(time.perf_counter() - started) * 1e3,
            shapes=", ".join(str(tuple(leaf.shape)) for leaf in self.layout.leaves[:4]),
            paths=tuple(self.layout.paths),
            keep=(
                self.arms,
                self.call.arrivals,
                self.call.constants,
                [s for t in self.externals.values() if (s := t.untyped_storage())._cdata not in self.gradients.homes],
                [target for target, _ in self.redirected.values()],
            ),
        )

    def fill_placeholders(self) -> None:
        """Put there what the eager call was given."""
        ready = self.placeholders.copied
        inputs = [self.inputs_before.get(i, self.layout.leaves[i]) for i in ready]
        self.backend.copy([self.placeholders.targets[i] for i in ready], [distinct(t) for t in inputs])

    def admit(self, graph: Graph) -> tuple[Graph, str]:
        """The graph as it will be replayed, and how its replay compares with eager. Raises where it is not right.

        An executable of other shapes may take it; if that one is wrong, the graph's own is tried.
        """
        store = self.request.executables
        if store is None:
            return graph, self.verify(graph.replay)
        failure: _Stop | None = None
        verified: list[str] = []

        def verify(launch: Callable[[], None]) -> bool:
            nonlocal failure
            if failure is not None:
                self.fill_placeholders()  # the replay that was wrong may have written them
            try:
                verified.append(self.verify(launch))
            except _Stop as stop:
                if stop.refused.code == "unsettled":
                    raise
                failure = stop
                return False
            return True

        stored = StoredGraph.admit(store, cast(UpdatableGraph, graph), verify, owner=self.request.owner)
        if isinstance(stored, StoredGraph):
            return stored, verified[-1]
        raise failure or _Stop(Refused(code="no room", why="no executable could be had"))

    def survey(self, prologue: Prologue) -> Prologue | Refused:
        """Replace the eager trace, which shows one way through the code, by one of all ways; nothing is executed."""
        if prologue.steps:
            read = next((step.op for step in prologue.steps if step.op.ordinal in prologue.reads), prologue.steps[0].op)
            why = f"{read.name} needs the host, beside control flow that is left to the device"
            return Refused(code="GR101", why=why, at=read.user or read.inner)

        def call() -> None:
            args, kwargs = rebuild(self.layout.root, self.placeholders.tensors)
            self.request.function(*args, **kwargs)

        positions = self.request.tracer.positions
        with EffectBan(positions):
            self.surveyed = survey(self.backend, call, self.placeholders.tensors, positions)
        if not self.guards.holds():
            return Refused(code="GR404", why=f"a branch that was not taken changes {self.guards.difference()}")
        self.call = self.surveyed.call
        return judge(self.call, self.layout.leaves, self.eager_after.leaves, (), self.backend)

    def learn_arms(self) -> None:
        """The verifying replay ran these branches; so did those of other graphs of the same program."""
        if self.arms is None or self.surveyed is None:
            return
        self.arms.learn()
        self.arms.program = (self.call.trace.signature(), tuple(sorted(self.surveyed.choices.items())))
        key = self.request.owner, self.layout.key
        known = _arms.get(key)
        if known is not None:
            self.arms.join(known)
        _arms[key] = self.arms

    def check_lowering(self, lowering: NodeLowering, leaving: Layout) -> None:
        """What a lowered program may not hand out."""
        self.checked = bool(lowering.checks)
        leaves = {leaf.untyped_storage()._cdata for leaf in leaving.leaves}
        outside = leaves | {tensor.untyped_storage()._cdata for tensor in self.placeholders.tensors}
        outside |= set(self.guards.sources)
        for one, other in lowering.ties.pairs():
            if one.cdata in leaves and other.cdata in outside:
                why = "whether a result shares memory with another tensor depends on data"
                raise _Stop(Refused(code="GR102", why=why))

    def find_externals(self) -> dict[int, torch.Tensor]:
        """The tensors behind the storages that the trace reads from outside, by storage number."""
        found: dict[int, torch.Tensor] = {}
        for number in self.call.trace.external_storages:
            source = self.sources.get(self.call.storages[number].cdata)
            if source is None or source[1].untyped_storage()._cdata != self.call.storages[number].cdata:
                op = next(op for op in self.call.trace.ops if any(v.storage == number for v in op.tensors()))
                why = f"{op.name} reads a tensor that is neither an argument nor found through the code's own names"
                raise _Stop(Refused(code="GR405", why=why, at=op.user or op.inner))
            found[number] = source[1]
        return found

    def check_effects(self) -> None:
        """What the eager run did besides its operators, on a path that no earlier call may have taken."""
        effect = effect_of(self.watch)
        if effect is not None:
            raise _Stop(effect)
        if [_place(leaf) for leaf in self.layout.leaves] != self.arguments_before:
            raise _Stop(Refused(code="GR404", why="it changes the shape, the flags or the memory of an argument"))
        foreign = foreign_modes(int(self.request.tracer.on_stack))
        if foreign:
            raise _Stop(Refused(code="GR405", why=f"a {foreign} is active, which would not see a replay"))
        if self.call.trace.needs_grad and self.guards.has_hooked_nodes():
            raise _Stop(
                Refused(code="GR405", why="a hook on the node of a parameter's gradient would not see a replay")
            )

    def check_writes(self) -> None:
        """A write to memory from before the call needs a snapshot; without one the next call makes it."""
        trace = self.call.trace
        outside = set(trace.argument_storages) | set(trace.external_storages)
        self.written = {number for op in trace.ops for number in op.written if number in outside}
        used = {self.call.storages[number].cdata for number in trace.external_storages}
        written = {self.call.storages[number].cdata for number in self.written}
        names = tuple(sorted(self.written_names() | self.gradients.find_read(used, written)))
        if not set(names) <= set(self.request.writes):
            raise _Stop(Refused(code="retry", why="it writes its inputs; the next call is snapshotted", evidence=names))

    def written_names(self) -> set[str]:
        names = {self.layout.paths[i] for i in self.written_leaves()}
        for number in self.written & set(self.externals):
            names.add(self.sources[self.call.storages[number].cdata][0])
        return names

    def written_leaves(self) -> tuple[int, ...]:
        numbers: dict[int, int] = {}
        return tuple(
            index
            for index, leaf in enumerate(self.layout.leaves)
            if numbers.setdefault(leaf.untyped_storage()._cdata, len(numbers)) in self.written
        )

    def prepare_gradients(self) -> None:
        """Nothing may refer to the autograd graph of the eager run any more, nor to gradients that it dropped."""
        given = {id(leaf) for leaf in self.layout.leaves}
        self.sealed = sealable(leaf for leaf in self.eager_after.leaves if id(leaf) not in given)
        if any(leaf.retains_grad for leaf in self.sealed):
            raise _Stop(Refused(code="GR405", why="a result retains its gradient, which a replay would not give it"))
        for leaf in self.sealed:
            seal(leaf)
        refused = self.gradients.prepare()
        if refused is not None:
            raise _Stop(refused)

    def keep_eager_state(self) -> None:
        """Where the replay will write into the person's own memory, keep what the eager call left there."""
        self.in_place: list[torch.Tensor] = []
        self.in_place_before: list[torch.Tensor] = []
        self.replaced = self.gradients.replaced()
        for number in self.written & set(self.externals):
            if self.call.storages[number].cdata in self.replaced:
                continue
            self.in_place.append(_typed(self.externals[number]))
            self.in_place_before.append(self.sources_before[self.call.storages[number].cdata])
        for index in set(self.written_leaves()).intersection(self.placeholders.in_place):
            self.in_place.append(_typed(self.layout.leaves[index]))
            self.in_place_before.append(self.bound_before[index])
        self.in_place_after = [tensor.clone() for tensor in self.in_place]

    def capture(self) -> tuple[Graph, Recipe, list[torch.Tensor]]:
        cap_args, cap_kwargs = rebuild(self.layout.root, self.placeholders.tensors)
        entering = flatten((cap_args, cap_kwargs), "args")
        recorder = self.recorder = Recorder(self.backend.device, self.placeholders.tensors)
        surveyed = self.surveyed
        # A lowered program's results are made by other operators than the eager call's.
        self.redirected = (
            redirect(self.call, self.eager_after, self.request, self.placeholders) if surveyed is None else {}
        )
        forms = {ordinal: (out_form(self.call.functions[ordinal]), t) for ordinal, (t, _) in self.redirected.items()}
        lockstep = Lockstep(self.call, recorder, self.request.tracer.positions, self.hidden, forms)

        lowering = NodeLowering(self.backend, surveyed.choices, lockstep.outside) if surveyed is not None else None

        def body() -> Any:
            with ExitStack() as stack:
                if self.backend.kind == "cuda":
                    stack.enter_context(HostConstants(lockstep, self.backend.device))
                stack.enter_context(lockstep)
                if lowering is not None:
                    stack.enter_context(EffectBan(self.request.tracer.positions))
                    stack.enter_context(lowering.active())
                result = self.request.function(*cap_args, **cap_kwargs)
            self.gradients.finish()
            return result

        try:
            self.gradients.enter()
            graph, result = self.backend.capture(body)
        except Diverged as diverged:
            raise _Stop(_divergence(diverged)) from None
        except (CaptureFailed, torch.OutOfMemoryError):
            raise
        except Exception as error:
            why = f"the code raised {type(error).__name__} while it was captured: {str(error).splitlines()[:1]}"
            raise _Stop(Refused(code="GR405", why=why)) from error
        finally:
            self.gradients.restore()
        try:
            lockstep.finish()
            if not self.guards.holds():
                raise _Stop(Refused(code="GR404", why=f"the call changes {self.guards.difference()}"))
            if lowering is not None and any(isinstance(leaf, Flag) for leaf in tree_leaves(result)):
                raise _Stop(Refused(code="GR102", why="it returns a truth value that is only known on the device"))
            leaving = flatten((result, cap_args, cap_kwargs), "result")
            if lowering is not None:
                self.check_lowering(lowering, leaving)
                self.arms = lowering.arms
            self.compare_structure(leaving)
            self.end_graphs(leaving)
            recipe = write_recipe(
                leaving,
                entering,
                dict(enumerate(entering.containers)),
                self.classifier(),
                self.found_outside(leaving),
                self.consumed,
            )
        except Diverged as diverged:
            graph.release()
            raise _Stop(_divergence(diverged)) from None
        except BaseException:
            graph.release()
            raise
        made = [leaf for leaf, origin in zip(leaving.leaves, recipe.origin, strict=True) if origin is None]
        self.left = leaving.leaves
        return graph, recipe, made

    def end_graphs(self, leaving: Layout) -> None:
        """Let go of all that autograd has made in the captured run; its results are tensors from here on."""
        given = {id(tensor) for tensor in self.placeholders.tensors}
        self.consumed: dict[int, str] = {}
        for index, leaf in enumerate(leaving.leaves):
            if leaf.grad_fn is not None and id(leaf) not in given:
                self.consumed[index] = type(leaf.grad_fn).__name__
                leaving.leaves[index] = leaf.detach()
        born = {self.recorder.storage(number) for number in self.recorder.born}
        refused = self.gradients.compare(born, leaving.leaves)
        if refused is not None:
            raise _Stop(refused)

    def compare_structure(self, leaving: Layout) -> None:
        if leaving.key != self.eager_after.key:
            pairs = zip(leaving.key, self.eager_after.key, strict=False)
            mine, theirs = next(((a, b) for a, b in pairs if a != b), (len(leaving.key), len(self.eager_after.key)))
            why = f"the result differs between two runs of the same call: {theirs} and {mine}"
            raise _Stop(Refused(code="GR404", why=why[:300]))

    def found_outside(self, leaving: Layout) -> dict[int, Any]:
        """Containers in the result that the call did not make: the eager run gave the very same objects."""
        attributes = {id(vars(container)) for container in leaving.containers if hasattr(container, "__dict__")}
        found = {}
        for number, (mine, eager) in enumerate(zip(leaving.containers, self.eager_after.containers, strict=True)):
            if mine is not eager or isinstance(mine, (tuple, types.MethodType)) or id(mine) in attributes:
                continue
            if not self.guards.reaches(mine):
                why = f"it returns a {type(mine).__name__} that it did not make and Grape cannot find"
                raise _Stop(Refused(code="GR404", why=why))
            found[number] = mine
        return found

    def classifier(self) -> Callable[[torch.Tensor], Any]:
        """Where a tensor of the result comes from; see `Recipe.origin`."""
        direct = {id(tensor): i for i, tensor in enumerate(self.placeholders.tensors)}
        born = {self.recorder.storage(number) for number in self.recorder.born}
        shared = {t.untyped_storage()._cdata: i for i, t in reversed(list(enumerate(self.placeholders.tensors)))}

        def classify(tensor: torch.Tensor) -> Any:
            if id(tensor) in direct:
                return direct[id(tensor)]
            if self.guards.owns(tensor):
                return Outside(tensor, itself=True)
            storage = tensor.untyped_storage()._cdata
            index = shared.get(storage)
            if index is not None:
                base = self.placeholders.tensors[index]
                if base.dtype != tensor.dtype:
                    raise _Stop(Refused(code="GR405", why="a result reinterprets an argument's dtype"))
                delta = int(tensor.storage_offset()) - int(base.storage_offset())
                return ArgumentView(index, tuple(tensor.shape), tensor.stride(), delta)
            if storage in self.guards.sources:
                return Outside(tensor, itself=False)
            if storage not in born:
                raise _Stop(Refused(code="GR405", why="it returns a tensor that it did not make and Grape cannot find"))
            if tensor.requires_grad or type(tensor) is not torch.Tensor:
                raise _Stop(Refused(code="GR405", why="it makes a parameter, or a tensor that requires a gradient"))
            if tensor.device.type != self.backend.device.type:
                raise _Stop(Refused(code="GR101", why="it returns a CPU tensor, for which the host would have to wait"))
            return None

        return classify

    def verify(self, launch: Callable[[], None]) -> str:
        """Replay once from the inputs, state and random state of the eager call, and compare."""
        with self.backend.bounded(self.most_iterations) as endless:
            return self.compare(launch, endless)

    def compare(self, launch: Callable[[], None], endless: Callable[[], bool]) -> str:
        try:
            for tensor, before in zip(self.in_place, self.in_place_before, strict=True):
                tensor.copy_(before.view(tensor.dtype))
            for cdata, tensor in self.replaced.items():
                whole(tensor).copy_(self.sources_before[cdata])
            self.backend.set_rng_state(self.random_before)
            timer = self.backend.timer()
            timer.start()
            launch()
            timer.stop()
            if not _same_state(self.backend.rng_state(), self.random_after):
                raise _Stop(Refused(code="GR405", why="the replay consumed another random stream than the eager call"))
            pairs = list(zip(self.eager_after.leaves, self.left, strict=True))
            pairs += list(zip(self.in_place_after, self.in_place, strict=True))
            pairs += self.gradients.pairs()
            pairs = [(one.detach(), other.detach()) for one, other in pairs]
            mismatch = first_mismatch(pairs)
            if endless():
                why = f"a loop of the replay had not ended after {self.most_iterations} iterations, the eager one had"
                raise _Stop(Refused(code="GR102", why=why))
            self.replay_ms = timer.elapsed_ms()
            names = nondeterministic_in(self.call.trace) if mismatch is not None else ()
            close = bool(names) and self.request.tolerance > 0 and within(pairs, self.request.tolerance)
        finally:
            for tensor, after in zip(self.in_place, self.in_place_after, strict=True):
                tensor.copy_(after)
        if mismatch is None or (not close and self.eager_again(launch)):
            return "identical"
        if close:
            return f"within {self.request.tolerance:g}"
        if self.redirected:
            self.unfaithful = frozenset(self.call.functions[ordinal] for ordinal in self.redirected)
            raise _Stop(Refused(code="retry", why="once more without `out=` forms"))
        because = f"; {', '.join(names)} is documented as non-deterministic (see --tolerance)" if names else ""
        where = self.eager_after.paths[mismatch] if mismatch < len(self.eager_after.paths) else "a written tensor"
        raise _Stop(Refused(code="GR405", why=f"the replay's {where} differs from the eager result{because}"))

    def eager_again(self, launch: Callable[[], None]) -> bool:
        """The replay differs: does eager differ from itself, and does a replay give the bits of another eager run?

        Some kernels do not repeat themselves (attention over a long cache, in half precision). Then the eager result
        at hand is one of several right ones, and replays are verified against further runs from the same inputs. Only
        where nothing but results is written and nothing random is drawn. Raises where eager differs from itself, and
        no replay gave the bits of any run: a later call may try again.
        """
        trace = self.call.trace
        if self.written or trace.needs_grad or any(op.kind == "random" for op in trace.ops):
            return False
        seen = [self.eager_after.leaves]
        for _ in range(EAGER_RUNS):
            # In the placeholders stand the inputs of the eager call; bound and forwarded ones lie there anyway.
            args, kwargs = rebuild(self.layout.root, self.placeholders.tensors)
            again = flatten((self.request.function(*args, **kwargs), args, kwargs), "result").leaves
            if all(not _equal(again, known) for known in seen):
                seen.append(again)
            for _ in range(2 if len(seen) > 1 else 0):
                launch()
                if any(_equal(known, self.left) for known in seen):
                    return True
        if len(seen) > 1:
            why = "its kernels do not give the same bits twice, and the replay gave those of no eager run"
            raise _Stop(Refused(code="unsettled", why=why))
        return False


def _equal(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return first_mismatch([(a.detach(), b.detach()) for a, b in zip(one, other, strict=True)]) is None


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What a call may not change of a tensor that it was given, but for the contents."""
    graded = tensor.is_leaf and tensor.grad is not None
    return (*leaf_meta(tensor), tensor.untyped_storage()._cdata, int(tensor.storage_offset()), graded)


def _typed(tensor: torch.Tensor) -> torch.Tensor:
    """All the memory behind a tensor, as elements of its dtype where the size allows."""
    everything = whole(tensor)
    return everything if everything.numel() % tensor.itemsize else everything.view(tensor.dtype)


def _divergence(diverged: Diverged) -> Refused:
    expected, found = diverged.expected, diverged.found
    where = expected or found
    at = (where.user or where.inner) if where else None
    if expected is not None and found is not None and expected.name == found.name:
        theirs, mine = expected.scalars(), found.scalars()
        if theirs != mine:
            values = tuple(zip(theirs, mine, strict=False))
            changed = next((pair for pair in values if pair[0] != pair[1]), values[:1])
            return Refused(
                code="GR403",
                why=f"a Python value that reaches {expected.name} changed from one run to the next",
                at=at,
                evidence=(("operator", expected.name), ("values", str(changed))),
            )
    evidence = (("eager", expected.name if expected else None), ("captured", found.name if found else None))
    return Refused(
        code="GR402", why=f"the capture ran other operators than the eager call: {diverged}", at=at, evidence=evidence
    )


def _same_state(one: Any, other: Any) -> bool:
    return (
        all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        if isinstance(one, tuple)
        else torch.equal(one, other)
    )
