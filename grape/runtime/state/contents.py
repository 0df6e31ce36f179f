"""What is compared of values that no identity tells apart: contents of sets and arrays, bytes, attributes."""

from __future__ import annotations

import array
import collections
import contextvars
import ctypes
import types
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any

import torch

from ..trampoline import written_code

__all__ = [
    "CONTAINERS",
    "CONTENTS",
    "LEAVES",
    "VIEWS",
    "attribute_names",
    "bytes_of",
    "contents_of_mapping",
    "contents_of_set",
    "contents_of_variable",
    "emptiness",
    "getter",
    "has_position",
    "is_defined_again",
    "is_equal",
    "read",
    "slots_of",
]

CONTENTS: dict[type, Callable[[Any], Any]] = {
    collections.deque: tuple,
    bytearray: bytes,
    array.array: bytes,
}
"""Containers that are neither lists nor dicts, and what their contents are."""
_example: dict[str, int] = {}
VIEWS = (type(_example.keys()), type(_example.values()), type(_example.items()))
"""Of dicts, which they read through `mapping`; those of ordered ones are their subclasses."""
CONTAINERS = frozenset({dict, list, set, collections.defaultdict, collections.OrderedDict, collections.deque})
LEAVES = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, types.ModuleType)
"""Values without state: what they are, they stay."""


def has_position(cls: type) -> bool:
    """True for iterators, which a call moves on, and pointers, behind which anything may lie."""
    pointer = issubclass(cls, ctypes._Pointer) or cls in (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_wchar_p)
    return pointer or (hasattr(cls, "__next__") and (not cls.__dictoffset__ or cls.__module__ == "itertools"))


def contents_of_variable(variable: contextvars.ContextVar[Any]) -> Any:
    """The value of a context variable; of an object, which one it is."""
    value = variable.get(None)
    return (type(value), repr(value)) if isinstance(value, LEAVES) else (type(value), id(value))


def read(owner: Any, name: str, absent: Any) -> Any:
    """`getattr`, for closure cells that may be empty as well."""
    try:
        return getattr(owner, name, absent)
    except ValueError:
        return absent


def slots_of(cls: type) -> tuple[str, ...]:
    """The names of the slots that a class itself declares, as `getattr` takes them."""
    slots = vars(cls).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    mangled = [f"_{cls.__name__.lstrip('_')}{n}" if n.startswith("__") and not n.endswith("__") else n for n in names]
    return tuple(name for name in mangled if name not in ("__dict__", "__weakref__"))


def bytes_of(value: Any) -> bytes:
    """A copy of the bytes that `value` gives access to."""
    with memoryview(value) as view:
        return view.tobytes()


def contents_of_mapping(mapping: Mapping[Any, Any]) -> Any:
    """Keys and values in order; of objects, which ones they are."""
    return [tuple([(type(v), repr(v) if isinstance(v, LEAVES) else id(v)) for v in item]) for item in mapping.items()]


def emptiness(attributes: dict[str, Any], name: str) -> Any:
    """What is to be known of a container: its type, and that it is empty, or else which one it is."""
    item = attributes.get(name)
    return (type(item), getattr(item, "default_factory", None), None if not item else id(item))


def contents_of_set(value: Any) -> frozenset[Any]:
    """The items with their types: 1 is not True."""
    return frozenset([(type(item), item) for item in value])


def attribute_names(function: types.FunctionType) -> list[str]:
    """The names of what the person hung on a function (``f.calls``)."""
    return [name for name in function.__dict__ if name not in ("__signature__", "__wrapped__")]


def getter(names: list[str]) -> Any:
    """A function of a dict that returns the values of `names` as a tuple."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda attributes: tuple([attributes[name] for name in names])


def is_defined_again(one: Any, other: Any, codes: Iterable[tuple[types.FunctionType, types.CodeType]]) -> bool:
    """Whether two functions do the same: as when the cell that defines `other` ran again.

    Both are plain ones, without closure, defaults and attributes. A `def` makes another object of the same code.
    """
    if not isinstance(one, types.FunctionType) or not isinstance(other, types.FunctionType):
        return False
    plain = all(
        f.__closure__ is None and f.__defaults__ is None and f.__kwdefaults__ is None and not attribute_names(f)
        for f in (one, other)
    )
    if not plain or one.__globals__ is not other.__globals__ or one.__module__ != other.__module__:
        return False
    return any(function is other and written_code(one) == code for function, code in codes)


def is_equal(one: Any, other: Any) -> bool:
    """Equality of plain values of one type; everything else is compared by identity."""
    if type(one) is not type(other) or not isinstance(one, (bool, int, float, complex, str, bytes, tuple)):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(a is b or is_equal(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, (float, complex)):
        return repr(one) == repr(other)  # 0.0 is not -0.0
    return bool(one == other)
