"""Tables by type, as libraries keep them beside their functions: `register_kl`, `register_pytree_node` and their like
add to one, and code that names neither the table nor what was added does otherwise from then on.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeGuard

from .classes import is_a
from .own_code import is_followed


def is_table(value: object) -> TypeGuard[dict[object, object]]:
    """True for a dict whose keys are classes, or functions that make them (`namedtuple`), or tuples of such."""
    return type(value) is dict and bool(value) and all(map(_is_by_type, value))


def own_functions_in(table: Mapping[Any, object]) -> Iterator[types.FunctionType]:
    """The person's, for what he registered."""
    for value in table.values():
        for one in _parts(value):
            if is_a(one, types.FunctionType) and is_followed(one.__code__):
                yield one


def _is_by_type(key: object) -> bool:
    return all(is_a(one, type) or is_a(one, types.FunctionType) for one in _parts(key))


def _parts(value: object) -> Iterable[object]:
    return value if is_a(value, tuple) else (value,)
