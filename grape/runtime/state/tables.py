"""What libraries keep beside their functions, and code that names neither goes by: settings, and tables to which others
may add, as `register_kl` and `register_pytree_node` do.
"""

from __future__ import annotations

import collections
import collections.abc
import contextvars
import functools
import os
import threading
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeGuard

import torch
from torch._C._dynamo.guards import dict_version

from .classes import attributes_of, is_a, is_plain
from .namespaces import Item
from .own_code import is_followed

PLAIN = (bool, int, float, complex, str, bytes, type(None))
_SETTINGS = frozenset({*PLAIN, tuple})
_FUNCTIONS = (type, types.FunctionType, types.BuiltinFunctionType)
_LISTS = (list, set, collections.deque)
_SHORT = 16
_HEAP = 1 << 9
"""The flag of a class that is made in Python."""


def is_table(value: object) -> TypeGuard[dict[object, object]]:
    """True for a dict by class, or by functions that make them (`namedtuple`), and for one of nothing but functions."""
    return (
        is_a(value, dict)
        and len(value) > 0
        and (_are_functions(dict.keys(value)) or _are_functions(dict.values(value)))
    )


def tables_of(value: object) -> list[dict[object, object]]:
    """The dicts in which a mapping of a library's own keeps what is registered, for itself and for all of its class."""
    mro = type(value).__mro__
    if collections.abc.Mapping not in mro:
        return []
    spaces = [attributes_of(value) or {}, *(vars(cls) for cls in mro if cls.__flags__ & _HEAP)]
    held = [one for space in spaces for one in list(space.values())]
    return [one for one in held if type(one) is dict and (not one or is_table(one))]


def writes_of(tables: tuple[dict[object, object], ...]) -> tuple[int, int]:
    """Numbers of which each write of one of them makes one another. From Python 3.12 on nobody tells of what fills an
    empty dict by `update` (`containers`); its length does.
    """
    return sum(map(dict_version, tables)), sum(map(len, tables))


def own_functions_in(table: dict[Any, Any]) -> Iterator[types.FunctionType]:
    """The person's, for what he registered."""
    for value in dict.values(table):
        for one in _parts(value):
            if is_a(one, types.FunctionType) and is_followed(one.__code__):
                yield one


def settings_of(
    value: object, words: frozenset[str], keys: frozenset[str], absent: object, depth: int = 1
) -> Iterator[Item]:
    """Plain settings in a dict, a class, an object or a function, under names that code mentions, `keys` as strings;
    and in objects that are found so, `depth` deep.
    """
    space = _space_of(value)
    if space is None or is_a(value, torch.nn.Module) or is_a(value, torch.Tensor):
        return
    cls = type(value)
    shared = vars(cls) if cls.__flags__ & _HEAP and not is_a(value, type) and not is_a(value, dict) else {}
    names = keys if is_a(value, dict) else words
    for name in names & space.keys():
        item = space[name]
        if name.startswith("__") or item is value:
            continue
        if type(item) in _SETTINGS:
            yield space, name, item
        elif depth and _holds_attributes(type(item)):
            yield space, name, item
            yield from settings_of(item, words, keys, absent, depth - 1)
    for name in names & shared.keys():
        default = shared[name]
        if type(default) in _SETTINGS and name not in space and not name.startswith("__"):
            yield from ((space, name, absent), (shared, name, default))


def is_short_list(value: object) -> TypeGuard[list[object]]:
    """True for a list, or its like, of few plain values."""
    kind: Any = type(value)
    return (
        kind in _LISTS and kind.__len__(value) <= _SHORT and all(type(one) in _SETTINGS for one in kind.__iter__(value))
    )


def is_of_words(values: list[object]) -> bool:
    """True where equality tells all that there is of them: 1 is not True, 0.0 is not -0.0."""
    return all(type(one) is str for one in values)


@functools.lru_cache(maxsize=4096)
def keys_in(code: types.CodeType) -> frozenset[str]:
    """The strings in code, and in the code of functions in it."""
    inner = [keys_in(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return frozenset(constant for constant in code.co_consts if isinstance(constant, str)).union(*inner)


def function_of(value: object) -> object:
    """What is called of an attribute of a class."""
    return value.__func__ if isinstance(value, (staticmethod, classmethod)) else value


def value_in_context(variable: contextvars.ContextVar[Any]) -> object:
    """What it is now, if that is plain, else which object."""
    value = variable.get(None)
    return type(value), repr(value) if type(value) in PLAIN else id(value)


ENVIRONMENT = frozenset({"environ", "getenv"})
"""By these names code reads variables of the environment."""


def variables(names: frozenset[str], absent: object) -> Iterator[Item]:
    """The variables of the environment that are named so. Who writes others, or the same anew, changes nothing."""
    held: Any = getattr(os.environ, "_data", os.environ)  # somebody may have put a dict in its place
    encoded = getattr(os.environ, "encodekey", str)
    for name in names:
        if name.isidentifier() and name.upper() == name:
            yield held, encoded(name), held.get(encoded(name), absent)


def _holds_attributes(cls: type) -> bool:
    return cls is types.SimpleNamespace or is_plain(cls)


def _space_of(value: object) -> Mapping[str, object] | None:
    if is_a(value, dict):
        return value if type(value) in (dict, collections.OrderedDict) else None  # another's `get` may do anything
    if is_a(value, type):
        return vars(value)
    return value.__dict__ if type(value) is threading.local else attributes_of(value)


def _are_functions(values: Iterable[object]) -> bool:
    return all(issubclass(type(one), _FUNCTIONS) for value in values for one in _parts(value))


def _parts(value: object) -> Iterable[object]:
    return value if is_a(value, tuple) else (value,)


TELL_OF_AUTOCAST = frozenset(
    {
        *("is_autocast_enabled", "is_autocast_cpu_enabled", "is_warn_always_enabled"),
        *("get_autocast_dtype", "get_autocast_cpu_dtype", "get_autocast_gpu_dtype"),
    }
)
"""Functions that code may ask for the modes of any device: those of a region's own are part of each guard key."""


def autocast_of_devices() -> list[object]:
    """The modes that these functions tell."""
    kinds = ("cpu", "cuda")
    told = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds]
    return [*told, torch.is_warn_always_enabled()]
