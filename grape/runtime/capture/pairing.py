"""Captures a call whose results carry an autograd graph: its forward, and its backward for gradients as they came.

After the person's own run, the code runs once more as a rehearsal, eagerly, on placeholders and on stand-ins for the
leaves; what `torch.autograd.grad` dispatches for it is the reference of the backward. Then both are captured, in step
with what ran, and replayed: results, written buffers, the random state and every part of every gradient must have the
bits of the eager runs. Nobody's `.grad` is touched.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import cast

import torch

from ...model import Reason, Refused
from ...originals import perf_counter
from ...tracing import Recorder
from ..backends.protocol import Backend, Graph, Pool
from ..buffers.placeholders import Placeholders, distinct
from ..buffers.slots import SlotStore
from ..guarding.guards import GuardSet
from ..guarding.structure import Layout, stateful
from ..replaying.entry import Entry, identities
from ..replaying.host_draws import host_draws
from ..replaying.value_guards import ValueGuards
from ..replaying.versions import VersionWatch
from ..training import GradientCapture, GradientPlan
from ..training.again import Again
from ..training.observed import differentiable
from ..training.pair import BackwardGraph, Pair, Saved, SavedOutside
from ..training.pair_entry import PairEntry
from ..training.recorded import Recorded, Unfit
from .lowered import is_left_to_device
from .proof.compare import first_mismatch
from .proof.judging import outputs_of
from .proof.verification import Verification
from .request import EagerRun, Request
from .running.in_step import CapturedRun
from .running.lockstep import Diverged, Lockstep
from .running.rehearsal import PairRun, Reference, Rehearsal, unpaired
from .snapshot import Snapshot
from .stop import Stop, divergence


def capture_pair(
    request: Request,
    layout: Layout,
    eager: EagerRun,
    value_guards: ValueGuards,
    *,
    guards: GuardSet,
    gradients: GradientCapture,
    snapshot: Snapshot,
    versions: VersionWatch,
    started: float,
) -> Entry:
    """The entry of a call that has just run eagerly. Raises `Stop`, CaptureFailed and torch.OutOfMemoryError."""
    _refuse(eager, layout, guards, gradients)
    own = replace(request, in_place=(), bound=(), executables=None, next=(), store=SlotStore(request.backend))
    try:
        return _Pairing(own, layout, eager, guards, gradients, snapshot, versions).run(value_guards, started)
    except Unfit as unfit:
        raise unpaired(f", and {unfit}") from None


def _refuse(eager: EagerRun, layout: Layout, guards: GuardSet, gradients: GradientCapture) -> None:
    """Raise `Stop` for what no pair serves."""
    if is_left_to_device(eager.call.trace):
        raise Stop(Refused.because(Reason.FLOW_RECORDS_GRADIENTS))
    if gradients.changed:
        raise unpaired(", and it changes `.grad`")
    root = guards.root
    modules = [*guards.modules, *([root] if isinstance(root, torch.nn.Module) else ())]
    if any(module._backward_hooks or module._backward_pre_hooks for module in modules):
        raise unpaired(", and a module has a hook on its backward")
    results = eager.after.leaves
    recorded = differentiable(results, layout.leaves)
    storages = [leaf.untyped_storage()._cdata for leaf in results]
    for index in recorded:
        if storages.count(storages[index]) > 1 or storages[index] in guards.sources:
            raise unpaired(", and one shares memory with another tensor")
        if results[index].retains_grad:
            raise Stop(Refused.because(Reason.GRADIENT_KEPT))
    given = {id(leaf) for leaf in layout.leaves}
    graded = {leaf.untyped_storage()._cdata for leaf in layout.leaves if leaf.requires_grad}
    if any(id(leaf) not in given and storage in graded for leaf, storage in zip(results, storages, strict=True)):
        raise unpaired(", and one shares memory with an argument that requires a gradient")
    if any(vars(leaf) for leaf in results):
        raise Stop(Refused.because(Reason.ATTRIBUTES))


@dataclass
class _Pairing:
    request: Request
    layout: Layout
    eager: EagerRun
    guards: GuardSet
    gradients: GradientCapture
    snapshot: Snapshot
    versions: VersionWatch

    @property
    def backend(self) -> Backend:
        return self.request.backend

    def run(self, value_guards: ValueGuards, started: float) -> Entry:
        request, backend, eager, snapshot = self.request, self.backend, self.eager, self.snapshot
        draws = host_draws(eager.call)
        if isinstance(draws, Refused) or draws.draws:
            raise unpaired(", and it draws random numbers on the CPU")
        snapshot.find_externals(eager.call)
        snapshot.find_writes(eager.call, self.gradients)
        if self.gradients.read:
            raise unpaired(", and it reads `.grad`")
        if snapshot.written_leaves or any(tensor.requires_grad for tensor in snapshot.changed):
            raise unpaired(", and it writes an argument or a parameter")
        width = len(differentiable(eager.after.leaves, self.layout.leaves))
        assert request.backwards is not None
        patterns = request.backwards.patterns(width)
        if not patterns:
            raise unpaired()
        if request.backwards.again:
            raise Stop(Refused.because(Reason.GRADIENTS_AGAIN))
        self.placeholders = Placeholders(
            request.store, request.owner, backend.device, self.layout.leaves, self.layout.paths, ()
        )
        snapshot.keep(eager.call, self.placeholders, {})
        ready = self.placeholders.copied
        backend.copy([self.placeholders.target(i) for i in ready], [distinct(self.layout.leaves[i]) for i in ready])
        arrivals = eager.call.arrivals
        hidden = {i: torch.empty_like(arrivals[i]).copy_(arrivals[i]) for i in value_guards.inputs}

        def run_of(pool: Pool | None) -> tuple[PairRun, CapturedRun]:
            self.placeholders.renew_leaves()
            snapshot.disturb()
            run = PairRun(
                request=request,
                layout=self.layout,
                eager=eager,
                guards=self.guards,
                gradients=self.gradients,
                placeholders=self.placeholders,
                hidden=hidden,
                draws=draws,
                surveyed=None,
                pool=pool,
            )
            return run, run.capture()

        rehearsal = Rehearsal(request, eager, snapshot, run_of, patterns)
        pool = backend.open_pool()
        run, captured = run_of(pool)
        graphs: list[Graph] = [captured.graph]
        try:
            return self._entry(value_guards, hidden, pool, run, captured, rehearsal, graphs, started)
        except Diverged as diverged:
            for graph in graphs:
                graph.release()
            raise Stop(divergence(diverged)) from None
        except BaseException:
            for graph in graphs:
                graph.release()
            raise

    def _entry(
        self,
        value_guards: ValueGuards,
        hidden: dict[int, torch.Tensor],
        pool: Pool,
        run: PairRun,
        captured: CapturedRun,
        rehearsal: Rehearsal,
        graphs: list[Graph],
        started: float,
    ) -> Entry:
        request, backend, eager, snapshot = self.request, self.backend, self.eager, self.snapshot
        recorded = run.recorded()
        if recorded.parts != rehearsal.parts:
            raise Stop(Refused.because(Reason.RECORDS_DIFFER))
        backwards = {
            pattern: self._capture_backward(recorded, reference, pool, graphs)
            for pattern, reference in rehearsal.references.items()
        }
        outputs = outputs_of(backend, eager, captured, {})
        verification = Verification(
            request,
            self.layout,
            eager,
            captured,
            snapshot=snapshot,
            placeholders=self.placeholders,
            gradients=self.gradients,
        )
        verified = verification.verify(captured.graph.replay)
        for pattern, reference in rehearsal.references.items():
            found = reference.compare(backwards[pattern], request.tolerance)
            verified = verified if verified != "identical" else found
        origins = [i for i, origin in enumerate(captured.output_spec.origin) if origin is None]
        made_of = {leaf: number for number, leaf in enumerate(origins)}
        draws_random = any(op.draws for op in eager.call.trace.ops)
        originals = run.stand_ins.originals
        inputs: list[int | torch.Tensor] = []
        for name, parts in recorded.parts.items():
            kind, number = cast("tuple[str, int]", name)
            inputs += [number if kind == "argument" else originals[number]] * parts
        pair = Pair(
            backend,
            captured.graph,
            pool,
            backwards,
            inputs=inputs,
            made=captured.made,
            differentiable=[made_of[i] for i in run.numbers],
            saved=self._saved(run, captured, recorded, rehearsal, made_of),
            placeholders=self.placeholders,
            name=type(eager.after.leaves[run.numbers[0]].grad_fn).__name__,
            observed=request.backwards,  # type: ignore[arg-type]
            again=Again(
                request.function,
                self.layout.root,
                self.guards,
                backend,
                request.tracer,
                snapshot.changed,
                lambda pairs: first_mismatch(pairs) is None,
                request.paused,
            ),
            draws=draws_random,
            keep=request.store,
        )
        return PairEntry(
            backend=backend,
            graph=captured.graph,
            guards=self.guards,
            reached=identities(stateful(self.layout)),
            value_guards=value_guards,
            placeholders=self.placeholders,
            hidden=[hidden[i] for i in value_guards.inputs],
            outputs=outputs,
            draws=captured.draws,
            output_spec=captured.output_spec,
            externals=snapshot.externals,
            written=(),
            changed=snapshot.changed,
            growth=self.versions.growth(()),
            effectful=snapshot.writes or draws_random,
            gradients=GradientPlan(leaves=(), present=(), read=(), written=(), made=(), dropped=()),
            verified=verified,
            replay_ms=verification.replay_ms,
            capture_ms=(perf_counter() - started) * 1e3,
            shapes=", ".join(str(tuple(leaf.shape)) for leaf in self.layout.leaves[:4]),
            paths=tuple(self.layout.paths),
            keep=(
                eager.call.arrivals,
                eager.call.constants,
                [tensor.untyped_storage() for tensor in snapshot.externals.values()],
            ),
            pair=pair,
        )

    def _capture_backward(
        self, recorded: Recorded, reference: Reference, pool: Pool, graphs: list[Graph]
    ) -> BackwardGraph:
        recorder = Recorder(self.backend.device, reference.given)
        lockstep = Lockstep(reference.call, recorder, self.request.tracer.positions, {}, {})

        def body() -> dict[Hashable, list[torch.Tensor | None]]:
            with lockstep, torch.autocast(self.backend.device.type, enabled=False):
                return recorded.differentiate(reference.seeds)

        graph, parts = self.backend.capture(body, pool)
        graphs.append(graph)
        lockstep.finish()
        row = [part for one in parts.values() for part in one]
        for mine, theirs in zip(row, reference.parts, strict=True):
            if (mine is None) != (theirs is None) or (
                mine is not None and theirs is not None and _layout(mine) != _layout(theirs)
            ):
                raise Stop(Refused.because(Reason.MADE_DIFFERS))
        return BackwardGraph(graph=graph, seeds=reference.seeds, parts=row)

    def _saved(
        self,
        run: PairRun,
        captured: CapturedRun,
        recorded: Recorded,
        rehearsal: Rehearsal,
        made_of: dict[int, int],
    ) -> Saved:
        """Tensors that autograd saved of memory that others can write; whatever the backward reads beside that is
        refused.
        """
        tensors = self.placeholders.tensors
        arguments = [i for i, one in enumerate(tensors) if one.untyped_storage()._cdata in recorded.saved]
        leaves = run.stand_ins.originals
        taken = {leaf.untyped_storage()._cdata for leaf in leaves}
        others = [one for one in self.snapshot.externals.values() if one.untyped_storage()._cdata not in taken]
        outside = []
        for tensor, as_run in (*zip(leaves, run.stand_ins.tensors, strict=True), *((one, one) for one in others)):
            if tensor.untyped_storage()._cdata in recorded.saved:
                itself, view = recorded.saved_how(as_run)
                if itself and view:
                    raise unpaired(", and both a tensor and a view of it are saved for its backward")
                outside.append(SavedOutside(tensor=tensor, there=tensor.detach(), follows=itself))
        results = [
            made_of[i]
            for i, leaf in enumerate(captured.left)
            if i in made_of and leaf.untyped_storage()._cdata in recorded.saved
        ]
        known = {one.untyped_storage()._cdata for one in tensors} | set(self.guards.sources)
        unseen = (rehearsal.read & known) - recorded.saved
        if unseen:
            raise unpaired(", and its backward reads a tensor that autograd does not save")
        views = frozenset(i for i in arguments if not recorded.saved_how(tensors[i])[0])
        return Saved(arguments=arguments, views=views, outside=outside, results=results, anything=bool(recorded.saved))


def _layout(tensor: torch.Tensor) -> tuple[object, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype
