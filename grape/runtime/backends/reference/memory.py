"""The tape's private memory: one arena a backend, shared by all its graphs as the graphs of one CUDA pool share it.

Who owns what:

1. The arena owns blocks. A tensor made in a capture has a storage of its own on one block; when that storage dies,
   during the capture or later, the block is free and the next operator or the next capture may get it.
2. A graph sees memory by address only (`alias`). It keeps no tensor alive, so a storage's weak references and use
   count tell whether a caller still holds it, as on a GPU.
3. Hence an intermediate of one graph may lie where an intermediate *or an output* of a later captured graph lies, and
   a replay of the first overwrites it.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import weakref
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.types import Storage

_ALIGNMENT = 64
_SMALLEST = 512
_COARSE = 2**20


_Bytes: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


class _Lease(_Bytes):
    """The bytes of one storage. Only that storage refers to it, so its death frees the block."""


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    memory: _Bytes

    @classmethod
    def allocate(cls, size: int) -> _Block:
        # Kernels choose vector paths by alignment: torch's own alignment gives the bits of an eager call.
        memory = np.empty(size + _ALIGNMENT, dtype=np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT
        return cls(memory[start : start + size])


def _block_size(nbytes: int) -> int:
    """Coarse classes, so that neighbouring shapes find each other's blocks: powers of two, above 1 MiB whole MiB."""
    if nbytes > _COARSE:
        return math.ceil(nbytes / _COARSE) * _COARSE
    return max(_SMALLEST, 1 << (nbytes - 1).bit_length())


class Arena:
    """Blocks that are kept until `close`; a free one is handed out again, the one freed last first."""

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        self._free: defaultdict[tuple[int, int], list[_Block]] = defaultdict(list)
        self.lane = 0
        """As an allocator gives memory back to the stream that it was made on, a block stays with its lane."""

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks, used and free."""
        return sum(block.memory.nbytes for block in self._blocks.values())

    def owns(self, address: int) -> bool:
        """True where a storage that starts at `address` lies in this arena."""
        return address in self._blocks

    def empty_strided(self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialized tensor on a block; its storage counts exactly the bytes of an eager one."""
        if 0 in shape:
            return torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype, device="cpu")
        last = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        nbytes = (last + 1) * dtype.itemsize
        size = _block_size(nbytes)
        free = self._free[self.lane, size]
        if free:
            block = free.pop()
        else:
            block = _Block.allocate(size)
            self._blocks[block.memory.ctypes.data] = block
        lease = block.memory[:nbytes].view(_Lease)
        weakref.finalize(lease, free.append, block).atexit = False
        storage = torch.frombuffer(lease, dtype=torch.uint8).untyped_storage()
        return over(storage, dtype, 0, shape, stride)

    def close(self) -> None:
        """Forget all blocks. One on which a storage still lives stays readable until that storage dies."""
        self._blocks.clear()
        self._free.clear()


class Room:
    """Implements `Reservation`: pages of the process that the system provides when they are touched."""

    LIMIT = 1 << 30

    def __init__(self, nbytes: int) -> None:
        self._limit = max(self.LIMIT, 4 * nbytes)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        self._pages: mmap.mmap | None = mmap.mmap(-1, self._limit, flags=flags)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        self.nbytes = nbytes

    def grow(self, nbytes: int) -> bool:
        if nbytes > self._limit:
            return False
        self.nbytes = max(self.nbytes, nbytes)
        return True

    def release(self) -> None:
        self._pages = None
        self.nbytes = 0


class Lenders:
    """Memory that others lend to storages that own nothing: rooms and buffers, by address."""

    def __init__(self) -> None:
        self._refs: dict[int, StorageWeakRef | weakref.ref[Room]] = {}

    def add(self, lender: Room | torch.Tensor) -> None:
        self._refs = {address: ref for address, ref in self._refs.items() if not _expired(ref)}
        if isinstance(lender, Room):
            self._refs[lender.address] = weakref.ref(lender)
        else:
            self._refs[lender.data_ptr()] = StorageWeakRef(lender.untyped_storage())

    def of(self, storage: torch.UntypedStorage) -> StorageWeakRef | weakref.ref[Room] | None:
        """Who must live for what a storage holds; None for one that owns its memory, or has it from somebody else."""
        ref = None if storage.resizable() else self._refs.get(storage.data_ptr())
        return None if ref is None or _expired(ref) else ref


def _expired(ref: StorageWeakRef | weakref.ref[Room]) -> bool:
    return ref() is None if isinstance(ref, weakref.ref) else bool(ref.expired())


def over(
    storage: torch.UntypedStorage | Storage,
    dtype: torch.dtype,
    offset: int,
    shape: Sequence[int],
    stride: Sequence[int],
) -> torch.Tensor:
    """A tensor over memory of the CPU."""
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, offset, tuple(shape), tuple(stride))


def at_address(address: int, nbytes: int) -> Storage:
    """Memory that somebody else keeps alive."""
    return torch._C._construct_storage_from_data_pointer(address, torch.device("cpu"), nbytes)


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """The same view of the same bytes, by address only: it keeps nothing alive."""
    held = tensor.untyped_storage()
    storage = at_address(held.data_ptr(), held.nbytes()) if held.nbytes() else held
    twin = over(storage, tensor.dtype, int(tensor.storage_offset()), tensor.shape, tensor.stride())
    return with_bits(twin, conjugate=tensor.is_conj(), negative=tensor.is_neg())


def stand_in(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same layout in a storage of zeros of the same size."""
    nbytes = tensor.untyped_storage().nbytes()
    # numpy maps large zero pages lazily: a stand-in for a big weight costs what its kernel touches.
    zeros = torch.from_numpy(np.zeros(nbytes, dtype=np.uint8)) if nbytes else torch.empty(0, device="cpu")
    twin = over(zeros.untyped_storage(), tensor.dtype, int(tensor.storage_offset()), tensor.shape, tensor.stride())
    return with_bits(twin, conjugate=tensor.is_conj(), negative=tensor.is_neg())


def with_bits(tensor: torch.Tensor, *, conjugate: bool, negative: bool) -> torch.Tensor:
    """The tensor with these bits of a lazy view."""
    tensor = torch._conj(tensor) if conjugate else tensor
    return torch._neg_view(tensor) if negative else tensor


def poison(tensor: torch.Tensor) -> None:
    """Fill with what no computation makes by accident: NaN, or the largest integer of the type, which is odd."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.fill_(math.nan)
    elif tensor.dtype == torch.bool:
        tensor.fill_(True)
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).max)


def bare() -> AbstractContextManager[object]:
    """No dispatch mode, no function mode, no autocast: operators inside reach the CPU's kernels directly."""
    stack = ExitStack()
    stack.enter_context(torch._C.DisableTorchFunction())
    stack.enter_context(torch._C._DisableTorchDispatch())
    stack.enter_context(torch._C._DisableAutocast())
    return stack
