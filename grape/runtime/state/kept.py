"""Keeps what the code can read as an eager call left it: to be put back when Grape's own run of the code ended
half-way.

A run that is broken off between `model.eval()` and `model.train()` leaves neither what it found nor what it would have
left.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, MutableSequence, Sequence
from operator import is_

import torch

from .contents import read
from .namespaces import Item

_ABSENT = object()
_detach, _address = torch._C.TensorBase.detach, torch._C.TensorBase.data_ptr
"""The person may put others in the place of `Tensor`'s."""


class KeptState:
    """`dicts` and `lists` with what they hold, names in namespaces (`items`) and attributes of objects with their
    values, memory and flags of `tensors`, and whether gradients are recorded."""

    def __init__(
        self,
        dicts: Iterable[dict[object, object]],
        lists: Iterable[MutableSequence[object]],
        items: Iterable[Item],
        attributes: Iterable[tuple[object, str, object]],
        tensors: Sequence[torch.Tensor],
    ) -> None:
        known: dict[int, dict[object, object] | MutableSequence[object]] = {id(one): one for one in dicts}
        known.update((id(one), one) for one in lists)
        for one in list(known.values()):  # also those that the call made, and left in the place of others
            held = one.values() if isinstance(one, dict) else one
            known.update((id(value), value) for value in held if isinstance(value, (dict, list, deque)))
        self._dicts = [(one, dict(one)) for one in known.values() if isinstance(one, dict)]
        self._lists = [(one, list(one)) for one in known.values() if not isinstance(one, dict)]
        self._items = [(names, name, names.get(name, _ABSENT)) for names, name, _ in items]
        self._attributes = [(owner, name, read(owner, name, _ABSENT)) for owner, name, _ in attributes]
        self._tensors = [(one, _detach(one), one.requires_grad) for one in tensors]
        self._recording = torch.is_grad_enabled()

    def put_back(self) -> None:
        """Write what is not as it was; nothing where all is."""
        if torch.is_grad_enabled() != self._recording:
            torch.set_grad_enabled(self._recording)
        for one, held in self._dicts:
            if len(one) != len(held) or not (all(map(is_, one, held)) and all(map(is_, one.values(), held.values()))):
                dict.clear(one)
                dict.update(one, held)
        for items, then in self._lists:
            if len(items) != len(then) or any(a is not b for a, b in zip(items, then, strict=True)):
                items.clear()  # a deque has no slices
                items.extend(then)
        for names, name, value in self._items:
            if isinstance(names, dict) and names.get(name, _ABSENT) is not value:  # that of a class is none
                _put(names, name, value)
        for owner, name, value in self._attributes:
            if value is not _ABSENT and read(owner, name, _ABSENT) is not value:
                with contextlib.suppress(Exception):  # a property makes its value anew each time it is read
                    setattr(owner, name, value)
        for tensor, before, flag in self._tensors:
            if _address(tensor) != _address(before) or tensor.shape != before.shape:
                tensor.data = before
            if tensor.is_leaf and tensor.requires_grad != flag:
                tensor.requires_grad_(flag)


def _put(names: dict[str, object], name: str, value: object) -> None:
    if value is _ABSENT:
        names.pop(name, None)
    else:
        names[name] = value
