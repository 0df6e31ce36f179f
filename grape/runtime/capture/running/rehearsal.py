"""The code of a pair once more: as a rehearsal, eagerly, and captured; see `pairing`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch._ops import OpOverload

from ....model import Later, Reason, Refused, RetryLater
from ....model.call import Args, Kwargs
from ....tracing import OwnMode, Recorder, issue
from ...backends.autocast_cache import autocast_cache_off
from ...backends.protocol import Graph, Pool
from ...buffers.placeholders import distinct
from ...guarding.structure import Layout
from ...predication import NodeLowering
from ...training import need_gradients
from ...training.observed import Pattern, differentiable
from ...training.pair import BackwardGraph
from ...training.recorded import Recorded
from ...training.stand_ins import StandIns
from ..proof.compare import documented, first_mismatch, nondeterministic_in, within
from ..request import EagerRun, Request
from ..snapshot import Snapshot
from ..stop import Stop
from .in_step import CapturedRun, InStep
from .lockstep import Lockstep


def unpaired(more: str = "") -> Stop:
    """Calls that record no gradients are another matter."""
    return Stop(need_gradients(more))


@dataclass(kw_only=True)
class PairRun(InStep):
    """A run on placeholders and stand-ins, whose autograd graph is kept. Without a `pool` it is not captured."""

    pool: Pool | None

    def __post_init__(self) -> None:
        self.stand_ins = StandIns(self.guards)
        self.outputs: list[torch.Tensor] = []
        """Those results that have a graph, with it."""
        self.numbers: list[int] = []

    def _run(
        self, args: Args, kwargs: Kwargs, lockstep: Lockstep, lowering: NodeLowering | None
    ) -> tuple[Graph, object]:
        with self.stand_ins.in_place():
            return super()._run(args, kwargs, lockstep, lowering)

    def _enter_gradients(self) -> None:
        """Stand-ins have none."""

    def _finish_gradients(self) -> None: ...

    def _restore_gradients(self) -> None: ...

    def _issue(self, body: Callable[[], object]) -> tuple[Graph, object]:
        if self.pool is not None:
            return super()._issue(body)
        with autocast_cache_off():
            return _NoGraph(), body()

    def _record(self, body: Callable[[], object]) -> tuple[Graph, object]:
        return self.request.backend.capture(body, self.pool)

    def _end_graphs(self, leaving: Layout, born: set[int]) -> dict[int, str]:
        self.numbers = differentiable(leaving.leaves, self.placeholders.tensors)
        for index in self.numbers:
            self.outputs.append(leaving.leaves[index])
            leaving.leaves[index] = leaving.leaves[index].detach()
        made = {id(one) for one in self.stand_ins.tensors}
        if any(id(leaf) in made for leaf in leaving.leaves):
            raise unpaired(", and one is a parameter")
        return {}

    def recorded(self) -> Recorded:
        """The autograd graph. Raises `Unfit`."""
        given = enumerate(self.placeholders.tensors)
        names: dict[Hashable, torch.Tensor] = {("argument", i): one for i, one in given if one.requires_grad}
        names |= {("outside", i): one for i, one in enumerate(self.stand_ins.tensors)}
        return Recorded(self.outputs, names)


class Reference:
    """One backward of the rehearsal, for gradients `seeds`: what it dispatched, and the parts that it gave."""

    def __init__(self, request: Request, recorded: Recorded, pattern: Pattern, number: int) -> None:
        backend = request.backend
        generator = torch.Generator().manual_seed(1000 + number)
        self.seeds: list[torch.Tensor | None] = []
        for output, strides in zip(recorded.outputs, pattern, strict=True):
            if strides is None:
                self.seeds.append(None)
                continue
            seed = torch.empty_strided(output.shape, strides, dtype=output.dtype, device=backend.device)
            narrow = distinct(seed)
            narrow.copy_(torch.randn(narrow.shape, generator=generator))
            self.seeds.append(seed)
        self.given = [seed for seed in self.seeds if seed is not None]
        recorder = Recorder(backend.device, self.given)
        with _Recording(recorder, request), torch.autocast(backend.device.type, enabled=False):
            found = recorded.differentiate(self.seeds)
        self.call = recorder.finish()
        self.parts = [part for row in found.values() for part in row]

    def refuse(self) -> None:
        trace = self.call.trace
        outside = set(trace.external_storages) | set(trace.argument_storages)
        for op in trace.ops:
            at = op.user or op.inner
            if (
                op.draws
                or op.kind in ("host-read", "transfer-in", "transfer-out", "dynamic")
                or outside & set(op.written)
            ):
                raise Stop(Refused.because(Reason.BACKWARD_OPERATOR, at, operator=op.name))

    def compare(self, made: BackwardGraph, tolerance: float) -> str:
        """Replay twice, for a graph may be gone through twice. Raises `Stop` where the gradients differ."""
        verdict = "identical"
        for _ in range(2):
            made.graph.replay()
            pairs = [(a, b) for a, b in zip(self.parts, made.parts, strict=True) if a is not None and b is not None]
            if first_mismatch(pairs) is None:
                continue
            names = nondeterministic_in(self.call.trace)
            if not (names and tolerance > 0 and within(pairs, tolerance)):
                raise Stop(Refused.because(Reason.REPLAY_GRADIENT, because=documented(names)))
            verdict = f"within {tolerance:g}"
        return verdict


class Rehearsal:
    """The code once more, eagerly, and backward for each pattern."""

    def __init__(
        self,
        request: Request,
        eager: EagerRun,
        snapshot: Snapshot,
        run_of: Callable[[Pool | None], tuple[PairRun, CapturedRun]],
        patterns: Sequence[Pattern],
    ) -> None:
        backend = request.backend
        hooks = _SavedHooks()
        try:
            snapshot.rewind()
            backend.set_rng_state(eager.random_before)
            with hooks:
                run, captured = run_of(None)
            pairs = [
                (one.detach(), other.detach()) for one, other in zip(eager.after.leaves, captured.left, strict=True)
            ]
            written = list(zip(snapshot.after, snapshot.in_place, strict=True))
            if first_mismatch([*pairs, *written]) is not None:
                raise Stop(RetryLater(later=Later.UNSETTLED, refused=Refused.because(Reason.UNSETTLED_PAIR)))
            if hooks.used:
                raise unpaired(", and it has hooks on saved tensors, as activation checkpointing has")
            recorded = run.recorded()
            self.parts = recorded.parts
            self.references: dict[Pattern, Reference] = {}
            for number, pattern in enumerate(patterns):
                if not _overlaps(recorded, pattern):
                    self.references[pattern] = Reference(request, recorded, pattern, number)
            if not self.references:
                raise unpaired()
            for reference in self.references.values():
                reference.refuse()
            self.read = {
                reference.call.storages[number].cdata
                for reference in self.references.values()
                for number in reference.call.trace.external_storages
            }
        finally:
            snapshot.settle()


def _overlaps(recorded: Recorded, pattern: Pattern) -> bool:
    """True where a gradient is laid out so that nothing can be copied there."""
    return any(
        torch._debug_has_internal_overlap(distinct(torch.empty_strided(output.shape, strides, device="meta")))
        for output, strides in zip(recorded.outputs, pattern, strict=True)
        if strides is not None
    )


class _NoGraph:
    nodes = nbytes = 0

    def replay(self) -> None: ...

    def release(self) -> None: ...


class _Recording(OwnMode):
    def __init__(self, recorder: Recorder, request: Request) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder
        self._positions = request.tracer.positions

    def __torch_dispatch__(
        self, func: OpOverload[..., object], types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):
            raise unpaired(", and it runs a higher-order operator")
        with torch._C.DisableTorchFunction():
            before = self._recorder.before(func, args, kwargs)
            result = issue(func, args, kwargs)
            self._recorder.after(before, func, args, kwargs, result, (None, None), 0)
        return result


class _SavedHooks:
    """Notes whether hooks on saved tensors were set inside: going through the graph would call them."""

    _autograd = vars(torch._C)["_autograd"]

    def __enter__(self) -> None:
        self.used = False
        self._original = original = self._autograd._push_saved_tensors_default_hooks

        def push(*args: object) -> object:
            self.used = True
            return original(*args)

        self._autograd._push_saved_tensors_default_hooks = push

    def __exit__(self, *_: object) -> None:
        self._autograd._push_saved_tensors_default_hooks = self._original
