"""How often a loop on the device may run its body, while a replay is compared: one that never ends would hang the GPU.

The kernel that sets a loop's condition counts its iterations and compares with a limit, both in device memory. Without
a bound the limit is larger than any count. The kernel runs anyway, in each iteration; what it reads and writes besides
are four words in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

LOOPS = 4096
"""So many loops a graph may have, those in bodies included. Graphs share the counters: only one replays at a time."""
_NO_LIMIT = 2**63 - 1


class LoopBound:
    """Of the graphs of one backend. `cells`: the limit, 1 where a loop was ended by it, and the counters."""

    def __init__(self, device: torch.device) -> None:
        with torch.inference_mode(False), torch.no_grad():
            self.cells = torch.zeros(2 + LOOPS, dtype=torch.int64, device=device)
            self._limit, self._reached = self.cells[0], self.cells[1]
            self._limit.fill_(_NO_LIMIT)

    @contextmanager
    def of(self, iterations: int) -> Iterator[Callable[[], bool]]:
        """See `Backend.bounded`. What is written is written in the order of the current stream, as replays are."""
        with torch.no_grad():
            self._reached.zero_()
            self._limit.fill_(iterations)
        try:
            yield lambda: bool(self._reached)
        finally:
            with torch.no_grad():
                self._limit.fill_(_NO_LIMIT)
