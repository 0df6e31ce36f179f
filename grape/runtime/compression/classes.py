"""Which captured shapes one executable can serve: topology classes.

Equal fingerprints are necessary, a trial decides: an update can be refused, or accepted and wrong (an executable keeps
the cluster size of a kernel that it had before).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from .codec import Base


@dataclass(slots=True, eq=False)
class TopologyClass:
    """Shapes that accept updates from one another. Records of `shapes` are differences from `base`."""

    fingerprint: str
    base: Base
    shapes: set[Hashable] = field(default_factory=set)


class Classes:
    """All classes of a region."""

    MAX_TRIALS = 4
    """Classes of one fingerprint that a shape is tried on, those with the most shapes first."""

    def __init__(self) -> None:
        self._by_fingerprint: dict[str, list[TopologyClass]] = {}
        self._of: dict[Hashable, TopologyClass] = {}

    def candidates(self, fingerprint: str) -> list[TopologyClass]:
        """The classes that a shape is tried on."""
        return sorted(self._by_fingerprint.get(fingerprint, ()), key=lambda one: -len(one.shapes))[: self.MAX_TRIALS]

    def add(self, shape: Hashable, topology: TopologyClass) -> None:
        """Take a shape into a class that accepts it."""
        topology.shapes.add(shape)
        self._of[shape] = topology

    def found(self, shape: Hashable, fingerprint: str, base: Base) -> TopologyClass:
        """A new class, of this shape."""
        founded = TopologyClass(fingerprint, base)
        self._by_fingerprint.setdefault(fingerprint, []).append(founded)
        self.add(shape, founded)
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
