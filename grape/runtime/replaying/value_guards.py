"""Does on the host what must happen before a replay: values read early, and inputs brought to the device.

A region may read a value on the host (``if mask.all():``) or send data to the device (``x.to("cuda")``) and still be
captured, when that value depends on the region's inputs alone and through a few operators. Those operators, the
*slice*, run eagerly before each replay. A value that was read is then a guard: another value means another graph.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...model import HostRead, OpRecord, Reason, Refused, TensorView, Trace
from ...model.call import Args, Kwargs
from ...tracing import HOST_READS, RecordedCall, tensors_in

MAX_SLICE = 12
"""A slice with more operators that compute is not a cheap question about the inputs; the region is refused."""


def slice_of(ops: Sequence[OpRecord], ordinal: int, born: Collection[int]) -> tuple[int, ...] | None:
    """The operators that must run again to have operator `ordinal`'s result, itself included; None if they may not.

    They may not where one of them is random or writes memory that existed before the call, where an input was
    written earlier by an operator outside the slice, or where there are more than `MAX_SLICE` that compute.
    """
    needed: set[int] = {ordinal}
    storages = {view.storage for view in ops[ordinal].tensors()}
    for op in reversed(ops[:ordinal]):
        touches = storages.intersection(op.written) or storages.intersection(op.born)
        if not touches:
            continue
        if op.kind == "dynamic" or op.draws or any(number not in born for number in op.written):
            return None
        needed.add(op.ordinal)
        storages.update(view.storage for view in op.tensors())
    if sum(ops[i].kind not in ("view", "host") for i in needed) > MAX_SLICE:
        return None
    return tuple(sorted(needed))


def changed_before(ops: Sequence[OpRecord], ordinal: int, born: Collection[int]) -> bool:
    """True if what operator `ordinal` reads comes from memory that lives on, and that the call has written before."""
    storages = {view.storage for view in ops[ordinal].tensors()}
    for op in reversed(ops[:ordinal]):
        if any(number not in born for number in storages.intersection(op.written)):
            return True
        if storages.intersection(op.born) and op.kind == "view":
            storages.update(view.storage for view in op.tensors())
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class PrologueStep:
    """One operator of value guards. Arguments are `TensorView`s by storage number, or plain values."""

    op: OpRecord
    function: Any
    args: Args
    kwargs: Kwargs


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueGuards:
    """The steps in order; which of them read a value, and which bring a tensor to the device.

    `expected` are the values of the reads at capture. `inputs` are ordinals of the steps whose result is copied into
    a hidden placeholder of the graph.
    """

    steps: tuple[PrologueStep, ...]
    reads: tuple[int, ...]
    expected: tuple[object, ...]
    inputs: tuple[int, ...]
    constants: Mapping[int, torch.Tensor]
    bases: tuple[tuple[int, int], ...]
    """(storage, index of the argument leaf that lies first in it), for the argument storages that the steps read."""

    def run(self, leaves: Sequence[torch.Tensor], externals: Mapping[int, torch.Tensor]) -> Outcome | None:
        """Run the steps on these inputs; `leaves` in order of the layout, `externals` by storage number.

        None where an input cannot be had in the dtype in which the call read it.
        """
        bases = {number: (tensor, 0) for number, tensor in (*externals.items(), *self.constants.items())}
        bases |= {number: (leaves[index], int(leaves[index].storage_offset())) for number, index in self.bases}
        values: list[object] = []
        tensors: list[torch.Tensor] = []
        try:
            for step in self.steps:
                kwargs = {name: _resolve(value, bases) for name, value in step.kwargs.items()}
                result = step.function(*[_resolve(value, bases) for value in step.args], **kwargs)
                if step.op.ordinal in self.reads:
                    values.append(result)
                for view, tensor in zip(step.op.outputs, tensors_in(result), strict=False):
                    if view.storage in step.op.born:
                        bases.setdefault(view.storage, (tensor, int(tensor.storage_offset()) - view.offset))
                if step.op.ordinal in self.inputs:
                    tensors.append(next(iter(tensors_in(result))))
        except _OtherDtype:
            return None
        return Outcome(tuple(values), tuple(tensors))


@dataclass(frozen=True, slots=True)
class Outcome:
    """`values` of the reads in order; `tensors` of the inputs in order."""

    values: tuple[object, ...]
    tensors: tuple[torch.Tensor, ...]


class _OtherDtype(Exception):
    """Raised where what was found for a storage has another dtype than the view that is wanted."""


def _resolve(value: object, bases: Mapping[int, tuple[torch.Tensor, int]]) -> object:
    """An argument of a step; `bases` has of each storage a tensor, and where what was recorded of it begins."""
    if isinstance(value, TensorView):
        tensor, base = bases[value.storage]
        if _name_of(tensor.dtype) != value.dtype:
            raise _OtherDtype
        wanted = (base + value.offset, value.shape, value.stride)
        if (int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride()) == wanted:
            return tensor
        return tensor.as_strided(value.shape, value.stride, base + value.offset)
    if isinstance(value, tuple):
        return [_resolve(item, bases) for item in value]
    return value


def thaw(value: object) -> object:
    """Undo what the recorder did to plain values: ("float", 1.0) is 1.0 again."""
    if isinstance(value, tuple):
        if value == ("float", "-0.0"):
            return -0.0
        if len(value) == 2 and isinstance(value[0], str) and type(value[1]).__name__ == value[0]:
            return value[1]
        return tuple([thaw(item) for item in value])
    return float("nan") if value == "nan" else value


def build_value_guards(call: RecordedCall, leaves: Sequence[torch.Tensor]) -> ValueGuards | Refused:
    """The value guards of a traced call on these argument leaves, or why it cannot have one."""
    trace = call.trace
    given = set(trace.argument_storages) | set(trace.external_storages)
    constants = {op.outputs[0].storage for op in trace.ops if op.name == "aten.lift_fresh.default"}
    dtypes = _dtypes(trace, leaves)
    waits = {read.ordinal: read for read in trace.host_reads}
    needed: set[int] = set()
    reads: list[int] = []
    inputs: list[int] = []
    for op in trace.ops:
        if op.kind in ("compute", "random"):
            if _host_scalar(trace, op, call.born, given, constants):
                return Refused.because(Reason.CPU_NUMBER, op.user or op.inner, operator=op.name)
            continue
        is_read = call.functions[op.ordinal] in HOST_READS
        if not is_read and op.kind not in ("transfer-in", "host-read", "transfer-out", "dynamic"):
            continue
        if op.kind == "dynamic":
            return Refused.because(Reason.DATA_SHAPE, op.user or op.inner, operator=op.name)
        part = slice_of(trace.ops, op.ordinal, call.born)
        if part is None or (not is_read and op.kind in ("host-read", "transfer-out")):
            return refuse_read(waits.get(op.ordinal), op, trace.ops, call.born)
        if not is_read and not _depends_on(trace, part, given):
            continue  # a host constant: its contents are frozen into the graph (GR401)
        if any(view.dtype != dtypes[view.storage] for i in part for view in trace.ops[i].tensors()):
            return refuse_read(waits.get(op.ordinal), op, trace.ops, call.born)
        if any(number in call.constants for i in part for number in trace.ops[i].written):
            return refuse_read(waits.get(op.ordinal), op, trace.ops, call.born)
        needed.update(part)
        (reads if is_read else inputs).append(op.ordinal)
    steps = tuple(
        PrologueStep(
            op=trace.ops[i],
            function=call.functions[i],
            args=tuple(thaw(arg) for arg in trace.ops[i].args),
            kwargs={name: thaw(value) for name, value in trace.ops[i].kwargs if name != "contents"},
        )
        for i in sorted(needed)
        if trace.ops[i].kind != "view" or i in reads
    )
    used = {view.storage for step in steps for view in step.op.tensors()}
    return ValueGuards(
        steps=steps,
        reads=tuple(reads),
        expected=tuple(call.values[i] for i in reads),
        inputs=tuple(inputs),
        constants={number: tensor for number, tensor in call.constants.items() if number in used},
        bases=tuple((number, index) for number, index in _first_leaves(leaves).items() if number in used),
    )


def _first_leaves(leaves: Sequence[torch.Tensor]) -> dict[int, int]:
    """For each argument storage, numbered as the recorder numbers them, the leaf that lies first in it."""
    numbers: dict[int, int] = {}
    first: dict[int, int] = {}
    for index, leaf in enumerate(leaves):
        number = numbers.setdefault(leaf.untyped_storage()._cdata, len(numbers))
        if number not in first or int(leaf.storage_offset()) < int(leaves[first[number]].storage_offset()):
            first[number] = index
    return first


def _host_scalar(
    trace: Trace, op: OpRecord, born: Collection[int], given: Collection[int], constants: Collection[int]
) -> bool:
    """True where a device operator takes a 0-dim CPU tensor whose value is not a constant of the code.

    Such a value becomes a parameter of the kernel, which a graph would freeze.
    """
    device = next((view.device for view in op.outputs), None)
    for view in op.tensors():
        if view.device == "cpu" and device not in (None, "cpu"):
            if view.storage in given:
                return True
            if view.storage in constants and not any(view.storage in earlier.written for earlier in trace.ops):
                continue
            maker = next((o for o in trace.ops[: op.ordinal] if view.storage in (*o.born, *o.written)), None)
            part = slice_of(trace.ops, maker.ordinal, born) if maker is not None else None
            if part is None or _depends_on(trace, part, given):
                return True
    return False


def _depends_on(trace: Trace, part: Sequence[int], given: Collection[int]) -> bool:
    return any(view.storage in given for i in part for view in trace.ops[i].tensors())


def _dtypes(trace: Trace, leaves: Sequence[torch.Tensor]) -> dict[int, str]:
    """The dtype in which each storage is had, from which a view in another one cannot be made with `as_strided`."""
    found = {number: _name_of(leaves[index].dtype) for number, index in _first_leaves(leaves).items()}
    for op in trace.ops:
        for view in (*op.tensors(), *op.outputs):
            found.setdefault(view.storage, view.dtype)
    return found


@functools.cache
def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def refuse_read(
    read: HostRead | None, op: OpRecord, ops: Sequence[OpRecord] = (), born: Collection[int] = ()
) -> Refused:
    """Why a region that waits at `op`, after the operators `ops`, stays eager."""
    if ops and op.kind == "host-read" and changed_before(ops, op.ordinal, born):
        return Refused.because(Reason.CHANGED_NUMBER, op.user or op.inner)
    if op.kind == "transfer-in":
        return Refused.because(Reason.HOST_DATA, op.user, operator=op.name)
    if read is not None and read.construct in ("if", "while", "assert", "ternary", "bool-op"):
        return Refused.because(Reason.BRANCH, op.user, construct=read.construct)
    what = "a number of a tensor" if op.kind == "host-read" else op.name
    return Refused.because(Reason.HOST_READ, op.user or op.inner, what=what)
