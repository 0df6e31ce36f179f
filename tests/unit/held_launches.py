"""A tape as a busy device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from grape.runtime.backends.reference.backend import ReferenceBackend


@contextmanager
def launches_held(backend: ReferenceBackend) -> Iterator[None]:
    """Inside, replays and copies wait until `synchronize` or the end of the block.

    What the host does itself with their memory does not wait, as it would not on a second stream.
    """
    backend._queue.held = True
    try:
        yield
    finally:
        backend._queue.held = False
        backend._queue.drain()
