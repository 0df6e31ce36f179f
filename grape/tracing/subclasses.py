"""Subclasses of tensors that are made by being called, while a dispatch mode of Grape's is on the stack.

`torch.Tensor.__new__` makes a tensor through the dispatcher and then an object of the subclass for it. Below any mode
that tensor has an object already, and torch raises a RuntimeError. Tensor's own `__new__` cannot be replaced: the type
would not be the same afterwards. Those of its subclasses can, where they come to it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any
from weakref import ref

import torch

_MADE = torch.Tensor.__new__
_NONE = object()


def _of_tensors() -> list[Any]:
    """All subclasses that are not torch's own."""
    classes: list[Any] = [torch.Tensor]
    for one in classes:
        classes += [sub for sub in type.__subclasses__(one) if sub not in classes]
    return [one for one in classes if not f"{one.__module__}.".startswith("torch.")]


def _maker(kind: Any) -> Callable[..., object] | None:
    """Its `__new__`, where that is Tensor's, or one of its own that calls another by that name."""
    own = vars(kind).get("__new__", _NONE)
    if own is _NONE:
        return _MADE if kind.__new__ is _MADE else None
    function = own.__func__ if isinstance(own, staticmethod) else own
    return function if isinstance(function, FunctionType) and "__new__" in function.__code__.co_names else None


class Subclasses:
    """Of each that is there at `watch` the `__new__` is called by `aside`, until `rest`."""

    def __init__(self, aside: Callable[[Callable[..., object]], Callable[..., object]]) -> None:
        self._aside = aside
        self._patched: list[tuple[ref[Any], object, object]] = []

    def watch(self) -> None:
        for kind, maker in [(kind, _maker(kind)) for kind in _of_tensors()]:
            self._patch(kind, maker)

    def rest(self) -> None:
        while self._patched:
            known, original, patch = self._patched.pop()
            kind = known()
            if kind is None or vars(kind).get("__new__") is not patch:
                continue
            if original is _NONE:
                del kind.__new__
            else:
                kind.__new__ = original

    def _patch(self, kind: Any, maker: Callable[..., object] | None) -> None:
        if maker is None:
            return
        original, patch = vars(kind).get("__new__", _NONE), staticmethod(self._aside(maker))
        try:
            kind.__new__ = patch
        except (AttributeError, TypeError):  # a class that refuses attributes
            return
        self._patched.append((ref(kind), original, patch))
