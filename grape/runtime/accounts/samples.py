"""Times of calls, gathered without making the cell wait for the device."""

from __future__ import annotations

from collections.abc import Iterable

from ...profiling import CallTimer


class CallTimes:
    """Timers of calls, oldest first; at most `limit`, each read once when somebody asks.

    The first one may be cold: memory is allocated then, plans are made, libraries loaded, which later calls do without.
    """

    __slots__ = ("_cold", "_limit", "_ms", "_pending")

    def __init__(self, limit: int = 128) -> None:
        self._limit = limit
        self._cold = False
        self._pending: list[CallTimer] = []
        self._ms: list[float] = []

    def __len__(self) -> int:
        return len(self._ms) + len(self._pending)

    @property
    def full(self) -> bool:
        return len(self) >= self._limit

    def add(self, timer: CallTimer, *, cold: bool = False) -> None:
        self._cold |= cold and not len(self)
        self._pending.append(timer)

    def ms(self, leave: int = 0) -> list[float]:
        """All times in milliseconds, but for the newest `leave` that the device may not have finished."""
        ready = len(self._pending) - leave
        if ready > 0:
            self._ms += [timer.elapsed_ms() for timer in self._pending[:ready]]
            del self._pending[:ready]
        return list(self._ms)

    def warm_ms(self, leave: int = 0) -> list[float]:
        """`ms` without a cold first one."""
        return self.ms(leave)[self._cold :]

    @property
    def cold_ms(self) -> float | None:
        """Milliseconds of the cold first one, if there was one."""
        return self.ms()[0] if self._cold else None

    @staticmethod
    def warm(several: Iterable[CallTimes]) -> list[float]:
        return [ms for times in several for ms in times.warm_ms()]

    @staticmethod
    def joined(several: Iterable[CallTimes]) -> list[float]:
        return [ms for times in several for ms in times.ms()]
