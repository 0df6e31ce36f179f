"""Autocast during a capture."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["autocast_cache_off"]


@contextmanager
def autocast_cache_off() -> Iterator[None]:
    """A cast that autocast caches dies with the caller's autocast block: the graph must not use one, nor leave one."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
        torch.clear_autocast_cache()
