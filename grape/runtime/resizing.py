"""Lets a result that was handed out in place grow, as any tensor does.

A slot lends its memory to storages that own nothing, and torch refuses to resize those. Before such a storage is
resized it gets memory of its own, with what it holds; every view follows, and the slot keeps its address.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import torch

from .slots import Slot, SlotStore, orphans

__all__ = ["Stores", "make_room_for_sizes", "make_room_in_storage", "make_room_like"]

Stores = Iterable[SlotStore]
"""All whose slots results may live in."""

_use_count = torch._C._storage_Use_Count


def make_room_for_sizes(stores: Stores, tensor: Any, *sizes: Any, size: Any = None, **_: Any) -> None:
    """Before `tensor.resize_(...)`.

    torch before 2.13 cannot give a storage other memory: there a tensor grows only if nothing else refers to its
    storage, and `untyped_storage().resize_` still raises.
    """
    _room(stores, tensor, size if size is not None else _one_or_all(sizes))


def make_room_like(stores: Stores, tensor: Any, other: Any, **_: Any) -> None:
    """Before `tensor.resize_as_(other)`."""
    _room(stores, tensor, other.shape)


def make_room_in_storage(stores: Stores, storage: Any, nbytes: Any) -> None:
    """Before `storage.resize_(nbytes)`."""
    if not storage.resizable() and hasattr(storage, "_swap_data_ptr_"):
        slot = _slot_of(stores, storage)
        if slot is not None:
            _own_memory(storage, slot)


def _one_or_all(sizes: tuple[Any, ...]) -> Any:
    return sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes


def _room(stores: Stores, tensor: Any, sizes: Any) -> None:
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
        return
    storage = tensor.untyped_storage()
    try:
        needed = (int(tensor.storage_offset()) + math.prod(sizes)) * tensor.itemsize
    except TypeError:
        return  # torch says what is wrong with the sizes
    if storage.resizable() or needed <= storage.nbytes():
        return
    slot = _slot_of(stores, storage)
    if slot is None:
        return
    if hasattr(storage, "_swap_data_ptr_"):
        _own_memory(storage, slot)
    elif _use_count(storage._cdata) <= slot.idle + 1:  # this tensor alone
        with torch.no_grad():
            tensor.set_(_copy(storage), tensor.storage_offset(), tensor.shape, tensor.stride())


def _slot_of(stores: Stores, storage: Any) -> Slot | None:
    """The slot that the storage lives in; None for memory that is not Grape's."""
    here, cdata = storage.data_ptr(), storage._cdata
    every = itertools.chain(*stores, orphans())
    return next((slot for slot in every if slot.cdata == cdata and slot.address == here), None)


def _own_memory(storage: Any, slot: Slot) -> None:
    storage._swap_data_ptr_(_copy(storage))
    slot.forget_template(storage._cdata)


def _copy(storage: Any) -> Any:
    fresh = torch.UntypedStorage(storage.nbytes(), device=storage.device)
    fresh.copy_(storage)
    return fresh
