"""What an operator brings from the CPU's memory to the device, and where that came from."""

from __future__ import annotations

from typing import Literal

from ..model import OpRecord, TensorView, Trace

__all__ = ["Origin", "origin", "sources"]

Origin = Literal["argument", "constant", "computed", "outside"]


def sources(op: OpRecord) -> tuple[TensorView, ...]:
    """The tensors among the arguments that lie on another device than the result; at least one."""
    target = op.outputs[0].device if op.outputs else ""
    tensors = tuple(op.tensors())
    return tuple(view for view in tensors if view.device != target) or tensors[-1:]


def origin(op: OpRecord, trace: Trace) -> Origin:
    """Where the bytes come from: an argument, Python values, an operator on the CPU, or a tensor from outside."""
    storages = {view.storage for view in sources(op)}
    if storages & set(trace.argument_storages):
        return "argument"
    if not storages:
        return "constant"
    made: Origin = "outside"
    for earlier in trace.ops:
        if earlier.ordinal >= op.ordinal:
            break
        if any(view.storage in storages for view in earlier.outputs):
            if earlier.name.startswith("aten.lift_fresh"):
                return "constant"
            if earlier.born:
                made = "computed"
    return made
