"""Records a lowered program without running it: which operators all its branches issue, and how to lower each.

The eager trace of a call shows the way that the call took. A graph holds every way; what all of them read, write and
draw is asked here, of a capture that is thrown away. Nothing executes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ...model.call import Args, Kwargs
from ...tracing import OwnMode, PositionFinder, RecordedCall, Recorder, issue
from ..backends.operators import Function
from ..backends.protocol import Backend, CaptureFailed
from .costs.calibration import node_costs
from .costs.costs import Choice, choose
from .loop_state import Key, Unsuited
from .lowering.node import NodeLowering

_ATTEMPTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """The operators of all branches, and what each decision becomes."""

    call: RecordedCall
    choices: Mapping[Key, Choice]


class _Recording(OwnMode):
    def __init__(self, recorder: Recorder, positions: PositionFinder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder
        self._positions = positions
        self._paused = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def __torch_dispatch__(
        self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        kwargs = kwargs or {}
        if self._paused or not isinstance(func, torch._ops.OpOverload):
            return issue(func, args, kwargs)
        with torch._C.DisableTorchFunction():
            before = self._recorder.before(func, args, kwargs)
            result = issue(func, args, kwargs)
            at = [self._positions.at(frame) if frame else None for frame in self._positions.find(1)]
            self._recorder.after(before, func, args, kwargs, result, (at[0], at[1]), 0)
            return result


def survey(
    backend: Backend,
    call: Callable[[], object],
    tensors: Sequence[torch.Tensor],
    positions: PositionFinder,
) -> Surveyed:
    """Record what `call` issues on its argument `tensors`; raises `CaptureFailed` where no lowering carries it out."""

    def record(choices: Mapping[Key, Choice]) -> tuple[NodeLowering, RecordedCall]:
        recorder = Recorder(backend.device, tensors)
        recording = _Recording(recorder, positions)
        lowering = NodeLowering(backend, choices, recording.paused)

        def body() -> None:
            with recording, lowering.active():
                call()

        graph, _ = backend.capture(body)
        graph.release()
        return lowering, recorder.finish()

    choices: dict[Key, Choice] = {}
    for _ in range(_ATTEMPTS):
        try:
            lowering, recorded = record(choices)
            break
        except Unsuited as unsuited:
            if unsuited.key in choices:
                raise
            choices[unsuited.key] = "select"
    else:
        raise CaptureFailed("GR102", "more loops than can be tried out, whose Python state changes")
    costs = node_costs(backend)
    cheaper = {key: choose(costs, works) for key, works in lowering.works.items()}
    wanted: dict[Key, Choice] = {**{key: choice for key, choice in cheaper.items() if choice == "select"}, **choices}
    if backend.conditional_bodies and wanted != choices:
        try:
            return Surveyed(call=record(wanted)[1], choices=wanted)
        except CaptureFailed:
            pass  # what a node can do, a select sometimes cannot
    return Surveyed(call=recorded, choices=choices)
