"""Truth values: what Python's `bool(x)` means for a condition that is only known on the device."""

from __future__ import annotations

import time
from typing import Any, NoReturn

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ....model import DECISION
from ....tracing import Tracer
from .lowering import active_lowering, refuse

__all__ = ["Flag", "as_predicate", "is_tensor_predicate", "negate", "put_predicate", "truth"]


class Flag:
    """A Python truth value that is only known on the device: a 0-dim bool tensor that can be tested and nothing else.

    It stands where the person's code has `True` or `False` (`found = True` in a branch, `not x`, `break`). It is no
    tensor on purpose: `True + True` is 2, and a bool tensor would give another result.
    """

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def _refuse(self, *_: Any) -> NoReturn:
        raise refuse("a truth value that is only known on the device is used as a Python value", "GR102")

    __bool__ = __int__ = __float__ = __index__ = __hash__ = __eq__ = __ne__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = __neg__ = _refuse
    __str__ = __repr__ = __format__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()


def is_tensor_predicate(value: Any) -> bool:
    """True where a condition has to be decided on the device, because a capture is under way and it lives there."""
    if isinstance(value, Flag):
        return True
    if not isinstance(value, torch.Tensor):
        return False
    lowering = active_lowering()
    return lowering is not None and lowering.takes(value)


def as_predicate(value: Flag | torch.Tensor) -> torch.Tensor:
    """The 0-dim bool tensor that is true where Python's `bool(value)` is; computed on the device."""
    if isinstance(value, Flag):
        return value.tensor
    if value.numel() != 1:
        raise refuse(f"a tensor of shape {tuple(value.shape)} has no truth value", "GR102")
    with torch.no_grad():
        scalar = value.detach().reshape(())
        # A copy: the tensor may be overwritten inside the block that it decides on. A kernel makes it, because a clone
        # is a memcpy node, which takes several times as long in a body on CUDA.
        return scalar != 0


def put_predicate(value: Flag | torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """Write `as_predicate(value)` to `place`, a 0-dim bool tensor, and return it."""
    tensor = value.tensor if isinstance(value, Flag) else value
    if tensor.numel() != 1:
        raise refuse(f"a tensor of shape {tuple(tensor.shape)} has no truth value", "GR102")
    with torch.no_grad():
        return torch.ne(tensor.detach().reshape(()), 0, out=place)


def truth(condition: Any) -> bool:
    """Python's `bool(condition)`, outside of a capture.

    While a call is traced, a tensor's value is noted as a decision that a capture can take on the device, and not as
    an operator for which the region would have to be refused.
    """
    if not isinstance(condition, torch.Tensor):
        return bool(condition)
    modes: Any = _get_current_dispatch_mode_stack()
    tracer = next((mode for mode in modes if isinstance(mode, Tracer)), None)
    recorder = tracer.recorder if tracer is not None else None
    if tracer is None or recorder is None or condition.device.type != recorder.device.type:
        return bool(condition)
    tracer.recorder = None
    start = time.perf_counter_ns()
    try:
        value = bool(condition)
    finally:
        tracer.recorder = recorder
    user, inner = tracer.positions.find(2)
    frame = user or inner
    recorder.add_decision(
        value, time.perf_counter_ns() - start, DECISION, tracer.positions.at(frame) if frame else None
    )
    return value


def negate(value: Any) -> Any:
    """Python's `not value`."""
    if is_tensor_predicate(value):
        with torch.no_grad():
            return Flag(torch.logical_not(as_predicate(value)))
    return not (truth(value) if isinstance(value, torch.Tensor) else value)
