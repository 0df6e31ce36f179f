"""True where dicts, lists and attributes hold the very objects that they held, in the same order.

Most are dicts that nobody ever writes. CPython before 3.12 numbers each write of a dict, and torch gives that number
away (`dict_version`, which its compiler's guards use): as long as it stands still nothing in the dict needs to be
looked at. Later versions tell watchers instead, but not of every write (an attribute that is stored, `{}.update`), so
there each item is compared; so are those of dicts that are written again and again with what they hold, of subclasses
(an `OrderedDict` has an order that is no write), and of lists.

Where Grape's extension is there, it compares each item itself, in a few microseconds; only where it says no does the
above decide.
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, MutableSequence, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

from torch._C._dynamo.guards import dict_version

from ... import native

AnyDict: TypeAlias = dict[Any, object]
"""Whatever its keys are."""
_dict_version: Callable[[AnyDict], int] | None = dict_version if sys.version_info < (3, 12) else None
_ITEMS = tuple.__basicsize__
"""Where in a tuple its items begin, as addresses; CPython's `id` is the tuple's own."""
_POINTER = ctypes.sizeof(ctypes.c_void_p)
PATIENCE = 4
"""So many times a dict may be found written but unchanged before it is compared by its items."""

Attributes = tuple[dict[str, object], Callable[[dict[str, object]], tuple[object, ...]]]


def _addresses(values: tuple[object, ...]) -> bytes:
    """Those of the items, in order: equal for the very same objects, as long as somebody holds them."""
    return ctypes.string_at(id(values) + _ITEMS, len(values) * _POINTER)


def _identities(values: tuple[object, ...]) -> object:
    """Equal for the very same objects in the same order, as long as somebody holds them."""
    return tuple(map(id, values))


_probe = (None, "probe", _ITEMS, ())
if _addresses(_probe) == b"".join(id(item).to_bytes(_POINTER, sys.byteorder) for item in _probe):
    _identities = _addresses  # ten times as fast


class _Compared:
    """Containers that are compared by their items. `attributes` come with a reader of the values that count."""

    def __init__(
        self, dicts: Sequence[AnyDict], lists: Sequence[MutableSequence[object]], attributes: Sequence[Attributes]
    ) -> None:
        self.dicts, self.lists, self.attributes = dicts, lists, attributes

    def remember(self) -> None:
        """Take what they hold now for what they are to hold. Raises KeyError where an attribute is gone."""
        self.filled = [d for d in self.dicts if d]  # an empty one is guarded by its length
        self.saved = tuple(self.values())
        self._identities = _identities(self.saved)
        self.sizes = self.measure()

    def values(self) -> Iterator[object]:
        read = [values_of(names) for names, values_of in self.attributes]
        return chain.from_iterable([*read, *map(dict.values, self.filled), *self.filled, *self.lists])

    def measure(self) -> list[int]:
        return [*map(len, self.dicts), *map(len, self.lists), *[len(names) for names, _ in self.attributes]]

    def same(self) -> bool:
        """True where they hold that still. Raises KeyError where an attribute is gone."""
        return self.measure() == self.sizes and bool(_identities(tuple(self.values())) == self._identities)


class _Walked:
    """Dicts, lists and attributes as the extension compares them; those of subclasses are compared by their items."""

    def __init__(self, extension: Any, everything: _Compared) -> None:
        """Takes what they hold now for what they are to hold. Raises KeyError where an attribute is gone."""
        attributes = [pair for pair in everything.attributes if type(pair[0]) is dict]
        dicts = [one for one in everything.dicts if _is_walked(one)]
        counted = [frozenset(values_of(dict(zip(names, names, strict=True)))) for names, values_of in attributes]
        every = (*[names for names, _ in attributes], *dicts)
        self._lists = tuple([one for one in everything.lists if type(one) is list])
        places, self._items = extension.places(every, (*counted, *[None] * len(dicts)), self._lists)
        self._hold: Callable[[], bool] = partial(extension.hold, every, self._lists, places, self._items)
        left = (
            [one for one in everything.dicts if not _is_walked(one)],
            [one for one in everything.lists if type(one) is not list],
            [pair for pair in everything.attributes if type(pair[0]) is not dict],
        )
        self._left = _Compared(*left) if any(left) else None
        if self._left is not None:
            self._left.remember()

    def same(self) -> bool:
        """True where they hold that still. It may say no where but the order of attributes changed."""
        return self._hold() and (self._left is None or self._left.same())

    def held(self) -> list[object]:
        """Every reference to a value that is kept here."""
        return [*self._items, *self._lists, *(self._left.saved if self._left is not None else ())]


def _is_walked(one: AnyDict) -> bool:
    """An empty one has no order of its own."""
    return type(one) is dict or (type(one) is OrderedDict and not one)


class Contents:
    """The contents of `dicts`, `lists` and `attributes`, from the first `remember` on.

    The last are dicts with a reader of the values that count.
    """

    def __init__(
        self, dicts: Sequence[AnyDict], lists: Sequence[MutableSequence[object]], attributes: Sequence[Attributes]
    ) -> None:
        self._all = _Compared(dicts, lists, attributes)
        self._written: Counter[int] = Counter()

    def remember(self) -> None:
        """Take what they hold now for what they are to hold. Raises KeyError where an attribute is gone."""
        extension = native.built()
        # Before anything else is read: what is written meanwhile is a write.
        self._walked = _Walked(extension, self._all) if extension is not None else None
        restless = {one for one, times in self._written.items() if times >= PATIENCE}
        self._divide(restless)
        self._all.remember()

    def _divide(self, restless: Collection[int]) -> None:
        """Dicts by the number of their last write, all others and those in `restless`, by identity, by their items."""

        def steady(one: AnyDict) -> bool:
            return _dict_version is not None and type(one) is dict and id(one) not in restless

        everything = self._all
        self._empty = [one for one in everything.dicts if type(one) in (dict, OrderedDict) and not one]
        filled = [one for one in everything.dicts if type(one) not in (dict, OrderedDict) or one]
        self._steady = [one for one in filled if steady(one)]
        self._steady += [names for names, _ in everything.attributes if steady(names)]
        self._versions = self._numbers()  # before anything is read: what is written meanwhile is a write
        self._total = sum(self._versions)
        self._rest = _Compared(
            [one for one in filled if not steady(one)],
            everything.lists,
            [pair for pair in everything.attributes if not steady(pair[0])],
        )
        self._rest.remember()

    def _numbers(self) -> list[int]:
        return [*map(_dict_version, self._steady)] if _dict_version is not None else []

    def same(self) -> bool:
        """True where all is as it was remembered. Raises KeyError where an attribute is gone."""
        if self._walked is not None and self._walked.same():
            return True
        if any(self._empty):  # most dicts are hooks, and it takes next to nothing to ask many whether they are empty
            return False
        # Each number only ever grows, so their sum is what it was exactly where each of them is.
        if _dict_version is None or sum(map(_dict_version, self._steady)) == self._total:
            return self._rest.same()
        numbers = self._numbers()
        if not self._all.same():
            return False
        written = [one for one, now, then in zip(self._steady, numbers, self._versions, strict=True) if now != then]
        self._versions, self._total = numbers, sum(numbers)
        self._written.update(map(id, written))
        if any(self._written[id(one)] >= PATIENCE for one in written):
            self._divide({one for one, times in self._written.items() if times >= PATIENCE})
            return self._all.same()
        return True

    def values(self) -> Iterator[object]:
        """Every value and every key of a dict, in the order of `saved`. Raises KeyError where an attribute is gone."""
        return self._all.values()

    @property
    def saved(self) -> tuple[object, ...]:
        """The values as they were remembered."""
        return self._all.saved

    def held(self) -> list[object]:
        """Every reference to a value that is kept here."""
        return [*self._all.saved, *self._rest.saved, *(self._walked.held() if self._walked is not None else ())]

    def other_sizes(self) -> list[object]:
        """The containers that hold more or fewer items than they did."""
        everything = self._all
        holders = [*everything.dicts, *everything.lists, *[names for names, _ in everything.attributes]]
        sizes = zip(holders, everything.measure(), everything.sizes, strict=True)
        return [holder for holder, now_has, had in sizes if now_has != had]

    def holder_of(self, number: int) -> object:
        """The container of the value that stands there among `saved`."""
        one = self._all
        holders = [names for names, _ in one.attributes] + one.filled + one.filled + list(one.lists)
        lengths = [len(values_of(names)) for names, values_of in one.attributes]
        lengths += [*map(len, one.filled), *map(len, one.filled), *map(len, one.lists)]
        for holder, length in zip(holders, lengths, strict=True):
            if number < length:
                return holder
            number -= length
        return None
