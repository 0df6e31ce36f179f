"""A body runs while a program is recorded, also where the device will not take it: it must leave Python as it was.

What the rewriter can see, it refuses; what a called function does to Python objects shows only when it was called.
The objects that a body can reach are compared around it, by the guards that compare them between calls. After a
change they are put back, and the capture is refused.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from ..guarding.guards import GuardSet
from ..state import ABSENT
from ..state.names import TooLarge
from .lowering.active import refuse

_CONTAINERS = (list, set, collections.deque)


class _Snapshot(GuardSet):
    """A guard set that can also put back what lists, dicts, sets, cells, globals and attributes held."""

    def __init__(self, root: object, more: tuple[object, ...]) -> None:
        super().__init__(root, more)
        dicts = [*self._dicts, *[attributes for attributes, _ in self._modules]]
        self._dict_contents = [(value, dict(value)) for value in dicts]
        held: list[Any] = [value for value in self._seen.values() if type(value) in _CONTAINERS]
        self._contents = [(value, list(value)) for value in held]

    def restore(self) -> None:
        for owner, items in self._dict_contents:
            if not (_same(owner, items) and _same(dict.values(owner), items.values())):
                dict.clear(owner)
                dict.update(owner, items)
        for value, contents in self._contents:
            if not _same(value, contents):
                value.clear()
                (value.update if isinstance(value, set) else value.extend)(contents)
        for names, name, item in self._items:
            if type(names) is dict and names.get(name, ABSENT) is not item:
                if item is ABSENT:
                    del names[name]
                else:
                    names[name] = item
        for holder, name, item in self._attributes:
            if item is not ABSENT and getattr(holder, name, ABSENT) is not item:
                setattr(holder, name, item)


def _same(one: Collection[object], other: Collection[object]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


@contextmanager
def unchanged(body: Callable[..., object], operands: tuple[object, ...] = ()) -> Iterator[None]:
    """Raise where what runs inside, `body(*operands)`, changes Python objects that it can reach.

    Raises `CaptureFailed` (GR404) where it does, after putting back what can be put back.
    """
    try:
        snapshot = _Snapshot(body, operands)
    except TooLarge as error:
        raise refuse(f"{error}, so it is not known what a body changes") from error
    try:
        try:
            yield
        except BaseException:
            if not snapshot.holds():
                snapshot.restore()
            raise
        if not snapshot.holds():
            difference = snapshot.difference()
            snapshot.restore()
            raise refuse(f"a body that the device may skip changes {difference}", "GR404")
    finally:
        # It refers to itself: without this, tensors of the capture would live until the next collection.
        vars(snapshot).clear()
