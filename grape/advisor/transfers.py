"""What an operator brings from the CPU's memory to the device, and where that came from."""

from __future__ import annotations

from typing import Literal

from ..model import CellEvidence, OpRecord, TensorView, Trace

__all__ = ["Origin", "Origins", "sources"]

Origin = Literal["argument", "constant", "computed", "outside"]
"""An argument of the region; Python values; operators on the CPU; a CPU tensor that was there before."""

_LIFT = "aten.lift_fresh"
"""The operator by which a tensor made from Python values enters a trace: before it is sent, after, or instead."""


def sources(op: OpRecord) -> tuple[TensorView, ...]:
    """The tensors among the arguments that lie on another device than the result, else the last one."""
    target = op.outputs[0].device if op.outputs else ""
    tensors = tuple(op.tensors())
    return tuple(view for view in tensors if view.device != target) or tensors[-1:]


class Origins:
    """Where the operators of a cell's traces that bring data to the device took it from."""

    def __init__(self, evidence: CellEvidence) -> None:
        traces = [trace for region in evidence.regions for trace in region.traces]
        self._known = {id(trace): _origins(trace) for trace in (*traces, *([evidence.trace] if evidence.trace else []))}

    def of(self, op: OpRecord, trace: Trace) -> Origin | None:
        """None for an operator that brings nothing."""
        return self._known[id(trace)].get(op.ordinal)


def _origins(trace: Trace) -> dict[int, Origin]:
    found: dict[int, Origin] = {}
    made: dict[int, Origin] = dict.fromkeys(trace.argument_storages, "argument")
    sent: dict[int, int] = {}
    for op in trace.ops:
        results = {view.storage for view in op.outputs}
        if op.kind == "transfer-in":
            origins = {made.get(view.storage, "outside") for view in sources(op)} or {"constant"}
            found[op.ordinal] = next(o for o in ("argument", "constant", "computed", "outside") if o in origins)
            sent.update(dict.fromkeys(results, op.ordinal))
        elif op.name.startswith(_LIFT):
            for storage in results:
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
