"""Parameters under other names: while a region runs for a capture, tensors over the same memory stand for its leaves.

The captured autograd graph thus knows no tensor of the person's: no hook of theirs runs in it, no `.grad` is touched,
and no node that accumulates a gradient on the person's stream takes part.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ..guarding.guards import GuardSet


class StandIns:
    """For all leaves that `guards` found and that require a gradient. `connected` ones are views of the originals, for
    a gradient that is differentiated again; others are leaves of their own."""

    def __init__(self, guards: GuardSet, *, connected: bool = False) -> None:
        self.originals: list[torch.Tensor] = [leaf for _, leaf in guards.leaves() if leaf.requires_grad]
        self.tensors: list[torch.Tensor] = [stand_in(leaf, connected=connected) for leaf in self.originals]
        self._by_identity = {id(leaf): made for leaf, made in zip(self.originals, self.tensors, strict=True)}
        self._places: Sequence[tuple[Any, object]] = guards.places_of(set(self._by_identity))
        self._attributes = guards.attributes

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the dicts and lists that the region reads hold the stand-ins."""
        taken: list[tuple[Any, object, torch.Tensor]] = []
        before = [(one, dict(one)) for one in self._attributes]
        try:
            for holder, key in self._places:
                original = holder[key]
                taken.append((holder, key, original))
                holder[key] = self._by_identity[id(original)]
            yield
        finally:
            for holder, key, original in taken:
                holder[key] = original
            made = {id(one) for one in self.tensors}
            for attributes, values in before:  # a recurrent module lists its weights anew where they are others
                for name, value in list(attributes.items()):
                    if isinstance(value, list) and value is not values.get(name) and _mentions(value, made):
                        attributes[name] = values[name]


def _mentions(values: list[object], made: set[int]) -> bool:
    return any(id(one() if isinstance(one, weakref.ref) else one) in made for one in values)


def stand_in(leaf: torch.Tensor, *, connected: bool) -> torch.Tensor:
    if connected:
        with torch.enable_grad():
            return leaf.view_as(leaf)
    if type(leaf) is torch.nn.Parameter:
        return torch.nn.Parameter(leaf.detach())
    return leaf.detach().requires_grad_()
