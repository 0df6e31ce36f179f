"""Streams that nobody else is given."""

from __future__ import annotations

from .rows import rows_of

__all__ = ["ROWS"]

ROWS = (
    *rows_of(
        "grape.profiling.private_streams",
        ("tests/unit/test_private_streams.py",),
        ("private streams: a new one each time", "@functools.cache\n", "@functools.lru_cache(maxsize=0)\n"),
        ("private streams: the default one waits for them", "_NON_BLOCKING = 1\n", "_NON_BLOCKING = 0\n"),
        ("private streams: none inside a capture", "ctypes.c_int(_RELAXED)", "ctypes.c_int(0)"),
        ("private streams: a device has no context", "            torch.cuda.mem_get_info(device)", "            pass"),
        ("private streams: an error is a stream", "        if error:\n", "        if False:\n"),
    ),
)
