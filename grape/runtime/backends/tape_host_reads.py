"""Reads of a tensor's value that never reach the dispatcher are refused here, while a capture runs.

On a GPU `.tolist()` or `.numpy()` is a copy that waits; on the CPU it is a look into memory that no dispatch mode sees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...tracing import UnseenMode
from .protocol import CaptureFailed

__all__ = ["HostReads"]

_READS = frozenset(
    {
        torch.Tensor.tolist,
        torch.Tensor.numpy,
        torch.Tensor.__array__,
        torch.Tensor.__dlpack__,
        torch.Tensor.__repr__,
        torch.Tensor.__format__,
    }
)


class HostReads(UnseenMode):
    """While it is active in this thread, reading a tensor's values raises `CaptureFailed` GR101 and tells `refused`."""

    def __init__(self, refused: Callable[[CaptureFailed], None]) -> None:
        super().__init__()
        self._refused = refused

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _READS:
            failure = CaptureFailed("GR101", f"Tensor.{func.__name__} reads a tensor's value on the host")
            self._refused(failure)
            raise failure
        return func(*args, **(kwargs or {}))
