"""A capture of Grape's is denied to libraries that ask for one, so that they run as they do without."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class _Thread(threading.local):
    """True where a capture of Grape's runs in this thread: torch is made to deny it, see `not_capturing`."""

    captures = False


_thread = _Thread()


def captures_here() -> bool:
    """True inside of `not_capturing`, in this thread."""
    return _thread.captures


@contextmanager
def not_capturing() -> Iterator[None]:
    """Answer "is this stream being captured?" with no, so that libraries take their eager path (GR402)."""
    graphs, name = torch.cuda.graphs, "_cuda_isCurrentStreamCapturing"
    original = getattr(graphs, name)
    setattr(graphs, name, lambda: False)
    _thread.captures = True
    try:
        yield
    finally:
        _thread.captures = False
        setattr(graphs, name, original)
