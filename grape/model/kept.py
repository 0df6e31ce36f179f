"""Keeps what was found in an object as long as the object: a trace or a timeline is looked through once."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

_One = TypeVar("_One")
_Found = TypeVar("_Found")


class Kept(Generic[_One, _Found]):
    """A decorator: the function is called once for each object that lives. Objects are told apart by identity."""

    def __init__(self, find: Callable[[_One], _Found]) -> None:
        self._find = find
        self._known: dict[int, tuple[weakref.ref[_One], _Found]] = {}

    def __call__(self, one: _One) -> _Found:
        number = id(one)
        known = self._known.get(number)
        if known is None or known[0]() is not one:
            known = weakref.ref(one, lambda _: self._forget(number)), self._find(one)
            self._known[number] = known
        return known[1]

    def _forget(self, number: int) -> None:
        known = self._known.get(number)
        if known is not None and known[0]() is None:  # else the number is another object's by now
            del self._known[number]
