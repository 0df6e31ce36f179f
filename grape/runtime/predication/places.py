"""Attributes and items that a branch assigns: Python state that both ways may leave in another state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from .lowering.active import as_body, refuse
from .lowering.lowering import Body, State, Test
from .lowering.merge import UNBOUND


class Attribute:
    """`owner().name`. Reading one that does not exist gives `UNBOUND`; setting that deletes it."""

    def __init__(self, owner: Callable[[], object], name: str) -> None:
        self._owner = owner
        self._name = name

    def get(self) -> object:
        owner = self._owner()
        if isinstance(getattr(type(owner), self._name, None), property):
            raise refuse(f"a branch assigns the property {self._name} of a {type(owner).__name__}", "GR404")
        return getattr(owner, self._name, UNBOUND)

    def set(self, value: object) -> None:
        owner = self._owner()
        if value is not UNBOUND:
            setattr(owner, self._name, value)
        elif hasattr(owner, self._name):
            delattr(owner, self._name)


class Item:
    """`owner()[key()]` of a dict or list. An item of a tensor is memory, which the lowering takes care of."""

    def __init__(self, owner: Callable[[], Any], key: Callable[[], object]) -> None:
        self._owner = owner
        self._key = key

    def get(self) -> object:
        owner = self._owner()
        if isinstance(owner, torch.Tensor):
            return None
        key = self._key()
        if type(owner) is dict:
            return owner.get(key, UNBOUND)
        if type(owner) is list and type(key) is int and -len(owner) <= key < len(owner):
            return owner[key]
        raise refuse(f"a branch assigns an item of a {type(owner).__name__}", "GR404")

    def set(self, value: object) -> None:
        owner = self._owner()
        if isinstance(owner, torch.Tensor):
            return
        if value is not UNBOUND:
            owner[self._key()] = value
        else:
            owner.pop(self._key(), None)


Place: TypeAlias = Attribute | Item


def put(places: tuple[Place, ...], state: State) -> State:
    """Fill the places from the last part of a state; the rest of it."""
    count = len(state) - len(places)
    for place, value in zip(places, state[count:], strict=True):
        place.set(value)
    return state[:count]


def contained(
    function: Callable[..., object], operands: tuple[object, ...], places: tuple[Place, ...]
) -> Callable[[], object]:
    """A body that leaves its places as they were and returns (result, what it would have left in them)."""

    def run() -> object:
        before = [place.get() for place in places]
        try:
            with as_body():
                result = function(*operands)
            return result, tuple(place.get() for place in places)
        finally:
            for place, value in zip(reversed(places), reversed(before), strict=True):
                place.set(value)

    return run


def stateful(cond_fn: Test, body_fn: Body, carried: State, places: tuple[Place, ...]) -> tuple[Test, Body, State]:
    """A loop's functions and state, with what its places hold as the last part of the state.

    Each function leaves the places as they were before the loop.
    """
    before = tuple(place.get() for place in places)

    def test(*state: object) -> object:
        names = put(places, state)
        try:
            with as_body():
                return cond_fn(*names)
        finally:
            put(places, before)

    def body(*state: object) -> State:
        names = put(places, state)
        try:
            with as_body():
                result = body_fn(*names)
            return (*result, *(place.get() for place in places))
        finally:
            put(places, before)

    return test, body, (*carried, *before)
