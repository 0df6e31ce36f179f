"""Hears of other streams that use results in place.

The caching allocator keeps memory that `Tensor.record_stream` names until that stream is done with it; of slots it
knows nothing, so their store must. No attribute of `torch.Tensor` is set for that: what that does to the type cannot be
undone. A kernel of ours for the operator sits in the dispatcher where operators of tensors have none (`BackendSelect`),
just above the device's own, and passes the call on to that.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

from .slots import SlotStore

_stores: weakref.WeakSet[SlotStore] = weakref.WeakSet()
_kernels: list[torch.library.Library] = []


def watch_results(store: SlotStore) -> Callable[[], None]:
    """Tell `store` of the streams on which results in its slots are used; the function returned takes that back.

    The kernel is there once for all stores, and goes with the last.
    """
    if store.device.type != "cuda":
        return lambda: None  # nothing runs on a stream of its own
    _watch(store)
    known = weakref.ref(store)

    def undo() -> None:
        watched = known()
        if watched is not None:
            _stores.discard(watched)
        _settle()

    return undo


def _watch(store: SlotStore) -> None:
    if not _kernels:
        library = torch.library.Library("aten", "IMPL")
        library.impl("record_stream", _record, "BackendSelect", with_keyset=True)
        _kernels.append(library)
    _stores.add(store)
    weakref.finalize(store, _settle).atexit = False


def _settle() -> None:
    """Take the kernel back with the last store. One that is just dying still counts in the length of the set."""
    while _kernels and not any(True for _ in _stores):
        _kernels.pop()._destroy()


def _record(keys: torch._C.DispatchKeySet, tensor: torch.Tensor, stream: torch.Stream) -> None:
    torch.ops.aten.record_stream.default.redispatch(keys.remove(torch._C.DispatchKey.BackendSelect), tensor, stream)
    if tensor.is_cuda and tensor.layout is torch.strided:
        named = {"stream_id": stream.stream_id, "device_index": stream.device_index, "device_type": stream.device_type}
        for store in _stores:
            store.recorded(tensor, torch.cuda.Stream(**named))
