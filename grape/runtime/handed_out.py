"""Watches what becomes of results that were handed out in place: methods of tensors that Grape has to hear of.

`resize_` and its like: such a result grows as any tensor does (`resizing`). `record_stream`: the caching allocator
keeps memory that another stream uses; of slots it knows nothing, so their store must.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from .resizing import make_room_for_sizes, make_room_in_storage, make_room_like
from .slots import SlotStore

__all__ = ["watch_results"]

_stores: weakref.WeakSet[SlotStore] = weakref.WeakSet()
_patched: list[Callable[[], None]] = []


def watch_results(store: SlotStore) -> Callable[[], None]:
    """Watch what lives in the slots of `store`; the function that is returned takes that back.

    The methods are patched once for all stores, and as they were after the last.
    """
    if not _patched:
        _patched.extend(
            [
                _patch(torch.Tensor, "resize_", make_room_for_sizes),
                _patch(torch.Tensor, "resize_as_", make_room_like),
                _patch(torch.UntypedStorage, "resize_", make_room_in_storage),
                _patch(torch.Tensor, "record_stream", _record),
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
    """Take the patches back with the last store. One that is just dying still counts in the length of the set."""
    while _patched and not any(True for _ in _stores):
        _patched.pop()()


def _patch(owner: Any, name: str, first: Callable[..., None]) -> Callable[[], None]:
    """Have `owner.name` call `first` with the stores and its arguments before it does what it does."""
    original, inherited = getattr(owner, name), name not in vars(owner)

    @functools.wraps(original, assigned=("__name__", "__qualname__", "__doc__"))
    def method(this: Any, *args: Any, **kwargs: Any) -> Any:
        first(_stores, this, *args, **kwargs)
        return original(this, *args, **kwargs)

    def undo() -> None:
        if getattr(owner, name) is not method:  # somebody replaced it meanwhile
            return
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, original)

    setattr(owner, name, method)
    return undo


def _record(stores: weakref.WeakSet[SlotStore], tensor: Any, stream: Any = None, *, s: Any = None) -> None:
    if tensor.is_cuda and tensor.layout is torch.strided:
        for store in stores:
            store.recorded(tensor, stream if stream is not None else s)
