"""A store whose shapes are launched through it, which counts: nobody owns the graphs of a test."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from grape.runtime.backends.executables import NoExecutable, UpdatableGraph
from grape.runtime.compression import ExecutableStore
from grape.runtime.compression.admission import Verify


class PlainUser:
    """Implements `User`; it keeps nothing, and asks the store each time."""

    launches: int = 0
    saving_ns: float | None = None
    kept_bytes: int = 0

    def let_go(self) -> None: ...

    def moved(self, launch: Callable[[], None] | None) -> None: ...


class PlainStore(ExecutableStore):
    """`missing` is what the last replay that was not served raised."""

    missing: NoExecutable | None = None

    def admit(
        self, shape: Hashable, graph: UpdatableGraph, verify: Verify, *, owner: Hashable = None, user: Any = None
    ) -> bool:
        return super().admit(shape, graph, verify, owner=owner, user=user or PlainUser())

    def joins(self, shape: Hashable, graph: UpdatableGraph, verify: Verify) -> bool:
        """Whether it was admitted to a class that had shapes."""
        before = self.account().classes
        assert self.admit(shape, graph, verify)
        return self.account().classes == before

    def serves(self, shape: Hashable) -> bool:
        """Whether a replay was on the stream."""
        member = self._members.get(shape)
        served = False
        if member is not None:
            member.user.launches += 1
        try:
            self.replay(shape)
            served = True
        except NoExecutable as missing:
            self.missing = missing
        finally:
            if member is not None and not served:
                member.user.launches -= 1
        return served

    def serves_at_once(self, shape: Hashable) -> bool:
        """As `serves`, by an executable that had the shape loaded."""
        return bool(self.executable_bytes(shape)) and self.serves(shape)
