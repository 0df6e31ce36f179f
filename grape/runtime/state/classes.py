"""Which objects are plain Python: all that they hold stands in a `__dict__` or in slots, and reading it runs nothing.

Nothing here runs code of the person's: a class is asked through `type`, an object through its type's descriptors.
"""

from __future__ import annotations

import sys
import types
import weakref
from typing import TypeGuard, TypeVar

import torch

from .own_code import is_own_class

T = TypeVar("T")

_HEAP = 1 << 9
_HEADER = object.__basicsize__
_ODD = ("__getattribute__", "__class__", "__del__")
_OF_CONTAINERS = ("__iter__", "__len__")
_WATCHED = (torch.nn.Module, torch.Tensor)
"""Grape and torch refer to these weakly themselves."""


def is_a(value: object, kind: type[T]) -> TypeGuard[T]:
    """As `isinstance`, which may ask the person's own `__class__`."""
    return issubclass(type(value), kind)


def attributes_of(value: object) -> dict[str, object] | None:
    """The dict of an object's attributes, past whatever its class says; None where it has none."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return None
    return found if type(found) is dict else None


def slots_of(cls: type) -> tuple[str, ...]:
    """The names of the slots that a class itself declares, as `getattr` takes them."""
    slots = vars(cls).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    mangled = [f"_{cls.__name__.lstrip('_')}{n}" if n.startswith("__") and not n.endswith("__") else n for n in names]
    return tuple(name for name in mangled if name not in ("__dict__", "__weakref__"))


def is_plain(cls: type) -> bool:
    """True where instances keep all they hold in attributes and slots: no base is written in C, but `object`."""
    bases = [base for base in cls.__mro__ if base is not object]
    slots = sum(len(slots_of(base)) for base in bases)
    # A class adds a pointer for its attributes and one for weak references; whatever else there is, Python cannot see.
    beside = cls.__basicsize__ - _HEADER - 8 * slots
    return 0 <= beside <= 16 and all(base.__flags__ & _HEAP and _is_source(base.__module__) for base in bases)


def _is_source(name: object) -> bool:
    """True for a module in Python, also for one that is not there any more or never was (a class made by hand)."""
    module = sys.modules.get(name) if isinstance(name, str) else None
    file = vars(module).get("__file__") if isinstance(module, types.ModuleType) else ""
    return name not in sys.builtin_module_names and (not file or str(file).endswith((".py", ".pyc")))


def why_odd(cls: type) -> str | None:
    """Why objects of a class of the person's are not what they seem: reading them runs code, or their end does."""
    own = [base for base in cls.__mro__ if is_own_class(base)]
    if not own:
        return None
    if is_own_class(type(cls)):
        return "whose class has a metaclass"
    names = _ODD + _OF_CONTAINERS if issubclass(cls, (list, tuple, dict, set, frozenset)) else _ODD
    found = next((name for base in own for name in names if name in vars(base)), None)
    return f"which defines {found}" if found else None


def is_watched(value: object) -> bool:
    """True where somebody may ask whether an object of the person's is still there, which guards keep alive."""
    cls = type(value)
    if issubclass(cls, _WATCHED) or not is_own_class(cls):
        return False
    try:
        return weakref.getweakrefcount(value) > 0
    except TypeError:
        return False
