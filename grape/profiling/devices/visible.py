"""Which CUDA device a `torch.device` names."""

from __future__ import annotations

from typing import Protocol

import torch


class _Device(Protocol):
    """A `torch.device`, whose stubs say that it always has an index."""

    @property
    def index(self) -> int | None: ...


def device_index(device: _Device) -> int:
    """The index of a CUDA device; of the calling thread's current one (0 before CUDA starts) where it names none."""
    if device.index is not None:
        return int(device.index)
    return torch.cuda.current_device() if torch.cuda.is_initialized() else 0
