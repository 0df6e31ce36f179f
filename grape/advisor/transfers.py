"""Tensors that operators bring from the CPU's memory to the device, and where those came from."""

from __future__ import annotations

from typing import Literal

from ..model import OpRecord, TensorView, Trace
from ..model.kept import Kept

Origin = Literal["argument", "constant", "computed", "outside"]
"""An argument of the region; Python values; operators on the CPU; a CPU tensor that was there before."""

_LIFT = "aten.lift_fresh"
"""The operator by which a tensor made from Python values enters a trace: before it is sent, after, or instead."""


def sources(op: OpRecord) -> tuple[TensorView, ...]:
    """The tensors among the arguments that lie on another device than the result, else the last one."""
    target = op.outputs[0].device if op.outputs else ""
    tensors = tuple(op.tensors())
    return tuple(view for view in tensors if view.device != target) or tensors[-1:]


def origin(op: OpRecord, trace: Trace) -> Origin | None:
    """Where the operator of the trace took what it brings to the device; None where it brings nothing."""
    return _found(trace)[0].get(op.ordinal)


def incoming(trace: Trace) -> tuple[OpRecord, ...]:
    """The operators of the trace that bring something to the device."""
    return _found(trace)[1]


@Kept
def _found(trace: Trace) -> tuple[dict[int, Origin], tuple[OpRecord, ...]]:
    known = _origins(trace)
    return known, tuple(op for op in trace.ops if op.ordinal in known) if known else ()


def _origins(trace: Trace) -> dict[int, Origin]:
    found: dict[int, Origin] = {}
    made: dict[int, Origin] = dict.fromkeys(trace.argument_storages, "argument")
    sent: dict[int, int] = {}
    for op in trace.ops:
        if op.kind == "transfer-in":
            results = {view.storage for view in op.outputs}
            origins = {made.get(view.storage, "outside") for view in sources(op)} or {"constant"}
            found[op.ordinal] = next(o for o in ("argument", "constant", "computed", "outside") if o in origins)
            sent.update(dict.fromkeys(results, op.ordinal))
        elif op.name.startswith(_LIFT):
            for storage in {view.storage for view in op.outputs}:
                _lift(op, storage, found, made, sent)
        for storage in op.born:
            made.setdefault(storage, "computed")
    return found


def _lift(op: OpRecord, storage: int, found: dict[int, Origin], made: dict[int, Origin], sent: dict[int, int]) -> None:
    if storage in sent:
        found[sent[storage]] = "constant"
    elif storage not in made and op.kind != "host":
        found[op.ordinal] = "constant"
    made.setdefault(storage, "constant")
