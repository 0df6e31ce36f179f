"""Which CUDA device a `torch.device` names."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["device_index"]


def device_index(device: Any) -> int:
    """The index of a CUDA device; of the calling thread's current one (0 before CUDA starts) where it names none."""
    if device.index is not None:
        return int(device.index)
    return torch.cuda.current_device() if torch.cuda.is_initialized() else 0
