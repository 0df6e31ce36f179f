"""Chooses which results of a capture are written straight into slots, to be handed out in place.

The operator that makes such a result runs in its `out=` form during capture. That is the same kernel with another
address; and as every capture, it is used only if a replay gives the bits of the eager call.
"""

from __future__ import annotations

import functools

import torch
from torch._ops import OpOverload

from ....tracing import RecordedCall
from ...buffers.placeholders import Placeholders, extent
from ...buffers.slots import Slot
from ...guarding.structure import Layout
from ..request import Request


@functools.cache
def out_form(function: object) -> OpOverload[..., object] | None:
    """The overload of an operator that takes the same arguments and one `out`; None where there is none."""
    if not isinstance(function, OpOverload):
        return None
    wanted = [(argument.name, str(argument.type)) for argument in function._schema.arguments]
    for name in function.overloadpacket.overloads():
        form: OpOverload[..., object] = getattr(function.overloadpacket, name)
        outs = [argument for argument in form._schema.arguments if argument.is_out]
        rest = [(argument.name, str(argument.type)) for argument in form._schema.arguments if not argument.is_out]
        if len(outs) != 1 or outs[0].name != "out" or rest != wanted:
            continue
        # Not a generated one: it makes a result elsewhere and copies it.
        if not torch._C._dispatch_has_kernel_for_dispatch_key(form.name(), "CompositeExplicitAutograd"):
            return form
    return None


def redirect(
    call: RecordedCall, after: Layout, request: Request, placeholders: Placeholders
) -> dict[int, tuple[torch.Tensor, Slot]]:
    """By ordinal of the operator: the tensor in a slot that is to receive its result, and the slot.

    `after` is the layout of (result, args, kwargs) after the eager call. A result is redirected where `request` names
    its path, one operator allocated it and nothing else, and a slot of its role is free and none of the inputs.
    Raises torch.OutOfMemoryError.
    """
    numbers = {reference.cdata: number for number, reference in enumerate(call.storages) if number in call.born}
    makers = {number: op for op in call.trace.ops for number in op.born}
    taken = {id(slot) for slot in placeholders.slots.values()}
    written = {id(slot) for entry in request.next for slot in entry.outputs.slots}
    read = {id(slot) for entry in request.next for slot in entry.placeholders.slots.values()}
    chosen: dict[int, tuple[torch.Tensor, Slot]] = {}
    seen: set[int] = set()
    for leaf, path in zip(after.leaves, after.paths, strict=True):
        storage = leaf.untyped_storage()
        number = numbers.get(storage._cdata)
        if number is None or number in seen or leaf.device.type != request.backend.device.type:
            continue
        seen.add(number)
        op = makers[number]
        if path not in request.in_place or op.kind != "compute" or len(op.outputs) != 1 or leaf.numel() == 0:
            continue
        view, function = op.outputs[0], call.functions[op.ordinal]
        probe = torch.empty_strided(view.shape, view.stride, dtype=getattr(torch, view.dtype), device="meta")
        if function in request.plain:
            continue
        if view.offset or extent(probe) * probe.itemsize != storage.nbytes() or out_form(function) is None:
            continue
        sides = [request.store.slot((request.owner, "out", path, side), storage.nbytes()) for side in (0, 1)]
        earlier = request.store.outgrown((request.owner, "out", path))
        sides += [slot for slot in earlier if id(slot) in read and slot.hold(storage.nbytes())]
        # Not where the next graph writes, for this result will still be alive then; best where it reads.
        if all(id(slot) in taken or id(slot) in written - read or slot.occupied for slot in sides):
            sides.append(request.store.vacant((request.owner, "out", path, "more"), storage.nbytes()))
        free = [slot for slot in sides if id(slot) not in taken and not slot.occupied]
        if free:
            slot = min(free, key=lambda one: (id(one) in written) - (id(one) in read))
            target = torch.empty(0, dtype=probe.dtype, device=request.backend.device)
            target.set_(slot.storage(storage.nbytes()), 0, probe.shape, probe.stride())
            chosen[op.ordinal] = (target, slot)
            taken.add(id(slot))
    return chosen
