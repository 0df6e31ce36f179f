"""By how much each line of the cell lets the device's memory grow, as the allocator's books say."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..originals import perf_counter_ns
from .devices.visible import device_index

_BESIDE_NS, _SHARE = 4_000_000, 0.005
"""So much may go to the books: nanoseconds, and beside them a share of the time. They take some 30 us to read."""


def allocated_by(device: torch.device) -> Callable[[], int | None] | None:
    """Reads how many bytes torch's allocator has handed out on `device`; None where it keeps no books, on the CPU."""
    if device.type != "cuda":
        return None

    def read() -> int | None:
        if not torch.cuda.is_initialized():
            return None
        stats = torch.cuda.memory_stats_as_nested_dict(device_index(device))
        held: int = stats.get("allocated_bytes", {}).get("all", {}).get("current", 0)
        return held

    return read


class LineMemory:
    """Told of each line that ends, it compares what is held now with what was held when the line began.

    A pass of a line in which `captures` counts on holds memory of a graph, and is left out.
    """

    def __init__(
        self,
        read: Callable[[], int | None],
        captures: Callable[[], int],
        *,
        clock: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self._read = read
        self._captures = captures
        self._clock = clock
        self._began = clock()
        self._held: tuple[int, int] | None = None
        self._cost_ns = 0
        self.own_ns = 0
        self.grown: dict[int, int] = {}
        """Bytes: the most that a pass of the line left behind; 0 where no pass left more than there was."""

    def passed(self, line: int | None, now: int) -> None:
        """`line`, or what is no line of the cell, ends `now`."""
        before, self._held = self._held, None
        reads = 1 if before is not None else 2  # one alone tells nothing
        if self.own_ns + reads * self._cost_ns > _BESIDE_NS + _SHARE * (now - self._began):
            return
        held = self._read()
        if held is not None:
            self._held = held, self._captures()
            if line is not None and before is not None and before[1] == self._held[1]:
                self.grown[line] = max(self.grown.get(line, 0), held - before[0])
        self._cost_ns = self._clock() - now
        self.own_ns += self._cost_ns
