"""Truth values brought to the host behind the work that makes them: a copy to pinned memory and an event each."""

from __future__ import annotations

from collections import deque

import torch


class EventPoll:
    """Implements `FlagPoll` on the current stream of the flags' device."""

    def __init__(self) -> None:
        self._posted: deque[tuple[torch.Tensor, torch.cuda.Event]] = deque()
        self._free: list[tuple[torch.Tensor, torch.cuda.Event]] = []

    @property
    def pending(self) -> int:
        return len(self._posted)

    def post(self, flag: torch.Tensor) -> None:
        arrived, event = self._free.pop() if self._free else _slot()
        arrived.copy_(flag, non_blocking=True)
        event.record(torch.cuda.current_stream(flag.device))  # where the copy was issued, whatever device is current
        self._posted.append((arrived, event))

    def take(self, *, wait: bool) -> bool | None:
        arrived, event = self._posted[0]
        if wait:
            event.synchronize()
        elif not event.query():
            return None
        self._free.append(self._posted.popleft())
        return bool(arrived)

    def clear(self) -> None:
        # Copies may be under way into what is pending, so none of it is used again before torch has seen their events.
        self._posted.clear()


def _slot() -> tuple[torch.Tensor, torch.cuda.Event]:
    with torch.inference_mode(False):
        return torch.empty((), dtype=torch.bool, pin_memory=True), torch.cuda.Event(blocking=True)
