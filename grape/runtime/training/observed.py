"""Observes what becomes of the results of a region whose graph leaves it: which of them get gradients, laid out how.

Learned from hooks on the nodes of eager results. It is a guess about the next call: a backward that brings others is
served all the same (`Pair.backward`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch.autograd.graph import Node

from ..state import unseen_handles
from .consumed import keeps_graph_back

Pattern = tuple[tuple[int, ...] | None, ...]
"""Of each result that requires a gradient: the strides of what came for it, None where nothing came."""
KEPT = 4
"""So many of the last calls are remembered."""


def differentiable(results: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor]) -> list[int]:
    """The numbers of the results that have an autograd graph, and that did not come with it."""
    given = {id(tensor) for tensor in arguments}
    return [
        i
        for i, tensor in enumerate(results)
        if id(tensor) not in given and not keeps_graph_back(tensor) and tensor.grad_fn is not None
    ]


def pattern_of(gradients: Sequence[torch.Tensor | None]) -> Pattern:
    return tuple(None if gradient is None else tuple(gradient.stride()) for gradient in gradients)


class _Alive:
    """Lives as long as the nodes that were hooked."""

    __slots__ = ("__weakref__",)


@dataclass(slots=True)
class _Seen:
    width: int
    alive: weakref.ref[_Alive]
    strides: dict[int, tuple[int, ...]] = field(default_factory=dict)
    again: bool = False


@dataclass(slots=True)
class Backwards:
    """Of the calls of one shape."""

    _calls: list[_Seen] = field(default_factory=list)
    _noted: list[Pattern] = field(default_factory=list)
    _again: bool = False

    def watch(self, results: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor]) -> None:
        """Look at the gradients that come for these results of an eager call."""
        outputs = [results[i] for i in differentiable(results, arguments)]
        if not outputs:
            return
        alive = _Alive()
        seen = _Seen(len(outputs), weakref.ref(alive))
        self._calls = [*self._calls[1 - KEPT :], seen]
        nodes: dict[Node, list[tuple[int, int]]] = {}
        for number, tensor in enumerate(outputs):
            assert tensor.grad_fn is not None
            nodes.setdefault(tensor.grad_fn, []).append((number, tensor.output_nr))
        with unseen_handles() as handles:
            handles += [node.register_prehook(_noting(seen, places, alive)) for node, places in nodes.items()]

    def note(self, pattern: Pattern) -> None:
        """A backward brought this."""
        if pattern not in self._noted:
            self._noted = [*self._noted[-KEPT:], pattern]

    def note_again(self) -> None:
        """A replayed call's gradient is to be differentiated again."""
        self._again = True

    @property
    def again(self) -> bool:
        """True where a gradient was made that can be differentiated again."""
        return self._again or any(seen.again for seen in self._calls)

    def patterns(self, width: int) -> list[Pattern]:
        """The patterns that were seen for as many results, the latest first."""
        found = [
            tuple(seen.strides.get(i) for i in range(width))
            for seen in reversed(self._calls)
            if seen.width == width and seen.strides
        ]
        noted = [pattern for pattern in reversed(self._noted) if len(pattern) == width]
        return list(dict.fromkeys([*noted, *found]))[:KEPT]

    @property
    def unused(self) -> int:
        """Of so many of the last calls the results are gone, and nobody has differentiated them."""
        return sum(seen.alive() is None and not seen.strides for seen in self._calls)

    @property
    def known(self) -> bool:
        return bool(self._noted) or any(seen.strides for seen in self._calls)


def _noting(seen: _Seen, places: Sequence[tuple[int, int]], alive: _Alive) -> Callable[..., None]:
    def note(gradients: Sequence[torch.Tensor | None], _: _Alive = alive) -> None:
        seen.again |= torch.is_grad_enabled()
        if any(gradient is not None and torch.is_autocast_enabled(gradient.device.type) for gradient in gradients):
            return  # autocast goes on in such a backward, as in no graph
        for number, output in places:
            gradient = gradients[output]
            if gradient is not None and gradient.layout is torch.strided:
                seen.strides[number] = tuple(gradient.stride())

    return note
