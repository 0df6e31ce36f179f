"""A graph in a store, as the entry that owns it sees it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol

from ..backends.executables import UpdatableGraph
from .admission import Verify
from .store import ExecutableStore


class Replays(Protocol):
    """Who replays: how often so far, and what is kept on the host for that, to be made again when it is needed."""

    @property
    def replays(self) -> int: ...

    @property
    def kept_bytes(self) -> int: ...

    def let_go(self) -> None: ...


class StoredGraph:
    """Implements `Graph`. While an executable has the graph loaded, `replay` is that executable's own, and costs no
    more than it; the store binds it anew when another graph takes the executable (`User.moved`).
    """

    __slots__ = ("__weakref__", "_store", "nodes", "replay", "replayed_by", "saving_ns")

    def __init__(self, store: ExecutableStore, nodes: int) -> None:
        self.nodes = nodes
        self.saving_ns: float | None = None
        self.replayed_by: Replays | None = None
        self._store = store
        self.replay: Callable[[], None] = self._ask

    @classmethod
    def admit(
        cls, store: ExecutableStore, graph: UpdatableGraph, verify: Verify, *, owner: Hashable
    ) -> StoredGraph | None:
        """Hand a graph over to the store. See `ExecutableStore.admit` for what None means."""
        stored = cls(store, graph.nodes)
        try:
            return stored if store.admit(stored, graph, verify, owner=owner, user=stored) else None
        except BaseException:
            store.forget(stored)
            raise

    @property
    def nbytes(self) -> int:
        """Bytes of the executable that has the graph loaded now; 0 where none has."""
        return self._store.executable_bytes(self)

    @property
    def launches(self) -> int:
        return self.replayed_by.replays if self.replayed_by is not None else 0

    @property
    def kept_bytes(self) -> int:
        return self.replayed_by.kept_bytes if self.replayed_by is not None else 0

    def let_go(self) -> None:
        if self.replayed_by is not None:
            self.replayed_by.let_go()

    def moved(self, launch: Callable[[], None] | None) -> None:
        self.replay = launch if launch is not None else self._ask

    def _ask(self) -> None:
        """Replay through the store. Raises `NoExecutable`."""
        self._store.replay(self)

    def release(self) -> None:
        """Later replays raise RuntimeError."""
        self._store.forget(self)
        self.replayed_by = None
        self.replay = _released


def _released() -> None:
    raise RuntimeError("replay of a released graph")
