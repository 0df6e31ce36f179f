"""Names of what stands among the escapes of a traced call."""

from __future__ import annotations

from types import TracebackType

from .positions import is_grape_code

__all__ = ["COMPILED", "SPARSE", "below_dispatch"]

SPARSE = "a tensor without a storage"
"""Stands among the escapes of a call that works on sparse or similar tensors, which no trace can name."""

COMPILED = "code that torch.compile made"
"""Stands among the escapes of a call that runs some: nobody watches the rest of it."""


def below_dispatch(entry: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames that a plain call of an operator does not have: the tracer's, and torch's one."""
    while entry is not None and (
        is_grape_code(file := entry.tb_frame.f_code.co_filename) or file.endswith("torch/_ops.py")
    ):
        entry = entry.tb_next
    return entry
