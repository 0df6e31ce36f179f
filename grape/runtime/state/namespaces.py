"""True where names of modules and classes still mean what they meant.

There are many such names, and nearly all stand in namespaces that nobody ever writes. CPython, or torch's watcher in
later versions, numbers each write of a dict (`dict_version`): while the numbers of all namespaces stand still, no name
is looked up. After a write each name is; those of a namespace that is written again and again (a notebook's) always.
"""

from __future__ import annotations

import functools
import gc
import types
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch._C._dynamo.guards import dict_version

from ...tracing import is_grape_code
from .checked import held_by, mean
from .own_code import is_followed, is_own_class

PATIENCE = 4
"""So many times a namespace may be found written, with every name as it was, before its names are looked up always."""
Item = tuple[Mapping[str, object], str, object]
"""A namespace, a name, and what it meant."""


def _dict_of(namespace: Mapping[str, object]) -> Mapping[str, object]:
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
        groups: dict[int, object] = {}
        for namespace, _, _ in self._items:
            if id(namespace) not in groups:
                groups[id(namespace)] = _dict_of(namespace)
        steady = {key: one for key, one in groups.items() if type(one) is dict and self._written[id(one)] < PATIENCE}
        self._steady = [*{id(one): one for one in steady.values()}.values()]
        self._versions = self._numbers()
        self._total = sum(self._versions)
        self._restless = [item for item in self._items if id(item[0]) not in steady]
        self._mean = mean([(groups[id(names)], name, value) for names, name, value in self._restless], self._absent)

    def _numbers(self) -> list[int]:
        return [*map(dict_version, self._steady)]

    def held(self) -> list[object]:
        """Every reference that is kept here, but for those of the items."""
        return held_by(self._mean)

    def same(self) -> bool:
        """True where every name means the very object that it meant."""
        absent = self._absent
        if sum(map(dict_version, self._steady)) == self._total:
            return self._mean() or all(names.get(name, absent) is value for names, name, value in self._restless)
        numbers = self._numbers()
        if not all(names.get(name, absent) is value for names, name, value in self._items):
            return False
        written = [one for one, now, then in zip(self._steady, numbers, self._versions, strict=True) if now != then]
        self._versions, self._total = numbers, sum(numbers)
        self._written.update(map(id, written))
        if any(self._written[id(one)] >= PATIENCE for one in written):
            self._divide()
        return True


def is_persons(value: object) -> bool:
    """True for what runs code of the person's where torch would run its own: functions, what wraps them, classes, and
    objects that are called.
    """
    kind = type(value)
    if kind is types.FunctionType:
        return is_followed(value.__code__)  # type: ignore[attr-defined]
    if kind is property:
        return any(map(is_persons, (value.fget, value.fset, value.fdel)))  # type: ignore[attr-defined]
    if kind in (staticmethod, classmethod, types.MethodType):
        return is_persons(value.__func__)  # type: ignore[attr-defined]
    if kind in (functools.partial, functools.partialmethod):
        return is_persons(value.func)  # type: ignore[attr-defined]
    if kind is type:
        return is_own_class(value)  # type: ignore[arg-type]
    return kind.__module__ != "builtins" and callable(value) and is_own_class(kind)


def _is_grapes(value: object) -> bool:
    return type(value) is types.FunctionType and is_grape_code(value.__code__.co_filename)


class Variants:
    """Which of the variants of a class that were met is there now: every region depends on `torch.Tensor`, and on what
    `torch.nn.Module` does at each call and at each look at an attribute.

    What Grape itself puts there for a while stands for what it stands in for.
    """

    def __init__(self, cls: type) -> None:
        found = _dict_of(vars(cls))
        assert isinstance(found, dict)
        self._dict = found
        self._known: list[dict[str, object]] = []
        self._version: int | None = None
        self._number = 0
        self._own: dict[int, list[object]] = {}
        self._replaced: dict[int, bool] = {}
        self._names = {name for base in cls.__mro__[1:] for name in vars(base)}
        self._names |= {name for name, value in found.items() if not is_persons(value)}

    def number(self) -> int:
        """Equal for equal contents."""
        version = dict_version(self._dict)
        if version != self._version:
            self._version, now = version, dict(self._dict)
            self._number = next((n for n, then in enumerate(self._known) if _alike(now, then)), len(self._known))
            if self._number == len(self._known):
                self._known.append(now)
        return self._number

    def own_functions(self) -> list[object]:
        """The person's that stand in the class now, as they stand there."""
        number = self.number()
        if number not in self._own:
            self._own[number] = [*filter(is_persons, map(_stands_for, self._known[number].values()))]
        return self._own[number]

    def has_functions(self) -> bool:
        """True where a plain function is among them, which may be called for any object of the class."""
        return any(type(one) is types.FunctionType for one in self.own_functions())

    def replaced(self) -> bool:
        """True where the person's function stands in the place of one that the class had. Any function mode of torch's,
        as Grape's, has torch call the one by that name in `torch.Tensor`: the person's would be called twice.
        """
        own, number = self.own_functions(), self._number
        if own and number not in self._replaced:
            self._replaced[number] = any(is_persons(_stands_for(self._dict.get(name))) for name in self._names)
        return bool(own) and self._replaced[number]


def _alike(one: dict[str, object], other: dict[str, object]) -> bool:
    values = [(one.get(name), other.get(name)) for name in {**one, **other}]
    resolved = ((_stands_for(a), _stands_for(b)) for a, b in values)
    return all(a is b or _is_grapes(a) or _is_grapes(b) for a, b in resolved)


def _stands_for(value: object) -> object:
    while _is_grapes(value) and hasattr(value, "__wrapped__"):
        value = value.__wrapped__
    return value


TENSOR, MODULE = Variants(torch.Tensor), Variants(torch.nn.Module)
