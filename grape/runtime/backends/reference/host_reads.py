"""Reads of a tensor's value that never reach the dispatcher are refused here, while a capture runs.

On a GPU `.tolist()` or `.numpy()` is a copy that waits; on the CPU it is a look into memory that no dispatch mode sees.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import NoReturn

import torch

from ....model.call import Args, Kwargs
from ....tracing import UnseenMode
from ..operators import Function
from ..protocol import CaptureFailed

_READS: frozenset[Function] = frozenset(
    {
        torch.Tensor.tolist,
        torch.Tensor.numpy,
        torch.Tensor.__array__,
        torch.Tensor.__dlpack__,
        torch.Tensor.__repr__,
        torch.Tensor.__format__,
    }
)

_CODE = {read.__code__: read for read in _READS if hasattr(read, "__code__")}
"""Of those in Python: they ask whether they are overridden before they read."""


class HostReads(UnseenMode):
    """While it is active in this thread, reading a tensor's values raises `CaptureFailed` GR101 and tells `refused`."""

    def __init__(self, refused: Callable[[CaptureFailed], None]) -> None:
        super().__init__()
        self._refused = refused

    def __torch_function__(
        self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        if func in _READS:
            self._refuse(func)
        return func(*args, **(kwargs or {}))

    def passed_by(self, code: CodeType) -> None:
        read = _CODE.get(code)
        if read is not None:
            self._refuse(read)

    def _refuse(self, read: Function) -> NoReturn:
        failure = CaptureFailed("GR101", f"Tensor.{read.__name__} reads a tensor's value on the host")
        self._refused(failure)
        raise failure
