"""Autocast during a capture."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ...tracing import without_outer_casts


@contextmanager
def autocast_cache_off() -> Iterator[None]:
    """A cast that autocast caches dies with the caller's autocast block: the graph must not use one, nor leave one.

    Casts of a block inside the captured code are that block's own; see `without_outer_casts`.
    """
    with without_outer_casts():
        try:
            yield
        finally:
            if not torch.is_autocast_cache_enabled():
                torch.clear_autocast_cache()
