"""CUDA graphs as an expert writes them: one for each set of shapes, placeholders that are copied into before a replay,
results that are copied out, because the next replay overwrites them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from _handwritten import Pool
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from .job import Size

__all__ = ["Placeholders", "pool_for"]

T = TypeVar("T")
WARM = 3
"""So many calls come before a capture, on its stream."""


class PretendedPool:
    """Stands for a pool where there is no GPU: the same rules about addresses, by the reference that Grape has."""

    def __init__(self) -> None:
        from grape.runtime.backends.reference.backend import ReferenceBackend

        self._backend = ReferenceBackend(poison=True)

    def warm(self, body: Callable[[], Any]) -> None:
        body()

    def capture(self, body: Callable[[], T]) -> tuple[Any, T]:
        return self._backend.capture(body)


def pool_for(size: Size) -> Any:
    return Pool() if size.device.type == "cuda" else PretendedPool()


class Placeholders:
    """Called like `step`. Arguments are tensors; anything else in them is fixed by the first call of a kind."""

    def __init__(self, step: Callable[..., Any], size: Size) -> None:
        self._step, self._pool = step, pool_for(size)
        self._made: dict[Any, tuple[Any, list[torch.Tensor], Any]] = {}

    def prepare(self, *given: Any) -> None:
        """Capture what serves these shapes. It runs `step`, so state is to be put back."""
        leaves, spec = tree_flatten(given)
        if self._key(leaves, spec) not in self._made:
            self._made[self._key(leaves, spec)] = self._capture(leaves, spec)

    @staticmethod
    def _key(leaves: list[Any], spec: Any) -> Any:
        return (spec, *((leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves))

    def __call__(self, *given: Any) -> Any:
        leaves, spec = tree_flatten(given)
        graph, placeholders, result = self._made[self._key(leaves, spec)]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        for placeholder, tensor in zip(placeholders, tensors, strict=True):
            placeholder.copy_(tensor)
        graph.replay()
        return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, result)

    def _capture(self, leaves: list[Any], spec: Any) -> tuple[Any, list[torch.Tensor], Any]:
        static = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        arguments = tree_unflatten(static, spec)
        for _ in range(WARM):
            self._pool.warm(lambda: self._step(*arguments))
        graph, result = self._pool.capture(lambda: self._step(*arguments))
        return graph, [leaf for leaf in static if isinstance(leaf, torch.Tensor)], result
