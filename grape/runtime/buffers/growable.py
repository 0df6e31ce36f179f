"""Storages over memory at a given address that can be resized, as those of ordinary tensors can.

What `torch._C._construct_storage_from_data_pointer` makes owns nothing, which is what a slot needs, but torch refuses
to resize it, and so `resize_`, `out=` of another size and `untyped_storage().resize_()` would raise on a result in
place. torch resizes a storage that has an allocator and says so, in two fields that Python cannot set. Where they lie
is found by looking at storages of both kinds, and tried out once; where that does not succeed, nothing leaves in place.
"""

from __future__ import annotations

import ctypes

import torch

from ..once import tried_once
from .strided import storage_at

_READ = 88
"""So many bytes of a storage are compared: less than it has in any version of torch that Grape supports."""
_WORD = ctypes.sizeof(ctypes.c_void_p)


def is_supported() -> bool:
    """True where `growable` works with this build of torch."""
    return _fields() is not None


def growable(address: int, device: torch.device, nbytes: int) -> torch.UntypedStorage:
    """A storage of `nbytes` bytes at `address`, which it does not own; resized, it gets memory of its own.

    Raises RuntimeError where that is not supported.
    """
    fields = _fields()
    if fields is None:
        raise RuntimeError("this build of torch keeps no storages that Grape could lend")
    return _made(address, device, nbytes, *fields)


def _made(address: int, device: torch.device, nbytes: int, flag: int, allocator: int) -> torch.UntypedStorage:
    ordinary = torch.UntypedStorage(0, device=device)
    made = storage_at(address, device, nbytes)
    found = ctypes.c_void_p.from_address(ordinary._cdata + allocator).value
    if not found or not ordinary.resizable():
        raise RuntimeError("this device has no allocator")
    ctypes.c_void_p.from_address(made._cdata + allocator).value = found
    ctypes.c_ubyte.from_address(made._cdata + flag).value = 1
    return made


@tried_once
def _fields() -> tuple[int, int] | None:
    """Offsets of the flag and of the allocator in a storage, from those of the host: all devices have one class."""
    host = torch.device("cpu")
    owning = [torch.UntypedStorage(size, device=host) for size in (64, 128, 192, 1024)]
    lent = [storage_at(one.data_ptr(), host, one.nbytes()) for one in owning]
    mine, theirs = [list(map(_image, kind)) for kind in (owning, lent)]
    flags = [at for at in _cleared_by_numpy() if {i[at] for i in mine} == {1} and {i[at] for i in theirs} == {0}]

    def words(images: list[bytes], at: int) -> set[bytes]:
        return {image[at : at + _WORD] for image in images}

    nothing = {bytes(_WORD)}
    allocators = [
        at
        for at in range(0, _READ, _WORD)
        if len(words(mine, at)) == 1 and words(mine, at) != nothing and words(theirs, at) == nothing
    ]
    allocators = [at for at in allocators if not any(at <= flag < at + _WORD for flag in flags)]
    if len(flags) != 1 or len(allocators) != 1:
        return None
    return (flags[0], allocators[0]) if _works(flags[0], allocators[0]) else None


def _image(storage: torch.UntypedStorage) -> bytes:
    return ctypes.string_at(storage._cdata, _READ)


def _cleared_by_numpy() -> list[int]:
    """The bytes of a storage that go from one to zero when an array is made of its tensor: torch grows it no more."""
    with torch.inference_mode(False):
        tensor = torch.zeros(64, dtype=torch.uint8, device="cpu")
        storage = tensor.untyped_storage()
        before = _image(storage)
        array = tensor.numpy()
        after = _image(storage)
    del array
    return [at for at in range(_READ) if (before[at], after[at]) == (1, 0)] if not storage.resizable() else []


def _works(flag: int, allocator: int) -> bool:
    with torch.inference_mode(False), torch.no_grad():
        memory = torch.arange(64, dtype=torch.uint8, device="cpu")
        storage = _made(memory.data_ptr(), memory.device, 16, flag, allocator)
        if not storage.resizable() or storage.nbytes() != 16 or storage.data_ptr() != memory.data_ptr():
            return False
        storage.resize_(32)
        moved = storage.data_ptr() != memory.data_ptr() and storage.nbytes() == 32
        return moved and bytes(storage)[:16] == bytes(range(16)) and memory.tolist() == list(range(64))
