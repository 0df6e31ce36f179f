"""How long the results of a region live: which are dead, or come back as arguments, one call later.

Observed on eager calls, by weak references. A result that nobody keeps may be handed out in place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

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
        self._watched = 0

    @property
    def enough(self) -> bool:
        return self._watched >= ENOUGH

    def begin_run(self) -> None:
        """A new cell runs: how long the last results of the one before lived says nothing of those between calls."""
        self._results.clear()

    def arrive(self, call: int, leaves: Sequence[torch.Tensor]) -> None:
        given = {leaf.untyped_storage()._cdata for leaf in leaves}
        for path, reference in self._results.get(call - 1, {}).items():
            self._judged[path] += 1
            self._kept[path] += not reference.expired() and reference.cdata not in given
        for path, reference in self._results.get(call - 2, {}).items():
            self._kept[path] += not reference.expired()
        self._results = {call - 1: self._results[call - 1]} if call - 1 in self._results else {}

    def leave(self, call: int, after: Layout) -> None:
        """`after` is the layout of (result, args, kwargs) once the call is over."""
        self._watched += 1
        self._results[call] = {
            path: StorageWeakRef(leaf.untyped_storage()) for leaf, path in zip(after.leaves, after.paths, strict=True)
        }

    def passing(self) -> frozenset[str]:
        """Results that one call later were always dead or an argument, and after that one dead."""
        return frozenset(path for path, judged in self._judged.items() if judged and not self._kept[path])
