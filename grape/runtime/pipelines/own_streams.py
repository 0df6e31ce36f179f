"""The streams of pipelines, in the whole process.

Graphs of stages overlap, and those of one capture stream share a workspace of cuBLAS: each stream has one user at a
time. Those of a pipeline that is closed serve the next one, in the same order, with the workspaces that they have.
"""

from __future__ import annotations

import torch

from ...profiling.private_streams import private_stream

_made: dict[torch.device, int] = {}
_free: dict[torch.device, list[torch.cuda.Stream]] = {}


class OwnStreams:
    """Of one pipeline."""

    def __init__(self) -> None:
        self._mine: list[torch.cuda.Stream] = []

    def take(self, device: torch.device) -> torch.cuda.Stream:
        """A stream of `device` that no pipeline has."""
        free = _free.get(device)
        stream = free.pop() if free else _new_one(device)
        self._mine.append(stream)
        return stream

    def give_back(self) -> None:
        """Nothing runs on them any more. Idempotent."""
        mine, self._mine = self._mine, []
        for stream in reversed(mine):
            _free.setdefault(stream.device, []).append(stream)


def _new_one(device: torch.device) -> torch.cuda.Stream:
    _made[device] = _made.get(device, 0) + 1
    return private_stream(device, f"pipelines {_made[device]}")
