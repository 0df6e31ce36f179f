"""Operators whose kernels are Python of the person's that nobody can look into.

What a replay passes by must be known. `torch.library.custom_op` tells which function it runs, and guards look into it
(`state/operators.py`); of a kernel that was put into a `torch.library.Library` torch tells no more than the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch

from ...model import OpRecord, Refused
from ...tracing import is_own_code
from ..state.operators import is_custom

__all__ = ["hidden_kernel"]

_TORCH = frozenset({"aten", "prim", "prims", "rngprims", "quantized", "c10d", "inductor", "higher_order"})
_KERNEL = re.compile(r"^(\w+)(?:\[alias\])?: registered at (.*):\d+ ::", re.MULTILINE)
_OF_SHAPES = "Meta"
_ANONYMOUS = torch.library.__file__
"""`torch.library.impl` with the name of an operator makes the library itself."""


def hidden_kernel(ops: Iterable[OpRecord]) -> Refused | None:
    """Why a call with these operators is refused: the first one that runs such a kernel. None where none does."""
    seen: set[str] = set()
    for op in ops:
        namespace, _, name = op.name.partition(".")
        if namespace in _TORCH or op.name in seen:
            continue
        seen.add(op.name)
        if _is_hidden(namespace, name):
            why = f"torch does not tell what the Python of {op.name} is; `torch.library.custom_op` does"
            return Refused(code="GR405", why=why, at=op.user or op.inner)
    return None


def _is_hidden(namespace: str, name: str) -> bool:
    packet, _, overload = name.partition(".")
    if is_custom(f"{namespace}::{packet}"):
        return False
    full = f"{namespace}::{packet}" if overload in ("", "default") else f"{namespace}::{name}"
    try:
        kernels = _KERNEL.findall(torch._C._dispatch_dump(full))
    except (AttributeError, RuntimeError):
        return False
    return any(key != _OF_SHAPES and _is_own_python(file) for key, file in kernels)


def _is_own_python(file: str) -> bool:
    return file == _ANONYMOUS or (file.endswith((".py", ">")) and is_own_code(file))
