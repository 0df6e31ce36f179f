"""Streams that nobody else is given, one for each use.

torch has 32 streams of a device and hands them out in turn, so a program that makes more has one twice. On the stream
of a capture whatever somebody else launches becomes part of the graph, and whoever waits for it raises.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any

import torch

_NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING: the stream and the default one do not wait for each other."""
_RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED: a thread that captures may make a stream."""


def driver_library() -> Any:
    """The CUDA driver. Raises OSError where there is none."""
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


@functools.cache
def private_stream(device: torch.device, use: str) -> torch.cuda.Stream:
    """The stream of `device`, which has an index, for that use: the same one each time, in the whole process. It lives
    as long, for cuBLAS keeps a workspace for each stream that it meets. Also inside a capture.

    Without NVIDIA's driver one that torch hands out. Raises RuntimeError where the driver makes none.
    """
    torch.cuda.init()
    try:
        driver = driver_library()
    except OSError:
        return torch.cuda.Stream(device)
    made, mode = ctypes.c_void_p(), ctypes.c_int(_RELAXED)
    with torch.cuda.device(device):
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        try:
            torch.cuda.mem_get_info(device)  # makes the device's context, without which there are no streams
            error = driver.cuStreamCreate(ctypes.byref(made), _NON_BLOCKING)
        finally:
            driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        if error:
            raise RuntimeError(f"cuStreamCreate failed with error {error}")
    return torch.cuda.ExternalStream(made.value, device=device)
