"""One attempt to capture a call of a region and to prove the graph right before it is used.

The order is: snapshot what the region writes; run the person's code once, traced, for the person's result; run it again
in step for the capture; replay from the same inputs, state and random state; compare every output and every written
tensor bit for bit. What goes wrong after the eager run is a `Refused`, and the eager result stands.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import torch

from ...failures import first_line, is_signalled, log_failure, said
from ...model import NoMemory, NoRoom, Position, Reason, Refused, RetryLater
from ...model.call import Args, Kwargs
from ...originals import perf_counter
from ...tracing import record
from ..backends.executables import UpdatableGraph
from ..backends.protocol import CaptureFailed, Graph
from ..buffers.placeholders import Placeholders, distinct
from ..guarding.effects import EffectWatch
from ..guarding.guards import GuardSet
from ..guarding.sharing import shared, shared_objects, shared_tensors
from ..guarding.structure import Layout, Unsupported, flatten, stateful
from ..predication import Surveyed, iterations
from ..regions.specialization import Found
from ..replaying.entry import Entry, identities
from ..replaying.host_draws import host_draws
from ..replaying.looks import look_of
from ..replaying.node_numbers import numbered, unnumbered
from ..replaying.outputs import Outputs
from ..replaying.value_guards import ValueGuards
from ..replaying.versions import VersionWatch
from ..state import KeptState
from ..state.names import TooLarge
from ..training import GradientCapture, GradientPlan, leaves_a_graph, seal, sealable, with_graphs_of_results
from .lowered import is_left_to_device, learn_arms, survey_call
from .pairing import capture_pair
from .proof.checks import check_arguments, check_effects, check_guards, check_modes, places
from .proof.judging import check_looks, judge, outputs_of
from .proof.shared_executable import admit_shared
from .proof.verification import Verification
from .request import Captured, EagerRun, Request
from .running.in_step import CapturedRun, InStep
from .snapshot import Snapshot
from .stop import Stop


def capture_call(request: Request, layout: Layout, args: Args, kwargs: Kwargs) -> Captured:
    """Serve one call eagerly and capture it. The person's own exceptions propagate; nothing else does."""
    return _Attempt(request, layout).run(args, kwargs)


class _Attempt:
    def __init__(self, request: Request, layout: Layout) -> None:
        self.request = request
        self.backend = request.backend
        self.layout = layout
        self.verification: Verification | None = None
        self.kept: KeptState | None = None

    def run(self, args: Args, kwargs: Kwargs) -> Captured:
        with unnumbered() as self.numbers:
            captured = self.serve(args, kwargs)
        if isinstance(captured.outcome, Entry):
            captured.outcome.nodes = self.numbers.persons
        return captured

    def serve(self, args: Args, kwargs: Kwargs) -> Captured:
        request, backend = self.request, self.backend
        backend.prepare()
        started = perf_counter()
        random_before = backend.rng_state()
        unready = self.prepare()
        self.arguments_before = places(self.layout)
        self.watch = EffectWatch(request.tracer.positions)

        def body() -> object:
            with self.watch:
                return request.function(*args, **kwargs)

        iterations_before, numbered_before = iterations(), numbered()
        try:
            result, call, escapes = record(request.tracer, backend.device, self.layout.leaves, body, keep=True)
        finally:
            self.numbers.persons = numbered() - numbered_before
        random_after = backend.rng_state()
        # An eager run may take some more iterations where its kernels do not repeat themselves.
        most_iterations = 2 * (iterations() - iterations_before) + 16
        self.gradients.note()
        self.versions.note()
        if unready is not None:
            return Captured(
                result=result, outcome=unready, trace=call.trace, found=Found(self.gradients.present, self.form)
            )

        def eager() -> EagerRun:
            after = flatten((result, args, kwargs), "result")
            recorded = with_graphs_of_results(call, after.leaves, self.layout.leaves)
            check_guards(self.guards, recorded.trace.needs_grad)
            check_effects(self.watch, self.guards)
            check_arguments(self.layout, self.arguments_before)
            check_modes(request, self.guards, recorded.trace.needs_grad)
            return EagerRun(
                call=recorded,
                after=after,
                looks=[look_of(leaf) for leaf in after.leaves],
                random_before=random_before,
                random_after=random_after,
                most_iterations=most_iterations,
            )

        try:
            outcome = self.outcome(eager, escapes, started)
        finally:
            self.leave_as_eager(random_after)
        if isinstance(outcome, Entry) and outcome.outputs.slots and outcome.verified == "identical":
            with contextlib.suppress(torch.OutOfMemoryError):  # the same bits, where the next call may read them
                result = outcome.results(self.layout.leaves, self.layout.containers)
        return Captured(
            result=result,
            outcome=outcome,
            trace=call.trace,
            found=Found(self.gradients.present, self.form),
            plain=self.verification.unfaithful if self.verification is not None else frozenset(),
            faithful=self.verification.faithful if self.verification is not None else frozenset(),
        )

    def leave_as_eager(self, random_after: object) -> None:
        """Whatever the attempt ran since: objects, memory, random state and version counters are those of the call."""
        if self.kept is not None:
            self.kept.put_back()
        with self.request.tracer.passing_through():
            self.snapshot.settle()
        self.backend.set_rng_state(random_after)
        self.gradients.restore_versions()
        self.gradients.forget()
        self.versions.restore()

    def prepare(self) -> Refused | NoMemory | None:
        """Guards, gradients and snapshot, before the call; why it cannot be captured, or None."""
        request = self.request
        refused: Refused | None = None
        guards: GuardSet | None = None
        try:
            reached = stateful(self.layout)
            guards = request.guards or GuardSet(request.root, reached)
        except TooLarge as error:
            refused = Refused.because(error.reason, what=error)
        self.gradients = GradientCapture(guards.leaves() if guards is not None else (), self.backend)
        self.form = guards.form() if guards is not None else ()
        self.versions = VersionWatch(guards.tensors if guards is not None else (), self.layout.leaves)
        try:
            refused = self.gradients.adopt(request.writes) or refused
            if guards is not None and refused is None:
                self.guards = guards
                sources = {**guards.sources, **self.gradients.sources()}
                self.snapshot = Snapshot(request.writes, self.layout, sources)
        except torch.OutOfMemoryError:
            return NoMemory(refused=Refused.because(Reason.SNAPSHOT_MEMORY))
        return refused

    def outcome(
        self, eager: Callable[[], EagerRun], escapes: Sequence[tuple[str, Position | None]], started: float
    ) -> Entry | Refused | RetryLater | NoMemory | NoRoom:
        """The graph, or why there is none: whatever happens here, the eager result stands."""
        try:
            with self.request.tracer.passing_through():
                return self.attempt(eager(), escapes, started)
        except Stop as stop:
            return stop.outcome
        except torch.OutOfMemoryError as error:
            return NoMemory(refused=Refused.because(Reason.CAPTURE_MEMORY, what=first_line(error)))
        except CaptureFailed as failed:
            return failed.outcome
        except Unsupported as unsupported:
            return Refused.because(Reason.ARGUMENTS, what=unsupported)
        except Exception as error:  # a fault of Grape's or of the backend's must not reach the person's cell
            if is_signalled(error):
                raise
            log_failure("it captured a call")
            return Refused.because(Reason.FAILED, error=said(error)[:200])

    def attempt(
        self, eager: EagerRun, escapes: Sequence[tuple[str, Position | None]], started: float
    ) -> Entry | Refused:
        request = self.request
        pairs = request.backwards is not None
        value_guards = judge(eager.call, self.layout.leaves, eager.after.leaves, escapes, self.backend, pairs=pairs)
        if isinstance(value_guards, Refused):
            return value_guards
        self.kept = self.guards.kept()
        if eager.call.trace.needs_grad and pairs and leaves_a_graph(eager.after.leaves, self.layout.leaves):
            return capture_pair(
                request,
                self.layout,
                eager,
                value_guards,
                guards=self.guards,
                gradients=self.gradients,
                snapshot=self.snapshot,
                versions=self.versions,
                started=started,
            )
        self.placeholders = Placeholders(
            request.store,
            request.owner,
            self.backend.device,
            self.layout.leaves,
            self.layout.paths,
            request.bound,
            {path: where for path, where in request.landing.items() if where[0] in request.in_place},
        )
        surveyed: Surveyed | None = None
        if is_left_to_device(eager.call.trace):
            if eager.call.trace.needs_grad:
                return Refused.because(Reason.FLOW_RECORDS_GRADIENTS)
            found = survey_call(request, self.layout, value_guards, self.placeholders, self.guards)
            if isinstance(found, Refused):
                return found
            surveyed, eager = found, replace(eager, call=found.call)
            value_guards = judge(eager.call, self.layout.leaves, eager.after.leaves, (), self.backend)
            if isinstance(value_guards, Refused):
                return value_guards
        draws = host_draws(eager.call)
        if isinstance(draws, Refused):
            return draws
        if surveyed is not None and draws.draws:
            return Refused.because(Reason.DRAWS_BESIDE_FLOW)
        self.snapshot.find_externals(eager.call)
        self.snapshot.find_writes(eager.call, self.gradients)
        self.prepare_gradients(eager.after)
        if any(vars(leaf) for leaf in eager.after.leaves):
            raise Stop(Refused.because(Reason.ATTRIBUTES))
        self.snapshot.keep(eager.call, self.placeholders, self.gradients.replaced())
        self.snapshot.disturb()
        self.fill_placeholders()
        arrivals = eager.call.arrivals
        hidden = {i: torch.empty_like(arrivals[i]).copy_(arrivals[i]) for i in value_guards.inputs}
        run = InStep(
            request=request,
            layout=self.layout,
            eager=eager,
            guards=self.guards,
            gradients=self.gradients,
            placeholders=self.placeholders,
            hidden=hidden,
            draws=draws,
            surveyed=surveyed,
        ).capture()
        graph = run.graph
        try:
            homes = {target.untyped_storage()._cdata: slot for target, slot in run.redirected.values()}
            outputs = outputs_of(self.backend, eager, run, homes)
            graph, verified = self.admit(graph, eager, run)
            if run.arms is not None and surveyed is not None:
                learn_arms(run.arms, eager, surveyed, (request.owner, self.layout.key))
            outputs.lend([one.outputs for one in self.request.alike])
            plan = self.gradients.plan()
            check_looks(eager, run.output_spec.leaves(self.layout.leaves, outputs.hand_out()), run)
            return self.entry(eager, run, graph, value_guards, hidden, outputs, plan, verified, started)
        except BaseException:
            graph.release()
            raise

    def entry(
        self,
        eager: EagerRun,
        run: CapturedRun,
        graph: Graph,
        value_guards: ValueGuards,
        hidden: dict[int, torch.Tensor],
        outputs: Outputs,
        plan: GradientPlan,
        verified: str,
        started: float,
    ) -> Entry:
        call, snapshot, verification, alike = eager.call, self.snapshot, self.verification, self.request.alike
        assert verification is not None
        self.placeholders.settle([one.placeholders for one in alike])
        external = [tensor.untyped_storage() for tensor in snapshot.externals.values()]
        held = tuple([storage for storage in external if storage._cdata not in self.gradients.homes])
        return Entry(
            backend=self.backend,
            graph=graph,
            guards=self.guards,
            reached=shared(identities(stateful(self.layout)), [one.reached for one in alike]),
            value_guards=value_guards,
            placeholders=self.placeholders,
            hidden=[hidden[i] for i in value_guards.inputs],
            outputs=outputs,
            draws=run.draws,
            output_spec=run.output_spec.or_one_alike([one.output_spec for one in alike]),
            externals=shared_tensors(snapshot.externals, [one.externals for one in alike]),
            written=snapshot.written_leaves,
            changed=snapshot.changed,
            growth=self.versions.growth(snapshot.written_leaves),
            effectful=snapshot.writes or plan.active or any(op.draws for op in call.trace.ops),
            gradients=next((one.gradients for one in alike if plan.does_as(one.gradients)), plan),
            verified=verified,
            arms=run.arms,
            checked=run.checked,
            overlapped=run.compare_orders(),
            replay_ms=verification.replay_ms,
            capture_ms=(perf_counter() - started) * 1e3,
            shapes=", ".join(str(tuple(leaf.shape)) for leaf in self.layout.leaves[:4]),
            paths=shared(tuple(self.layout.paths), [one.paths for one in alike]),
            keep=tuple([one for one in (call.arrivals, call.constants) if one]),
            held=shared_objects(held, [one.held for one in alike]),
        )

    def fill_placeholders(self) -> None:
        """Put there what the eager call was given."""
        ready = self.placeholders.copied
        inputs = [distinct(self.snapshot.inputs.get(i, self.layout.leaves[i])) for i in ready]
        self.backend.copy([self.placeholders.target(i) for i in ready], inputs)

    def admit(self, graph: Graph, eager: EagerRun, run: CapturedRun) -> tuple[Graph, str]:
        """The graph as it will be replayed, and how its replay compares with eager. Raises where it is not right."""
        verification = self.verification = Verification(
            self.request,
            self.layout,
            eager,
            run,
            snapshot=self.snapshot,
            placeholders=self.placeholders,
            gradients=self.gradients,
        )
        if self.request.executables is None:
            with self.request.attention.spend("verify"):
                return graph, verification.verify(graph.replay)
        updatable = cast(UpdatableGraph, graph)
        updatable.drew(eager.random_before, eager.random_after)
        return admit_shared(self.request, self.request.executables, updatable, verification, self.fill_placeholders)

    def prepare_gradients(self, after: Layout) -> None:
        """Nothing may refer to the autograd graph of the eager run any more, nor to gradients that it dropped."""
        given = {id(leaf) for leaf in self.layout.leaves}
        sealed = sealable(leaf for leaf in after.leaves if id(leaf) not in given)
        if any(leaf.retains_grad for leaf in sealed):
            raise Stop(Refused.because(Reason.GRADIENT_KEPT))
        for leaf in sealed:
            seal(leaf)
        refused = self.gradients.prepare()
        if refused is not None:
            raise Stop(refused)
