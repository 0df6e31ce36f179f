"""What torch tells of the Python that an operator runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

from torch._ops import OperatorBase, OpOverloadPacket

try:
    from torch._library.custom_ops import OPDEFS, CustomOpDef
except ImportError:  # a version that keeps them elsewhere
    OPDEFS, CustomOpDef = WeakValueDictionary(), OperatorBase

__all__ = ["OPERATORS", "is_custom", "python_of"]

OPERATORS = (OperatorBase, OpOverloadPacket, CustomOpDef)


def is_custom(name: str) -> bool:
    """Whether the operator with this qualified name was made by `torch.library.custom_op`."""
    return name in OPDEFS


def python_of(operator: Any) -> list[Any]:
    """What a person wrote of one of `OPERATORS` in Python, and the overloads of a packet. What torch notes at it when
    it is first called is nobody's state."""
    if isinstance(operator, CustomOpDef):
        return _written(operator)
    if not isinstance(operator, OperatorBase):
        return [part for part in vars(operator).values() if isinstance(part, OperatorBase)]
    kernels: list[Mapping[Any, Any]] = [getattr(operator, name, {}) for name in ("py_kernels", "python_key_table")]
    parts = [kernel for table in kernels for kernel in table.values()]
    defined = OPDEFS.get(operator.name())
    return parts if defined is None else parts + _written(defined)


def _written(definition: Any) -> list[Any]:
    kernels = getattr(definition, "_backend_fns", {})
    return [*filter(callable, vars(definition).values()), kernels, *kernels.values()]
