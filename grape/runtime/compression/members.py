"""Records of the store about a shape, about a class of shapes, and of an executable."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakValueDictionary

from ..backends.executables import Executable, UpdatableGraph
from ..backends.protocol import Prepared
from .classes import TopologyClass


class User(Protocol):
    """Who launches a shape. While an executable has it loaded, that happens without the store."""

    @property
    def launches(self) -> int:
        """How often the shape was launched so far."""

    @property
    def saving_ns(self) -> float | None:
        """Nanoseconds that a launch saves against doing the same without a graph; None where nobody measured it."""

    @property
    def kept_bytes(self) -> int:
        """Bytes on the host of what it keeps for launches and can make again."""

    def let_go(self) -> None:
        """Forget that."""

    def moved(self, launch: Callable[[], None] | None) -> None:
        """From now on `launch` enqueues the shape; None: ask the store."""


@dataclass(slots=True, eq=False)
class ExecutableGroup:
    """A class, or a shape alone, with what its executables are made from and what was measured of them.

    `owner` is whose shapes these are: executables are counted by owner, and shared within one.
    """

    graph: UpdatableGraph
    topology: TopologyClass | None
    owner: Hashable
    executable_bytes: int = 0
    instantiate_ns: float = 0.0
    nodes_ns: float | None = None
    """Of writing one node that was prepared."""
    whole_ns: float | None = None
    """Of an update from a whole graph."""
    executables: dict[int, Loaded] = field(default_factory=dict)
    """By number."""
    latest: int = -1
    """The number of the executable that was loaded last."""
    originals: dict[int, Prepared] = field(default_factory=dict)
    """Writes of what the class's base says, one per node that had to be given it back."""
    _changed: WeakValueDictionary[int, frozenset[int]] = field(default_factory=WeakValueDictionary)

    def same(self, changed: frozenset[int]) -> frozenset[int]:
        """The set as its first member has it: most shapes differ in the same nodes, and compare by identity."""
        known = self._changed.get(hash(changed))
        if known == changed:
            return known
        self._changed[hash(changed)] = changed
        return changed

    def prefers_nodes(self, changes: int) -> bool:
        """True where writing so many nodes takes less time than an update from a whole graph, as far as is known."""
        return (
            self.whole_ns is not None and self.nodes_ns is not None and self.whole_ns > self.nodes_ns * max(changes, 1)
        )

    def switch_ns(self, changes: int) -> float:
        """Of the cheaper way; 0 where nothing is known."""
        whole_ns, nodes_ns = self.whole_ns or 0.0, (self.nodes_ns or 0.0) * max(changes, 1)
        return min(whole_ns, nodes_ns) or whole_ns or nodes_ns


@dataclass(slots=True, eq=False)
class Member:
    """An admitted shape. `loaded` is the executable that does its work now."""

    shape: Hashable
    group: ExecutableGroup
    record: bytes
    attachment: object
    graph: UpdatableGraph | None
    """While it is in the working set. That of the shape that founded the class (`founder`) is `group.graph`."""
    user: User
    changed: frozenset[int] = frozenset()
    """The nodes that differ from the class's base."""
    prepared: Prepared | None = None
    """Their writes, while they are in the working set."""
    founder: bool = False
    loaded: Loaded | None = None
    paid_ns: float = 0.0
    """Nanoseconds that switches to this shape took since it got an executable of its own."""
    missed_ns: float = 0.0
    """Nanoseconds that calls lost that ran without a graph because others are more useful."""
    counted: int = 0
    used_at: int = 0
    """How many calls of all shapes had been counted when its last one was."""

    @property
    def whole(self) -> UpdatableGraph | None:
        """The shape's graph, where it is still there."""
        return self.group.graph if self.founder else self.graph


@dataclass(slots=True, eq=False)
class Loaded:
    """An executable. `member` is the verified shape that it does; None: nobody may launch it.

    `touched` are the nodes that may differ from the class's base, so no switch needs to know what was there.
    """

    number: int
    executable: Executable
    group: ExecutableGroup
    member: Member | None = None
    touched: frozenset[int] = frozenset()


@dataclass(slots=True)
class Counts:
    """Of one owner, so far. `launches`: of shapes that are gone."""

    launches: int = 0
    switches: int = 0
    instantiations: int = 0
    evictions: int = 0
    refused: int = 0
