"""Judges whether a traced call can be captured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from ....model import OpRecord, Position, Reason, Refused, Trace
from ....tracing import COLLECTIVES, COMPILED, HIGHER_ORDER, OTHERWISE, SPARSE, RecordedCall
from ...backends.protocol import Backend
from ...buffers.slots import Slot
from ...replaying.host_draws import host_draws
from ...replaying.looks import first_difference, forms_of
from ...replaying.node_numbers import is_supported
from ...replaying.outputs import Outputs
from ...replaying.value_guards import ValueGuards, build_value_guards
from ...state.operators import has_hidden_kernel
from ...training import gets_gradient, graph_that_leaves, keeps_graph_back, leaves_a_graph, no_pair
from ..request import EagerRun
from ..running.in_step import CapturedRun
from ..stop import Stop

_AUTOGRAD = ("backward", "register_hook")
"""Of these the trace shows all that they do, where the graph of autograd ends inside the region."""
_TORCH = frozenset({"aten", "prim", "prims", "rngprims", "quantized", "c10d", "inductor", "higher_order"})
_PLACES = ("storage_offset", "is_shared", "_base", "_version")


def judge(
    call: RecordedCall,
    leaves: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
    escapes: Sequence[tuple[str, Position | None]],
    backend: Backend,
    *,
    pairs: bool = False,
) -> ValueGuards | Refused:
    """Can a call with this trace and these tensors in its result be captured? Its value guards, or why not.

    `pairs`: its results may carry an autograd graph, for a pair of graphs can serve it.
    """
    trace = call.trace
    if any(keeps_graph_back(tensor) for tensor in results):
        return Refused.because(Reason.VIEW_FORBIDDEN)
    graded = gets_gradient(results, leaves)
    if graded is not None:
        return graded
    if trace.needs_grad and backend.kind == "cuda" and not is_supported():
        return Refused.because(Reason.NODE_NUMBERS)
    if trace.second_order and backend.kind == "cuda":
        return Refused.because(Reason.SECOND_ORDER)
    if trace.needs_grad:
        if pairs and leaves_a_graph(results, leaves):
            kept = no_pair(backend.device, [name for name, _ in escapes])
        else:
            kept = graph_that_leaves(results, leaves)
        if kept is not None:
            return kept
        escapes = [escape for escape in escapes if escape[0] not in _AUTOGRAD]
    refused = (
        _collective(trace)
        or _escaped(escapes)
        or _absolute(trace)
        or _hidden_kernel(trace.ops)
        or _on_other_devices(trace, backend)
    )
    if refused is None and isinstance(draws := host_draws(call), Refused):
        refused = draws
    value_guards = refused or build_value_guards(call, leaves)
    if isinstance(value_guards, Refused):
        return value_guards
    return _writes_on_the_host(trace) or value_guards


def _collective(trace: Trace) -> Refused | None:
    """Other processes wait for an exchange of tensors, and a reducer's hooks may be part of it."""
    op = next((op for op in trace.ops if op.name.startswith(COLLECTIVES)), None)
    if op is None:
        return None
    return Refused.because(Reason.COLLECTIVE, op.user or op.inner, operator=op.name)


def _escaped(escapes: Sequence[tuple[str, Position | None]]) -> Refused | None:
    """The refusal for what was done to a tensor that no operator shows."""
    if not escapes:
        return None
    name, at = escapes[0]
    if name in (COMPILED, HIGHER_ORDER, OTHERWISE):
        return Refused.because(Reason.COMPILED, at, what=name)
    if name == SPARSE:
        return Refused.because(Reason.SPARSE, at, what=name)
    if name in _PLACES:
        return Refused.because(Reason.PLACE, at, name=name)
    return Refused.because(Reason.ESCAPE, at, name=name)


def _absolute(trace: Trace) -> Refused | None:
    for op in trace.ops:
        if op.name.startswith("aten.as_strided") and _is_absolute(op, trace):
            return Refused.because(Reason.ABSOLUTE, op.user or op.inner, operator=op.name)
    return None


def _is_absolute(op: OpRecord, trace: Trace) -> bool:
    """Does `as_strided` with an offset of its own look at an argument? Where that lies in its memory is not guarded."""
    offset = op.args[3] if len(op.args) > 3 else dict(op.kwargs).get("storage_offset")
    return offset is not None and any(view.storage in trace.argument_storages for view in op.tensors())


def _writes_on_the_host(trace: Trace) -> Refused | None:
    """A replay does the device's work only. The second run of a capture does write there, and is put back."""
    known = {*trace.argument_storages, *trace.external_storages}
    for op in trace.ops:
        if op.kind == "host" and known.intersection(op.written):
            return Refused.because(Reason.HOST_WRITE, op.user or op.inner, operator=op.name)
    return None


def _hidden_kernel(ops: Iterable[OpRecord]) -> Refused | None:
    """For the first operator whose kernel is Python of the person's that nobody can look into.

    `torch.library.custom_op` tells which function it runs, and guards look into it; of a kernel that was put into a
    `torch.library.Library` torch tells no more than the file.
    """
    seen: set[str] = set()
    for op in ops:
        namespace, _, name = op.name.partition(".")
        if namespace in _TORCH or op.name in seen:
            continue
        seen.add(op.name)
        if has_hidden_kernel(namespace, name):
            return Refused.because(Reason.HIDDEN_KERNEL, op.user or op.inner, operator=op.name)
    return None


def _on_other_devices(trace: Trace, backend: Backend) -> Refused | None:
    devices = {view.device for op in trace.ops for view in (*op.tensors(), *op.outputs)}
    foreign = {d for d in devices if d.split(":")[0] not in ("cpu", backend.device.type)}
    several = {d for d in devices if d.startswith(backend.device.type)}
    if foreign or len(several) > 1:
        return Refused.because(Reason.DEVICES, devices=", ".join(sorted(devices)))
    return None


def outputs_of(backend: Backend, eager: EagerRun, run: CapturedRun, slots: Mapping[int, Slot]) -> Outputs:
    """The outputs of a replay, in the forms of the eager run. Raises `Stop` where it cannot."""
    looks = [look for look, origin in zip(eager.looks, run.output_spec.origin, strict=True) if origin is None]
    outputs = Outputs(backend, run.made, slots, forms_of(looks))
    if outputs.refused is not None:
        raise Stop(Refused.because(Reason.RESULT_FORM, what=outputs.refused))
    return outputs


def check_looks(eager: EagerRun, replayed: Sequence[torch.Tensor], run: CapturedRun) -> None:
    """Raise `Stop` where Python sees something else of a replay's results than of the eager run's."""
    made = {index: None for index, origin in enumerate(run.output_spec.origin) if origin is None}
    found = first_difference(eager.looks, replayed, made)
    if found is not None:
        where, what = f"`{eager.after.paths[found[0]]}`", found[1]
        raise Stop(Refused.because(Reason.REPLAY_LOOKS, where=where, what=what))
