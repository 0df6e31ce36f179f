"""How long the results of a region live: which are dead, or come back as arguments, one call later.

Observed on eager calls, by weak references. A result that nobody keeps may be handed out in place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .structure import Layout

__all__ = ["Lifetimes"]

ENOUGH = 12
"""So many calls are watched; each costs the flattening of a result."""


class Lifetimes:
    """`arrive` before and `leave` after each eager call, with the number of the call."""

    def __init__(self) -> None:
        self._results: dict[int, dict[str, StorageWeakRef]] = {}
        self._judged: Counter[str] = Counter()
        self._kept: Counter[str] = Counter()
        self._fed: Counter[str] = Counter()
        self._watched = 0

    @property
    def enough(self) -> bool:
        return self._watched >= ENOUGH

    def arrive(self, call: int, leaves: Sequence[torch.Tensor]) -> None:
        given = {leaf.untyped_storage()._cdata for leaf in leaves}
        for path, reference in self._results.get(call - 1, {}).items():
            self._fed[path] += reference.cdata in given and not reference.expired()
        for path, reference in self._results.get(call - 2, {}).items():
            self._judged[path] += 1
            self._kept[path] += not reference.expired()
        self._results = {call - 1: self._results[call - 1]} if call - 1 in self._results else {}

    def leave(self, call: int, after: Layout) -> None:
        """`after` is the layout of (result, args, kwargs) once the call is over."""
        self._watched += 1
        self._results[call] = {
            path: StorageWeakRef(leaf.untyped_storage()) for leaf, path in zip(after.leaves, after.paths, strict=True)
        }

    def passing(self, several_shapes: bool) -> frozenset[str]:
        """Results that were always dead two calls later and come back as arguments.

        Where shapes change from call to call also those that do not come back: their memory is not written by the
        very next call, in which they are still alive.
        """
        return frozenset(self._dead(path for path in self._judged if several_shapes or self._fed[path]))

    def _dead(self, paths: Iterable[str]) -> Iterable[str]:
        return (path for path in paths if not self._kept[path])
