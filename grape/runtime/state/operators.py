"""Finds the Python that an operator runs, as far as torch tells of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from weakref import WeakValueDictionary

import torch
from torch._ops import OperatorBase, OpOverload, OpOverloadPacket

from ...tracing import is_own_code

try:
    from torch._library.custom_ops import OPDEFS, CustomOpDef

    DEFINITION: type = CustomOpDef
except ImportError:  # a version that keeps them elsewhere
    OPDEFS, DEFINITION = WeakValueDictionary(), OperatorBase

_KERNEL = re.compile(r"^(\w+)(?:\[alias\])?: registered at (.*):\d+ ::", re.MULTILINE)
_OF_SHAPES = "Meta"
_OF_OTHERS = "CompositeImplicitAutograd"
_ANONYMOUS = torch.library.__file__
"""`torch.library.impl` with the name of an operator makes the library itself."""
_TORCH = frozenset({"aten", "prim", "prims", "quantized"})

OPERATORS = (OperatorBase, OpOverloadPacket, DEFINITION)


def is_hidden(operator: object) -> bool:
    """True where one of `OPERATORS` is made of others by a person's Python: traces show those, and not this one."""
    name = getattr(operator, "_qualified_op_name", None) if isinstance(operator, OpOverloadPacket) else None
    if isinstance(operator, OpOverload):
        name = operator.name()
    namespace, _, rest = str(name or "").partition("::")
    return bool(rest) and namespace not in _TORCH and has_hidden_kernel(namespace, rest, _OF_OTHERS)


def has_hidden_kernel(namespace: str, name: str, kind: str = "") -> bool:
    """True if a person's Python is among an operator's kernels (of this kind), and torch tells no more than its file.

    The name is the one that traces give.
    """
    packet, _, overload = name.partition(".")
    if f"{namespace}::{packet}" in OPDEFS:  # made by `torch.library.custom_op`
        return False
    full = f"{namespace}::{packet}" if overload in ("", "default") else f"{namespace}::{name}"
    try:
        kernels = _KERNEL.findall(torch._C._dispatch_dump(full))
    except (AttributeError, RuntimeError):
        return False
    wanted = [file for key, file in kernels if key != _OF_SHAPES and kind in ("", key)]
    return any(file == _ANONYMOUS or (file.endswith((".py", ">")) and is_own_code(file)) for file in wanted)


def python_of(operator: object) -> list[object]:
    """The functions that a person wrote of one of `OPERATORS` in Python, and the overloads of a packet. What torch
    notes at it when it is first called is nobody's state.
    """
    if DEFINITION is not OperatorBase and isinstance(operator, DEFINITION):
        return _written(operator)
    if not isinstance(operator, OperatorBase):
        return [part for part in vars(operator).values() if isinstance(part, OperatorBase)]
    kernels: list[Mapping[object, object]] = [
        getattr(operator, name, {}) for name in ("py_kernels", "python_key_table")
    ]
    parts = [kernel for table in kernels for kernel in table.values()]
    defined = OPDEFS.get(operator.name())
    return parts if defined is None else parts + _written(defined)


def _written(definition: object) -> list[object]:
    kernels = getattr(definition, "_backend_fns", {})
    return [*filter(callable, vars(definition).values()), kernels, *kernels.values()]
