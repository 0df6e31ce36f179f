"""Graphs of one device come one after the other, whatever streams they are launched on.

They are captured on the same few streams, and so name the same workspaces of cuBLAS: two that ran at once would write
each other's. Each region's graphs stay on one stream; those of several functions may be launched on several.
"""

from __future__ import annotations

from contextlib import suppress

import torch

_last: dict[int, tuple[int, torch.cuda.Stream]] = {}
"""By device: the stream of the last launch, by its address."""


def follow(index: int) -> int:
    """The address of the current stream, which waits for the last launch if that was on another one."""
    current = int(torch._C._cuda_getCurrentRawStream(index))
    known = _last.get(index)
    if known is None or known[0] != current:
        stream = torch.cuda.current_stream(index)
        if known is not None:
            with suppress(RuntimeError):  # a stream that was not torch's, and is gone: so is its work
                stream.wait_stream(known[1])
        _last[index] = current, stream
    return current
