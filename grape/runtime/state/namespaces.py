"""Whether names of modules and classes still mean what they meant.

There are many such names, and nearly all stand in namespaces that nobody ever writes. CPython, or torch's watcher in
later versions, numbers each write of a dict (`dict_version`): while the numbers of all namespaces stand still, no name is
looked up. After a write each name is; a namespace that is written again and again (a notebook's) is looked up always.
"""

from __future__ import annotations

import gc
import types
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

__all__ = ["Item", "Namespaces"]

_version: Callable[[Any], int] | None = getattr(
    getattr(getattr(torch._C, "_dynamo", None), "guards", None), "dict_version", None
)
PATIENCE = 4
"""So many times a namespace may be found written, with every name as it was, before its names are looked up always."""
Item = tuple[Mapping[str, Any], str, Any]
"""A namespace, a name, and what it meant."""


def _dict_of(namespace: Mapping[str, Any]) -> Any:
    """The dict itself; a class gives away a proxy of its own only."""
    if type(namespace) is not types.MappingProxyType:
        return namespace
    return next((one for one in gc.get_referents(namespace) if type(one) is dict), namespace)


class Namespaces:
    """`items`, of which `absent` stands for a name that is not there. `same` never changes what is remembered."""

    def __init__(self, items: Sequence[Item], absent: object) -> None:
        self._items, self._absent = items, absent
        self._written: Counter[int] = Counter()
        self._divide()

    def _divide(self) -> None:
        groups: dict[int, Any] = {}
        for namespace, _, _ in self._items:
            if id(namespace) not in groups:
                groups[id(namespace)] = _dict_of(namespace)
        steady = {
            key: one
            for key, one in groups.items()
            if _version is not None and type(one) is dict and self._written[id(one)] < PATIENCE
        }
        self._steady = list({id(one): one for one in steady.values()}.values())
        self._versions = self._numbers()
        self._total = sum(self._versions)
        self._restless = [item for item in self._items if id(item[0]) not in steady]

    def _numbers(self) -> list[int]:
        return [*map(_version, self._steady)] if _version is not None else []

    def same(self) -> bool:
        """Whether every name means the very object that it meant."""
        absent = self._absent
        if _version is None or sum(map(_version, self._steady)) == self._total:
            return all(names.get(name, absent) is value for names, name, value in self._restless)
        numbers = self._numbers()
        if not all(names.get(name, absent) is value for names, name, value in self._items):
            return False
        written = [one for one, now, then in zip(self._steady, numbers, self._versions, strict=True) if now != then]
        self._versions, self._total = numbers, sum(numbers)
        self._written.update(map(id, written))
        if any(self._written[id(one)] >= PATIENCE for one in written):
            self._divide()
        return True
