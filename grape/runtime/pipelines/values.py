"""What goes from stage to stage: tensors, and containers of them.

Whoever gets a value gets a copy of its tensors, so that a stage may go on with the next sample while the next stage
still reads this one. Tensors that share memory share it in the copy, at the same distances, with the same strides and
the same alignment: no operator can tell the copy from what it was made of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.utils import _pytree as pytree

from ...errors import UsageError

ALIGNMENT = 512
"""Bytes. The caching allocator begins every block at a multiple of it."""

Taker = Callable[[torch.Tensor], torch.Tensor]
"""Memory for a copy of a tensor: the same sizes, strides and dtype, nothing written yet."""


def like(tensor: torch.Tensor) -> torch.Tensor:
    """Memory on the current stream of the tensor's device."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def copied(value: object, take: Taker = like) -> object:
    """`value` with every tensor in memory of its own, copied on the current stream, without a history of autograd.

    Containers are made anew. Raises `UsageError` for an object that holds tensors and is no container.
    """
    with torch.no_grad():
        if type(value) is torch.Tensor and _is_whole(value):
            return take(value).copy_(value)
        return _mapped(value, lambda group: _copies(group, take))


def moved(value: object, device: torch.device, *, chosen: bool) -> object:
    """`value` with its tensors on `device`, copied there on the current streams. `chosen`: those of the CPU as well."""

    def go(group: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        where = group[0].device
        if where == device or not (chosen or (where.type == "cuda" and device.type == "cuda")):
            return list(group)
        wait = device.type == "cpu"  # the CPU reads at once what it was given
        return _copies(
            group,
            lambda tensor: torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device),
            non_blocking=not wait,
        )

    with torch.no_grad():
        return _mapped(value, go)


def devices_in(value: object) -> set[torch.device]:
    """Those of its tensors."""
    leaves = (value,) if isinstance(value, torch.Tensor) else pytree.tree_leaves(value)
    return {leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)}


def detached(value: object) -> object:
    """`value` without a history of autograd: the next stage has one of its own."""
    if isinstance(value, torch.Tensor):
        return value.detach() if value.requires_grad else value
    leaves, spec = pytree.tree_flatten(value)
    if not any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves):
        return value
    known: dict[int, object] = {}
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            known.setdefault(id(leaf), leaf.detach())
    return pytree.tree_unflatten([known.get(id(leaf), leaf) for leaf in leaves], spec)


def _mapped(value: object, copy: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]) -> object:
    """`value` with `copy` of its tensors, those that share memory together."""
    leaves, spec = pytree.tree_flatten(value)
    groups: dict[object, dict[int, torch.Tensor]] = {}
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            groups.setdefault(_memory_of(leaf), {})[id(leaf)] = leaf
        else:
            _look_into(leaf)
    made: dict[int, torch.Tensor] = {}
    for group in groups.values():
        made.update(zip(group, copy(list(group.values())), strict=True))
    return pytree.tree_unflatten([made.get(id(leaf), leaf) for leaf in leaves], spec)


def _copies(group: Sequence[torch.Tensor], take: Taker, *, non_blocking: bool = False) -> list[torch.Tensor]:
    """Copies of tensors of one memory."""
    first = group[0]
    if len(group) == 1 and (_is_whole(first) or not _is_plain(first)):
        return [take(first).copy_(first, non_blocking) if _is_plain(first) else _unusual(first, take)]
    if not all(map(_is_plain, group)):
        raise UsageError("a pipeline cannot copy tensors that share memory where one is no plain strided tensor")
    spans = [_span(tensor) for tensor in group]
    start = min(low for low, _ in spans) // ALIGNMENT * ALIGNMENT
    nbytes = max(high for _, high in spans) - start
    there = torch.empty(0, dtype=torch.uint8, device=first.device).set_(first.untyped_storage(), start, (nbytes,), (1,))
    copy = take(there).copy_(there, non_blocking)
    return [
        torch.empty(0, dtype=tensor.dtype, device=copy.device).set_(
            copy.untyped_storage(), (low - start) // tensor.element_size(), tensor.size(), tensor.stride()
        )
        for tensor, low in zip(group, (_first_byte(tensor) for tensor in group), strict=True)
    ]


def _unusual(tensor: torch.Tensor, take: Taker) -> torch.Tensor:
    """A sparse, nested, quantized or conjugated tensor, or one of a class of somebody's."""
    if take is like:
        return tensor.detach().clone()
    target = take(torch.empty(0, device=tensor.device)).device
    return tensor.detach().clone().to(target)


def _memory_of(tensor: torch.Tensor) -> object:
    """What tensors have in common that share memory."""
    return int(tensor.untyped_storage()._cdata) if _is_plain(tensor) else id(tensor)


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def _is_whole(tensor: torch.Tensor) -> bool:
    """True where a copy of the elements alone is like the tensor in all respects."""
    return (
        _is_plain(tensor)
        and tensor.storage_offset() * tensor.element_size() % ALIGNMENT == 0
        and (tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last))
    )


def _first_byte(tensor: torch.Tensor) -> int:
    return int(tensor.storage_offset()) * tensor.element_size()


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of its memory that a tensor can reach, from and to."""
    low = _first_byte(tensor)
    if not tensor.numel():
        return low, low
    reach = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return low, low + (reach + 1) * tensor.element_size()


def _look_into(leaf: object) -> None:
    """Refuse an object that holds tensors: they would be written while somebody still reads them."""
    held = getattr(leaf, "__dict__", None)
    if held and not isinstance(leaf, type) and any(isinstance(one, torch.Tensor) for one in held.values()):
        raise UsageError(
            f"a pipeline cannot hand on a '{type(leaf).__name__}', which holds tensors; "
            "hand on tuples, lists and dicts of tensors, or register the class in torch.utils._pytree"
        )
