"""Functions that reach no tensor: no graph could serve their calls, whatever stands in its way."""

from __future__ import annotations

import collections
import dis
import sys
import types
from collections.abc import Iterator, Mapping

from ...model.call import Args, Kwargs
from ...tracing import is_own_code
from ..state import is_own_class
from ..state.classes import is_a

_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, slice, types.BuiltinFunctionType)
_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
_ANYTHING = frozenset({"eval", "exec", "getattr", "globals", "locals", "vars", "__import__"})
_MOST = 2_000
"""So many values and functions are looked through."""


def reaches_no_tensor(function: object, args: Args, kwargs: Kwargs) -> bool:
    """True where it is known that a call of `function` with these arguments has no tensor to work on.

    Known is what the person's own functions and classes hold, numbers, text, containers and arrays of NumPy; any other
    value may have a tensor, and so may what any other library returns.
    """
    if not is_a(function, types.FunctionType):
        return False
    looked: set[int] = set()
    pending: list[object] = [function, args, kwargs]
    names: set[str] = set()
    kinds: set[type] = set()
    while pending:
        value = pending.pop()
        if id(value) not in looked:
            looked.add(id(value))
            inside = _inside(value, names, kinds)
            if inside is None or len(looked) > _MOST:
                return False
            pending += inside
        if not pending:
            pending += [method for method in _methods(kinds, names) if id(method) not in looked]
    return True


def _inside(value: object, names: set[str], kinds: set[type]) -> list[object] | None:
    """What else may be reached from `value`; None where that is not known."""
    if is_a(value, types.FunctionType):
        return _of_function(value, names)
    cls = type(value)
    if any(cls is plain for plain in _PLAIN):
        return []
    if any(cls is container for container in _CONTAINERS):
        return [*value, *value.values()] if isinstance(value, dict) else [*value]  # type: ignore[misc]
    if is_a(value, types.ModuleType):
        known = value.__name__.partition(".")[0]
        return [] if known == "numpy" or known in sys.stdlib_module_names else None
    if cls.__module__ == "numpy":
        return None if getattr(value, "dtype", None) is None or value.dtype.hasobject else []  # type: ignore[attr-defined]
    held = vars(cls).get("__dict__")
    if is_own_class(cls) and len(cls.__mro__) == 2 and type(cls) is type and type(held) is types.GetSetDescriptorType:
        kinds.add(cls)
        return list(held.__get__(value).values()) if "__slots__" not in vars(cls) else None
    return None


def _of_function(function: types.FunctionType, names: set[str]) -> list[object] | None:
    if not is_own_code(function.__code__.co_filename):
        return None
    found: list[object] = [function.__defaults__, function.__kwdefaults__]
    try:
        found += [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # a name that is not bound yet may be bound to anything
        return None
    for code in _codes(function.__code__):
        if _ANYTHING & {*code.co_names} or any(step.opname == "IMPORT_NAME" for step in dis.get_instructions(code)):
            return None
        names.update(code.co_names)
        found += _globals(code, function.__globals__)
    return found


def _globals(code: types.CodeType, known: Mapping[str, object]) -> Iterator[object]:
    """Values of global names; attributes that are called like one count as well."""
    return (known[name] for name in code.co_names if name in known)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _methods(kinds: set[type], names: set[str]) -> Iterator[object]:
    """What the code may call of the person's objects: by name, and by operators."""
    for cls in kinds:
        for name, member in list(vars(cls).items()):
            is_operator = name.startswith("__") and name not in ("__init__", "__new__")
            if name in names or (is_operator and isinstance(member, types.FunctionType)):
                yield member
