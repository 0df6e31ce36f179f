"""Times of calls, gathered without making the cell wait for the device."""

from __future__ import annotations

from collections.abc import Iterable

from .backends.protocol import CallTimer

__all__ = ["CallTimes"]


class CallTimes:
    """Timers of calls, oldest first; at most `limit`, each read once when somebody asks."""

    __slots__ = ("_limit", "_ms", "_pending")

    def __init__(self, limit: int = 128) -> None:
        self._limit = limit
        self._pending: list[CallTimer] = []
        self._ms: list[float] = []

    def __len__(self) -> int:
        return len(self._ms) + len(self._pending)

    @property
    def full(self) -> bool:
        return len(self) >= self._limit

    def add(self, timer: CallTimer) -> None:
        self._pending.append(timer)

    def ms(self, leave: int = 0) -> list[float]:
        """All times in milliseconds, but for the newest `leave` that the device may not have finished."""
        ready = len(self._pending) - leave
        if ready > 0:
            self._ms += [timer.elapsed_ms() for timer in self._pending[:ready]]
            del self._pending[:ready]
        return list(self._ms)

    @staticmethod
    def joined(several: Iterable[CallTimes]) -> list[float]:
        return [ms for times in several for ms in times.ms()]
