"""Bytes that executables take on a device, from the driver's own figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


class ExecutableMeter:
    """Bytes are what the driver had less after executables were made, shared out among them by their nodes.

    The driver takes memory in pieces larger than one executable, and keeps that of destroyed ones for the next. So it
    is asked only while there are more of them than ever before. What other processes do meanwhile is in the figure. A
    graph whose nodes nobody could count counts as one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._grown_bytes = 0
        self._live_nodes = 0
        self._most_nodes = 0

    def nbytes(self, nodes: int) -> int:
        """Bytes that an executable with so many nodes takes; 0 until the driver had less."""
        return self._grown_bytes * max(1, nodes) // self._most_nodes if self._most_nodes else 0

    def made(self, nodes: int, make: Callable[[], T]) -> T:
        """Return what `make` gives; its nodes count until `freed`. Propagates what `make` raises."""
        live = self._live_nodes + max(1, nodes)
        if live <= self._most_nodes:
            made = make()
        else:
            free_before = torch.cuda.mem_get_info(self._device)[0]
            reserved_before = torch.cuda.memory_reserved(self._device)
            made = make()
            grown = free_before - torch.cuda.mem_get_info(self._device)[0]
            grown -= torch.cuda.memory_reserved(self._device) - reserved_before
            self._grown_bytes += max(0, grown)
            self._most_nodes = live
        self._live_nodes = live
        return made

    def freed(self, nodes: int) -> None:
        self._live_nodes -= max(1, nodes)
