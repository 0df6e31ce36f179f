"""Tensors over memory at fixed addresses, described so that they can be made again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["Strided", "over", "strided"]

Strided = tuple[torch.dtype, Sequence[int], Sequence[int], int, int]
"""dtype, shape, stride and offset of a tensor, and the bytes of its storage."""


def strided(tensor: torch.Tensor) -> Strided:
    storage_bytes = int(tensor.untyped_storage().nbytes())
    return tensor.dtype, tensor.shape, tensor.stride(), int(tensor.storage_offset()), storage_bytes


def over(storage: Any, how: Strided, device: torch.device) -> torch.Tensor:
    """A tensor of that layout over another storage. Under inference mode it is an inference tensor."""
    dtype, shape, stride, offset, _ = how
    made: torch.Tensor = torch.empty(0, dtype=dtype, device=device).set_(storage, offset, shape, stride)
    return made
