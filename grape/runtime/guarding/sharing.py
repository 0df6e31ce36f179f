"""Of many shapes most of what is known is equal, and is kept once.

Nothing is looked up in a table, which would have to be emptied: what is new is compared with what a few shapes before
it have, and gives way where that is equal.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import zip_longest
from operator import is_
from typing import TypeVar

import torch

_T = TypeVar("_T")
_S = TypeVar("_S", bound=Sequence[object])


def shared(value: _T, others: Iterable[_T]) -> _T:
    """The first of `others` that equals `value`, else `value`. Only for what equality tells apart: no 1 beside True."""
    return next((other for other in others if other == value), value)


def shared_objects(value: _S, others: Iterable[_S]) -> _S:
    """The first of `others` that holds the very same objects, else `value`."""
    return next((one for one in others if len(one) == len(value) and all(map(is_, one, value))), value)


def shared_tensors(
    value: Mapping[int, torch.Tensor], others: Iterable[Mapping[int, torch.Tensor]]
) -> Mapping[int, torch.Tensor]:
    """The first of `others` that has the very same tensors under the same numbers in this order, else `value`."""
    for one in others:
        if [*one] == [*value] and all(map(is_, one.values(), value.values())):
            return one
    return value


def shared_key(key: tuple[Hashable, ...], other: tuple[Hashable, ...]) -> tuple[Hashable, ...]:
    """A key that equals `key`, of parts that are each there once, and are those of `other` where that has them.

    Parts are compared where their hashes are equal, as in a dict: the person's classes may not know how to differ.
    """
    known: dict[Hashable, Hashable] = {}
    found = []
    for now, then in zip_longest(key, other[: len(key)]):
        same = then is not None and hash(then) == hash(now) and then == now
        found.append(then if same else known.setdefault(now, now))
    return tuple(found)
