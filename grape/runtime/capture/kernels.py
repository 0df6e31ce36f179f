"""Operators whose kernels are Python of the person's that nobody can look into.

What a replay passes by must be known. `torch.library.custom_op` tells which function it runs, and guards look into it
(`state/operators.py`); of a kernel that was put into a `torch.library.Library` torch tells no more than the file.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...model import OpRecord, Reason, Refused
from ..state.operators import has_hidden_kernel

__all__ = ["hidden_kernel"]

_TORCH = frozenset({"aten", "prim", "prims", "rngprims", "quantized", "c10d", "inductor", "higher_order"})


def hidden_kernel(ops: Iterable[OpRecord]) -> Refused | None:
    """Why a call with these operators is refused: the first one that runs such a kernel. None where none does."""
    seen: set[str] = set()
    for op in ops:
        namespace, _, name = op.name.partition(".")
        if namespace in _TORCH or op.name in seen:
            continue
        seen.add(op.name)
        if has_hidden_kernel(namespace, name):
            return Refused.because(Reason.HIDDEN_KERNEL, op.user or op.inner, operator=op.name)
    return None
