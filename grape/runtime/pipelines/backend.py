"""CUDA graphs of a stage, whose replays overlap with those of other stages and of the person."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from ..backends.cuda.backend import CudaBackend
from ..backends.cuda.executables.updatable import UpdatableCudaGraph
from ..backends.cuda.graph import CudaGraph
from ..backends.protocol import Pool

T = TypeVar("T")


class StageBackend(CudaBackend):
    """Captures on `stream`, which no other backend has: its workspace of cuBLAS is that of this stage's graphs alone.

    Bodies of conditional nodes are left out: those are captured on streams that all backends share.
    """

    def __init__(self, device: torch.device, stream: torch.cuda.Stream) -> None:
        super().__init__(device, conditional_bodies=False)
        self._stream = stream
        if self._executables is not None:
            self._executables.ordered = False

    def capture(self, body: Callable[[], T], pool: Pool | None = None) -> tuple[CudaGraph | UpdatableCudaGraph, T]:
        """As any backend's, while the device is idle.

        Up to torch 2.12 the beginning of a capture writes seed and offset where kernels of others read theirs.
        """
        self.synchronize()
        try:
            return super().capture(body, pool)
        finally:
            self.synchronize()
