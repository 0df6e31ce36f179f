"""Truth values: what Python's `bool(x)` means for a condition that is only known on the device."""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ....model import DECISION
from ....originals import perf_counter_ns
from ....tracing import Tracer
from .flag import Flag, as_predicate
from .lowering import active_lowering


def is_tensor_predicate(value: object) -> TypeGuard[torch.Tensor | Flag]:
    """True where a condition has to be decided on the device, because a capture is under way and it lives there."""
    if isinstance(value, Flag):
        return True
    if not isinstance(value, torch.Tensor):
        return False
    lowering = active_lowering()
    return lowering is not None and lowering.takes(value)


def truth(condition: object) -> bool:
    """Python's `bool(condition)`, outside of a capture.

    While a call is traced, a tensor's value is noted as a decision that a capture can take on the device, and not as
    an operator for which the region would have to be refused.
    """
    if not isinstance(condition, torch.Tensor):
        return bool(condition)
    tracer = next((mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, Tracer)), None)
    recorder = tracer.recorder if tracer is not None else None
    if tracer is None or recorder is None or condition.device.type != recorder.device.type:
        return bool(condition)
    tracer.recorder = None
    start = perf_counter_ns()
    try:
        value = bool(condition)
    finally:
        tracer.recorder = recorder
    user, inner = tracer.positions.find(2)
    frame = user or inner
    recorder.add_decision(value, perf_counter_ns() - start, DECISION, tracer.positions.at(frame) if frame else None)
    return value


def negate(value: object) -> bool | Flag:
    """Python's `not value`."""
    if is_tensor_predicate(value):
        with torch.no_grad():
            return Flag(torch.logical_not(as_predicate(value)))
    return not truth(value)
