"""Lets a result that was handed out in place grow, as any tensor does.

A slot lends its memory to storages that own nothing, and torch refuses to resize those. Before such a storage is
resized it gets memory of its own, with what it holds; every view follows, and the slot keeps its address.
"""

from __future__ import annotations

import functools
import itertools
import math
import weakref
from collections.abc import Callable
from typing import Any

import torch

from .slots import Slot, SlotStore, orphans

__all__ = ["watch_resizes"]

_stores: weakref.WeakSet[SlotStore] = weakref.WeakSet()
_patched: list[Callable[[], None]] = []
_use_count = torch._C._storage_Use_Count


def watch_resizes(store: SlotStore) -> Callable[[], None]:
    """Let what lives in the slots of `store` be resized; the function that is returned takes that back.

    torch before 2.13 cannot give a storage other memory: there a tensor grows only if nothing else refers to its
    storage, and `untyped_storage().resize_` still raises.
    """
    if not _patched:
        _patched.extend(
            [
                _patch(torch.Tensor, "resize_", _room_for_sizes),
                _patch(torch.Tensor, "resize_as_", lambda tensor, other, **_: _room(tensor, other.shape)),
                _patch(torch.UntypedStorage, "resize_", _room_in_storage),
            ]
        )
    _stores.add(store)
    weakref.finalize(store, _settle).atexit = False
    known = weakref.ref(store)

    def undo() -> None:
        watched = known()
        if watched is not None:
            _stores.discard(watched)
        _settle()

    return undo


def _settle() -> None:
    """Take the patches back with the last store."""
    while _patched and not _stores:
        _patched.pop()()


def _patch(owner: Any, name: str, first: Callable[..., None]) -> Callable[[], None]:
    """Have `owner.name` call `first` with its arguments before it does what it does."""
    original, inherited = getattr(owner, name), name not in vars(owner)

    @functools.wraps(original, assigned=("__name__", "__qualname__", "__doc__"))
    def resize(this: Any, *args: Any, **kwargs: Any) -> Any:
        first(this, *args, **kwargs)
        return original(this, *args, **kwargs)

    def undo() -> None:
        if getattr(owner, name) is not resize:  # somebody replaced it meanwhile
            return
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, original)

    setattr(owner, name, resize)
    return undo


def _room_for_sizes(tensor: Any, *sizes: Any, size: Any = None, **_: Any) -> None:
    wanted = size if size is not None else sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    _room(tensor, wanted)


def _room(tensor: Any, sizes: Any) -> None:
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
        return
    storage = tensor.untyped_storage()
    try:
        needed = (int(tensor.storage_offset()) + math.prod(sizes)) * tensor.itemsize
    except TypeError:
        return  # torch says what is wrong with the sizes
    if storage.resizable() or needed <= storage.nbytes():
        return
    slot = _slot_of(storage)
    if slot is None:
        return
    if hasattr(storage, "_swap_data_ptr_"):
        _own_memory(storage, slot)
    elif _use_count(storage._cdata) <= slot.idle + 1:  # this tensor alone
        with torch.no_grad():
            tensor.set_(_copy(storage), tensor.storage_offset(), tensor.shape, tensor.stride())


def _room_in_storage(storage: Any, nbytes: Any) -> None:
    if not storage.resizable() and hasattr(storage, "_swap_data_ptr_"):
        slot = _slot_of(storage)
        if slot is not None:
            _own_memory(storage, slot)


def _slot_of(storage: Any) -> Slot | None:
    """The slot that the storage lives in; None for memory that is not Grape's."""
    here, cdata = storage.data_ptr(), storage._cdata
    every = itertools.chain(*_stores, orphans())
    return next((slot for slot in every if slot.cdata == cdata and slot.address == here), None)


def _own_memory(storage: Any, slot: Slot) -> None:
    storage._swap_data_ptr_(_copy(storage))
    slot.forget_template(storage._cdata)


def _copy(storage: Any) -> Any:
    fresh = torch.UntypedStorage(storage.nbytes(), device=storage.device)
    fresh.copy_(storage)
    return fresh
