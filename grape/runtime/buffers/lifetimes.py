"""How long the results of a region live: which are dead, or come back as arguments, one call later.

Observed on eager calls, by weak references. A result that nobody keeps may be handed out in place; an argument that was
a result may be read where a graph will put it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from torch.multiprocessing.reductions import StorageWeakRef

from ..guarding.structure import Layout

ENOUGH = 12
"""So many calls are judged."""


class Lifetimes:
    """`arrive` before and `leave` after each eager call, with the number of the call.

    `came_back`: arguments of the call that arrived last, by path, with the path of the result that the eager call
    before made; `sides`: at which of the two sides of that result's slots each would be if graphs had served the
    calls since.
    """

    def __init__(self) -> None:
        self._results: dict[int, dict[str, StorageWeakRef]] = {}
        self._judged: Counter[str] = Counter()
        self._kept: Counter[str] = Counter()
        self._watched = 0
        self._given: dict[int, str] = {}
        self._made: frozenset[str] = frozenset()
        self._recurs = False
        self.came_back: dict[str, str] = {}
        self.sides: dict[str, int] = {}

    @property
    def enough(self) -> bool:
        """True where further calls tell nothing; where results come back, each tells where the next ones lie."""
        return self._watched >= ENOUGH and not self._recurs

    def begin_run(self) -> None:
        """A new cell runs: how long the last results of the one before lived says nothing of those between calls."""
        self._results.clear()
        self.came_back, self.sides = {}, {}

    def arrive(self, call: int, layout: Layout, at: Mapping[int, int]) -> None:
        """`layout` is that of the arguments; `at` has the sides of results in slots, by their storages' identity."""
        given: dict[int, str] = {}
        for leaf, path in zip(layout.leaves, layout.paths, strict=True):
            given.setdefault(leaf.untyped_storage()._cdata, path)
        before = self._results.get(call - 1, {})
        alive = {path: reference.cdata for path, reference in before.items() if not reference.expired()}
        first: dict[int, str] = {}  # of results that share a storage, as where results are put into slots
        for path, cdata in alive.items():
            if path in self._made:
                first.setdefault(cdata, path)
        self.came_back = {given[cdata]: path for cdata, path in first.items() if cdata in given}
        self._recurs |= bool(self.came_back)
        turned = {path: 1 - self.sides.get(path, 1) for path in self.came_back}
        self.sides = turned | {path: at[cdata] for cdata, path in given.items() if cdata in at}
        self._given = given
        if self._watched < ENOUGH:
            for path in before:
                self._judged[path] += 1
                self._kept[path] += path in alive and alive[path] not in given
            for path, reference in self._results.get(call - 2, {}).items():
                self._kept[path] += not reference.expired()
        self._results = {call - 1: self._results[call - 1]} if call - 1 in self._results else {}

    def leave(self, call: int, after: Layout) -> None:
        """`after` is the layout of (result, args, kwargs) once the call is over."""
        self._watched += 1
        self._results[call] = {
            path: StorageWeakRef(leaf.untyped_storage()) for leaf, path in zip(after.leaves, after.paths, strict=True)
        }
        held = self._results[call].items()
        self._made = frozenset(path for path, reference in held if reference.cdata not in self._given)

    def passing(self) -> frozenset[str]:
        """Results that one call later were always dead or an argument, and after that one dead."""
        return frozenset(path for path, judged in self._judged.items() if judged and not self._kept[path])
