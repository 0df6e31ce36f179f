"""Compares values that no identity tells apart: contents of sets and arrays, attributes."""

from __future__ import annotations

import collections
import sys
import types
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any, Literal

import torch

from ..dispatch.trampoline import written_code
from .classes import is_plain

CONTAINERS = frozenset({dict, list, set, collections.defaultdict, collections.OrderedDict, collections.deque})
_PLAIN = frozenset({type(None), bool, int, str, bytes})
LEAVES = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, types.ModuleType)
"""Values without state: what they are, they stay."""


def read(owner: object, name: str, absent: object) -> object:
    """`getattr`, for closure cells that may be empty as well."""
    try:
        return getattr(owner, name, absent)
    except ValueError:
        return absent


def emptiness(attributes: dict[str, object], name: str) -> object:
    """The facts to be known of a container: its type, and that it is empty, or else which one it is."""
    item = attributes.get(name)
    return (type(item), getattr(item, "default_factory", None), None if not item else id(item))


def contents_of_set(value: Iterable[object]) -> list[object]:
    """The items in their order, with their types: 1 is not True, 0.0 is not -0.0."""
    return [*map(_known_by, value)]


def _known_by(item: object) -> object:
    """Plain values are known by what they are, others by which they are: they may say that they equal anything."""
    kind = type(item)
    if kind in (tuple, frozenset):
        return kind, [*map(_known_by, item)]  # type: ignore[call-overload]
    return kind, repr(item) if kind in (float, complex) else item if kind in _PLAIN else _Same(item)


class _Same:
    """Equal to what stands for the very same object."""

    def __init__(self, item: object) -> None:
        self.item = item

    def __eq__(self, other: object) -> bool:
        return type(other) is _Same and other.item is self.item

    __hash__ = None  # type: ignore[assignment]


def contents_of_array(value: Any) -> object:
    """The contents of an array of NumPy's, and how it lies there."""
    return value.dtype.str, value.shape, value.strides, value.tobytes()


def kind_of(value: Any) -> Literal["array", "large", "constant", "object"] | None:
    """Of NumPy: an array that can be compared, one that is too large for that, what never changes, or an object; None
    where nobody can tell."""
    kind, numpy = type(value), sys.modules["numpy"]
    if issubclass(kind, (numpy.generic, numpy.dtype)) and not issubclass(kind, numpy.void):  # a part of an array
        return "constant" if kind is not numpy.object_ else None
    if hasattr(kind, "tobytes") and hasattr(kind, "strides"):
        return "array" if not value.dtype.hasobject and value.nbytes <= 1 << 16 else "large"
    if issubclass(kind, numpy.ufunc):  # one that was made of a function of Python's says so
        return "constant" if not value.__name__.endswith("(vectorized)") else None
    if kind.__name__ == "_ArrayFunctionDispatcher":
        return "constant"
    return "object" if is_plain(kind) else None


def attribute_names(function: types.FunctionType) -> list[str]:
    """The names of what the person hung on a function (``f.calls``)."""
    return [name for name in function.__dict__ if name not in ("__signature__", "__wrapped__")]


def getter(names: list[str]) -> Callable[[dict[str, object]], tuple[object, ...]]:
    """A function of a dict that returns the values of `names` as a tuple."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda attributes: tuple([attributes[name] for name in names])


def is_defined_again(one: object, other: object, codes: Iterable[tuple[types.FunctionType, types.CodeType]]) -> bool:
    """True where two functions do the same: as when the cell that defines `other` ran again.

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


def is_equal(one: object, other: object) -> bool:
    """Equality of plain values of one type; everything else is compared by identity."""
    if type(one) is not type(other) or not isinstance(one, (bool, int, float, complex, str, bytes, tuple)):
        return False
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(a is b or is_equal(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, (float, complex)):
        return repr(one) == repr(other)  # 0.0 is not -0.0
    return bool(one == other)
