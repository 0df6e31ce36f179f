"""Reads of a tensor's value that never reach the dispatcher are refused here, while a capture runs.

On a GPU `.tolist()` or `.numpy()` is a copy that waits; on the CPU it is a look into memory that no mode sees.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from .protocol import CaptureFailed

__all__ = ["refuse_host_reads"]

_NAMES = ("tolist", "numpy", "__array__", "__dlpack__", "__repr__", "__format__")


@contextmanager
def refuse_host_reads(refused: Callable[[CaptureFailed], None]) -> Iterator[None]:
    """In this thread, reading a tensor's values raises `CaptureFailed` GR101 and tells `refused`."""
    owner = threading.get_ident()
    with ExitStack() as stack:
        for name in _NAMES:
            original = getattr(torch.Tensor, name)
            inherited = name not in vars(torch.Tensor)
            setattr(torch.Tensor, name, _guarded(name, original, owner, refused))
            if inherited:
                stack.callback(delattr, torch.Tensor, name)
            else:
                stack.callback(setattr, torch.Tensor, name, original)
        yield


def _guarded(name: str, original: Any, owner: int, refused: Callable[[CaptureFailed], None]) -> Any:
    def read(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != owner:
            return original(self, *args, **kwargs)
        failure = CaptureFailed("GR101", f"Tensor.{name} reads a tensor's value on the host")
        refused(failure)
        raise failure

    return read
