"""Sees every operator that a thread dispatches, and hands it to the recorder in charge.

The tracer is a `TorchDispatchMode`: it sits below autograd, sees operators of libraries as well, and changes nothing.
It costs 10-20 us an operator, so it is pushed only around the few calls that are traced.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _pop_mode, _push_mode

from ..model import OpRecord, Position
from .constructs import construct_of
from .positions import PositionFinder
from .recorder import HOST_READS, Recorder, RecordedCall

__all__ = ["EscapeWatch", "Tracer", "record"]

_ESCAPES = frozenset(
    {
        torch.Tensor.numpy,
        torch.Tensor.tolist,
        torch.Tensor.__array__,
        torch.Tensor.data_ptr,
        torch.Tensor.untyped_storage,
        torch.Tensor.__dlpack__,
        torch.Tensor.backward,
        torch.Tensor.register_hook,
    }
)
"""What takes a tensor out of the dispatcher's sight: values, addresses and callbacks that no trace shows."""
_WAITS = frozenset({"host-read", "transfer-out"})


class EscapeWatch(TorchFunctionMode):  # type: ignore[misc]
    """Notes calls that read a tensor behind the dispatcher's back into the recorder in charge."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        recorder = self._tracer.recorder
        if recorder is not None and func in _ESCAPES:
            user, inner = self._tracer.positions.find(1)
            frame = user or inner
            recorder.escapes.append((func.__name__, self._tracer.positions.at(frame) if frame else None))
        return func(*args, **(kwargs or {}))


class Tracer(TorchDispatchMode):  # type: ignore[misc]
    """Pushed and popped by `start` and `stop`; without a recorder it passes operators through.

    `on_wait` is called after an operator for which the host waited, with its record.
    """

    def __init__(self, positions: PositionFinder) -> None:
        super().__init__()
        self.positions = positions
        self.recorder: Recorder | None = None
        self.on_wait: Callable[[OpRecord], None] | None = None
        self.active = False

    def start(self, recorder: Recorder) -> None:
        """Record into `recorder` from now on."""
        self.recorder = recorder
        if not self.active:
            _push_mode(self)
            self.active = True

    def stop(self) -> None:
        """Stop recording; leave the mode stack if this mode is on top of it (else it passes operators through)."""
        self.recorder = None
        self.on_wait = None
        if self.active and _get_current_dispatch_mode() is self:
            _pop_mode()
            self.active = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        recorder = self.recorder
        if recorder is None or recorder.overflowed:
            return func(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunction():
            return self._trace(recorder, func, args, kwargs or {})

    def _trace(self, recorder: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = recorder.before(func, args, kwargs)
        start = time.perf_counter_ns()
        result = func(*args, **kwargs)
        elapsed = time.perf_counter_ns() - start
        user, inner = self.positions.find(2)
        at = (self.positions.at(user) if user else None, self.positions.at(inner) if inner else None)
        record = recorder.after(before, func, args, kwargs, result, at, elapsed)
        if record.kind in _WAITS or func in HOST_READS:
            if record.kind in _WAITS:
                recorder.add_read(record, result, construct_of(inner) if inner else None, at[0] or at[1])
            if self.on_wait is not None:
                self.on_wait(record)
        return result


def record(
    tracer: Tracer, device: torch.device, leaves: Sequence[torch.Tensor], body: Callable[[], Any], keep: bool = False
) -> tuple[Any, RecordedCall, tuple[tuple[str, Position | None], ...]]:
    """Run `body` once under the tracer; its result, what it dispatched, and what escaped the dispatcher's sight."""
    recorder = Recorder(device, leaves, keep=keep)
    start = time.perf_counter_ns()
    tracer.start(recorder)
    try:
        with EscapeWatch(tracer):
            result = body()
    finally:
        tracer.stop()
    return result, recorder.finish(time.perf_counter_ns() - start), tuple(recorder.escapes)
