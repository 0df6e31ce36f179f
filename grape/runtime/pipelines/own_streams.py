"""The streams of pipelines, in the whole process.

torch has 32 streams of each priority for a device and gives them out in turn, so two of its `Stream` may be one. Graphs
of stages overlap, and those of one capture stream share a workspace of cuBLAS: each stream has one user at a time.
Those of a pipeline that is closed serve the next one, in the same order, with the workspaces that they have. Captures
of others, and most people, take streams of the other priority.
"""

from __future__ import annotations

import torch

from ...errors import UsageError

_MOST = 32
_PRIORITY = -1
_taken: set[torch.cuda.Stream] = set()
_free: dict[torch.device, list[torch.cuda.Stream]] = {}


class OwnStreams:
    """Of one pipeline."""

    def __init__(self) -> None:
        self._mine: list[torch.cuda.Stream] = []

    def take(self, device: torch.device) -> torch.cuda.Stream:
        """A stream of `device` that no pipeline has. Raises `UsageError` where none is left."""
        stream = self._free_one(device) or self._new_one(device)
        _taken.add(stream)
        self._mine.append(stream)
        return stream

    def give_back(self) -> None:
        """Nothing runs on them any more. Idempotent."""
        mine, self._mine = self._mine, []
        for stream in reversed(mine):
            _taken.discard(stream)
            _free.setdefault(stream.device, []).append(stream)

    def _free_one(self, device: torch.device) -> torch.cuda.Stream | None:
        free = _free.get(device)
        return free.pop() if free else None

    def _new_one(self, device: torch.device) -> torch.cuda.Stream:
        current = torch.cuda.current_stream(device)
        for _ in range(_MOST):
            stream = torch.cuda.Stream(device, priority=_PRIORITY)
            if stream not in _taken and stream != current:
                return stream
        raise UsageError(f"grape.pipeline has no streams left on {device}: close pipelines, or pass fewer stages")
