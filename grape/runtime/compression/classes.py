"""Which captured shapes one executable can serve: topology classes.

Equal fingerprints are necessary, a trial decides: an update can be refused, or accepted and wrong (an executable keeps
the cluster size of a kernel that it had before).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from .codec import Base

__all__ = ["Classes", "TopologyClass"]


@dataclass(slots=True, eq=False)
class TopologyClass:
    """Shapes that accept updates from one another. Records of `shapes` are differences from `base`."""

    fingerprint: str
    base: Base
    shapes: set[Hashable] = field(default_factory=set)


class Classes:
    """All classes of a region. `trials` counts how often a class was tried for a shape."""

    MAX_TRIALS = 4
    """Classes of one fingerprint that a shape is tried on, those with the most shapes first."""

    def __init__(self) -> None:
        self._by_fingerprint: dict[str, list[TopologyClass]] = {}
        self._of: dict[Hashable, TopologyClass] = {}
        self.trials = 0

    def __len__(self) -> int:
        return sum(map(len, self._by_fingerprint.values()))

    def of(self, shape: Hashable) -> TopologyClass | None:
        """The class of a shape; None where it has none."""
        return self._of.get(shape)

    def place(
        self,
        shape: Hashable,
        fingerprint: str,
        *,
        accepts: Callable[[TopologyClass], bool],
        found: Callable[[], Base | None],
    ) -> TopologyClass | None:
        """The first class that accepts the shape, else a new one on the base that `found` makes; None without a base.

        Raises ValueError where the shape has a class.
        """
        if shape in self._of:
            raise ValueError(f"{shape!r} has a class already")
        candidates = sorted(self._by_fingerprint.get(fingerprint, ()), key=lambda one: -len(one.shapes))
        for candidate in candidates[: self.MAX_TRIALS]:
            self.trials += 1
            if accepts(candidate):
                candidate.shapes.add(shape)
                self._of[shape] = candidate
                return candidate
        if (base := found()) is None:
            return None
        founded = TopologyClass(fingerprint, base, {shape})
        self._by_fingerprint.setdefault(fingerprint, []).append(founded)
        self._of[shape] = founded
        return founded

    def remove(self, shape: Hashable) -> TopologyClass | None:
        """Take a shape out. Returns its class if that was its last shape: then the class is gone too."""
        left = self._of.get(shape)
        if left is None:
            return None
        left.shapes.discard(shape)
        alike = self._by_fingerprint.get(left.fingerprint, [])
        if not left.shapes and left in alike:
            alike.remove(left)
            if not alike:
                del self._by_fingerprint[left.fingerprint]
        del self._of[shape]  # last: after an interrupt another call does the rest
        return None if left.shapes else left
