"""The second run of a call, which is captured: operator by operator in step with the eager one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import cast

import torch

from ....model import Later, Reason, Refused, RetryLater
from ....model.call import Args, Kwargs
from ....model.overlap import Overlapped, OverlapPlan, plan_overlap
from ....quiet import without_warnings
from ....tracing import Recorder
from ...backends.executables import UpdatableGraph
from ...backends.protocol import CaptureFailed, Graph, OverlapLost
from ...buffers.placeholders import Placeholders
from ...buffers.slots import Slot
from ...guarding.effects import EffectBan
from ...guarding.guards import GuardSet
from ...guarding.structure import Layout, flatten
from ...predication import Arms, NodeLowering, Surveyed
from ...replaying.building import rebuild
from ...replaying.host_draws import HostDraws
from ...replaying.output_spec import OutputSpec, write_output_spec
from ...training import GradientCapture
from ..lowered import check_ties, refuse_flags
from ..request import EagerRun, Request
from ..stop import Stop, changes, divergence
from .lockstep import Diverged, HostConstants, Lockstep
from .provenance import classifier, compare_structure, found_outside
from .redirect import out_form, redirect


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedRun:
    """A graph, and what the run that it was captured from left."""

    graph: Graph
    output_spec: OutputSpec
    made: Sequence[torch.Tensor]
    """The tensors of the result that the graph makes."""
    left: Sequence[torch.Tensor]
    """All tensors of the result and of the arguments, in the order of `EagerRun.after`."""
    redirected: Mapping[int, tuple[torch.Tensor, Slot]]
    """Results that are written straight into slots, by ordinal of the operator."""
    draws: HostDraws
    arms: Arms | None
    checked: bool
    """True where the code asserts something about tensors."""
    plan: OverlapPlan | None = None
    """Of the branches that the graph has."""

    def compare_orders(self) -> Overlapped | None:
        """What branches gain, of a graph that was verified: launches before that would leave right values in memory,
        and hide a missing wait. Raises `Stop` where they gain nothing: a later call is captured without.
        """
        if self.plan is None:
            return None
        found = cast(UpdatableGraph, self.graph).compare_orders(self.plan)
        if found is not None and not found.applied:
            raise Stop(RetryLater(later=Later.OVERLAP, refused=Refused.because(Reason.BRANCHES_SLOWER)))
        return found


@dataclass(kw_only=True)
class InStep:
    """Captures one call whose eager run is over. `hidden` are placeholders of what the value guards bring, by
    ordinal.
    """

    request: Request
    layout: Layout
    eager: EagerRun
    guards: GuardSet
    gradients: GradientCapture
    placeholders: Placeholders
    hidden: Mapping[int, torch.Tensor]
    draws: HostDraws
    surveyed: Surveyed | None
    plan: OverlapPlan | None = field(default=None, init=False)

    def capture(self) -> CapturedRun:
        """Raises `Stop`, CaptureFailed and torch.OutOfMemoryError; then the graph is released."""
        request, call = self.request, self.eager.call
        given = self.placeholders.tensors
        args, kwargs = rebuild(self.layout.root, given)
        entering = flatten((args, kwargs), "args")
        recorder = Recorder(request.backend.device, given)
        # A lowered program's results are made by other operators than the eager call's.
        redirected = redirect(call, self.eager.after, request, self.placeholders) if self.surveyed is None else {}
        found = {ordinal: (out_form(call.functions[ordinal]), target) for ordinal, (target, _) in redirected.items()}
        forms = {ordinal: (form, target) for ordinal, (form, target) in found.items() if form is not None}
        lockstep = Lockstep(call, recorder, request.tracer.positions, self.hidden, forms)
        lowering = None
        if self.surveyed is not None:
            lowering = NodeLowering(request.backend, self.surveyed.choices, lockstep.outside)
        self.plan = self._planned(forms)
        if self.plan is not None:
            request.backend.prepare_branches(self.plan)
        graph, result = self._run(args, kwargs, lockstep, lowering)
        try:
            lockstep.finish()
            if not self.guards.holds():
                raise Stop(changes(self.guards))
            refuse_flags(result if lowering is not None else None)
            leaving = flatten((result, args, kwargs), "result")
            if lowering is not None:
                check_ties(lowering, leaving, given, self.guards)
            output_spec = self._write_output_spec(entering, leaving, recorder)
        except Diverged as diverged:
            graph.release()
            raise Stop(divergence(diverged)) from None
        except BaseException:
            graph.release()
            raise
        made = [index for index, origin in enumerate(output_spec.origin) if origin is None]
        return CapturedRun(
            graph=graph,
            output_spec=output_spec,
            made=[leaving.leaves[index] for index in made],
            left=leaving.leaves,
            redirected=redirected,
            draws=self.draws,
            arms=lowering.arms if lowering is not None else None,
            checked=bool(lowering.checks) if lowering is not None else False,
            plan=self.plan,
        )

    def _planned(self, redirected: Collection[int]) -> OverlapPlan | None:
        request = self.request
        if self.surveyed is not None or request.executables is None or not request.backend.overlaps:
            return None
        return plan_overlap(self.eager.call.trace, redirected) if request.overlaps else None

    def _run(
        self, args: Args, kwargs: Kwargs, lockstep: Lockstep, lowering: NodeLowering | None
    ) -> tuple[Graph, object]:
        request, backend = self.request, self.request.backend

        def body() -> object:
            with ExitStack() as stack:
                if backend.kind == "cuda":
                    stack.enter_context(HostConstants(lockstep, backend.device))
                stack.enter_context(lockstep)
                if lowering is not None:
                    stack.enter_context(EffectBan(request.tracer.positions))
                    stack.enter_context(lowering.active())
                stack.enter_context(without_warnings())  # the eager run has shown them
                if self.plan is not None:
                    lockstep.branches = stack.enter_context(backend.branches(self.plan))
                result = request.function(*args, **kwargs)
                if lockstep.hides_memory:
                    raise OverlapLost
            self._finish_gradients()
            return result

        try:
            self._enter_gradients()
            return self._issue(body)
        except Diverged as diverged:
            raise Stop(divergence(diverged)) from None
        except (CaptureFailed, torch.OutOfMemoryError):
            raise
        except Exception as error:
            text = next(iter(str(error).splitlines()), "")
            raise Stop(Refused.because(Reason.RAISED, error=type(error).__name__, text=text)) from error
        finally:
            self._restore_gradients()

    def _issue(self, body: Callable[[], object]) -> tuple[Graph, object]:
        with self.draws.alone() as as_drawn:
            graph, result = self._record(body)
            if not as_drawn():
                graph.release()
                why = "it sets the state of the CPU's random generator, which a replay would not repeat"
                raise CaptureFailed("GR405", why)
        return graph, result

    def _record(self, body: Callable[[], object]) -> tuple[Graph, object]:
        return self.request.backend.capture(body)

    def _enter_gradients(self) -> None:
        self.gradients.enter()

    def _finish_gradients(self) -> None:
        self.gradients.finish()

    def _restore_gradients(self) -> None:
        self.gradients.restore()

    def _write_output_spec(self, entering: Layout, leaving: Layout, recorder: Recorder) -> OutputSpec:
        compare_structure(leaving, self.eager.after)
        given = self.placeholders.tensors
        born = {recorder.storage(number) for number in recorder.born}
        consumed = self._end_graphs(leaving, born)
        mode = torch.is_inference_mode_enabled()
        made_under = {i: leaf.is_inference() for i, leaf in enumerate(self.eager.after.leaves)}
        return write_output_spec(
            leaving,
            entering,
            dict(enumerate(entering.containers)),
            classifier(given, born, self.guards, self.request.backend.device),
            found_outside(leaving, self.eager.after, self.guards),
            consumed,
            {index: inference for index, inference in made_under.items() if inference != mode},
        )

    def _end_graphs(self, leaving: Layout, born: set[int]) -> dict[int, str]:
        """Let go of all that autograd has made in this run; its results are tensors from here on.

        The names of the nodes that results had, by leaf.
        """
        given = {id(tensor) for tensor in self.placeholders.tensors}
        consumed: dict[int, str] = {}
        for index, leaf in enumerate(leaving.leaves):
            if leaf.grad_fn is not None and id(leaf) not in given:
                consumed[index] = type(leaf.grad_fn).__name__
                leaving.leaves[index] = leaf.detach()
        refused = self.gradients.compare(born, leaving.leaves)
        if refused is not None:
            raise Stop(refused)
        return consumed
