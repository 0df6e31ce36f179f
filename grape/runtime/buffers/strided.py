"""Tensors over memory at fixed addresses, described so that they can be made again; how addresses are aligned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

Strided = tuple[torch.dtype, Sequence[int], Sequence[int], int, int]
"""dtype, shape, stride and offset of a tensor, and the bytes of its storage."""


def strided(tensor: torch.Tensor) -> Strided:
    storage_bytes = int(tensor.untyped_storage().nbytes())
    return tensor.dtype, tensor.shape, tensor.stride(), int(tensor.storage_offset()), storage_bytes


def by_storage(tensors: Iterable[torch.Tensor]) -> dict[int, list[int]]:
    """The numbers of the tensors that lie in one storage, by its identity."""
    found: dict[int, list[int]] = {}
    for index, tensor in enumerate(tensors):
        found.setdefault(tensor.untyped_storage()._cdata, []).append(index)
    return found


def storage_at(address: int, device: torch.device, nbytes: int) -> torch.UntypedStorage:
    """A storage of so many bytes there, which owns nothing."""
    made: Any = torch._C._construct_storage_from_data_pointer(address, device, nbytes)
    assert isinstance(made, torch.UntypedStorage)
    return made


def over(storage: torch.UntypedStorage, how: Strided, device: torch.device) -> torch.Tensor:
    """A tensor of that layout over another storage. Under inference mode it is an inference tensor."""
    dtype, shape, stride, offset, _ = how
    made: torch.Tensor = torch.empty(0, dtype=dtype, device=device).set_(storage, offset, shape, stride)
    return made


_UNIT = {"cuda": 256, "cpu": 64}
"""So many bytes an allocation is a multiple of at least, and no kernel asks for more: cuBLASLt's heuristics look that
far, vectorized loops as far as 32 bytes."""


def unit_of(device: torch.device) -> int:
    """In bytes."""
    return _UNIT.get(device.type, 1)


def alignment(tensor: torch.Tensor, unit: int | None = None) -> int:
    """The part of a tensor's address that chooses kernels: where in 32 bytes it lies, else the largest power of two in
    it.

    Vectorized kernels peel off what comes before 16 or 32 bytes, and sum in another order then. A single element is
    read alone, wherever it lies. `unit` is that of its device, where that is known.
    """
    if unit is None:
        unit = _UNIT.get(tensor.device.type, 1)
    rest = tensor.data_ptr() % unit if tensor.numel() > 1 else 0
    return rest % 32 or rest & -rest
