"""Takes CUPTI out of the process when a profile is over.

Once used, it stays between the program and the driver and slows each launch: by 20 to 50% of an eager step on H200s.
Kineto ends that where TEARDOWN_CUPTI is set, at some later launch; here it ends at once, while the device is idle. The
next profile brings CUPTI back by itself. See `cuptiFinalize` in the CUPTI documentation.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from pathlib import Path
from threading import get_ident
from traceback import walk_stack

import torch

from ...originals import environ

_TORCH = os.path.dirname(torch.__file__) + os.sep
MOST = 24
"""So often in a process: some 1 MB of device memory seemed to stay behind each time."""
_times = 0

_TOOLS = ("TEARDOWN_CUPTI", "CUDA_INJECTION64_PATH", "NV_CUDA_INJECTION64_PATH")
"""Where one of these is set, somebody else decides what CUPTI does."""


def detach() -> bool:
    """True where CUPTI was taken out. Call it with an idle device, and no profiler running.

    It is left where another tool has attached it, and while another thread is inside of torch: that may be using CUDA.
    """
    global _times
    if _times >= MOST or any(name in environ for name in _TOOLS) or _others_use_torch():
        return False
    library = _library()
    if library is None or library.cuptiFinalize() != 0:
        return False
    _times += 1
    return True


def _others_use_torch() -> bool:
    return any(
        number != get_ident() and any(one.f_code.co_filename.startswith(_TORCH) for one, _ in walk_stack(frame))
        for number, frame in sys._current_frames().items()  # a data loader's thread waits inside of torch
    )


@functools.cache
def _loaded(path: str) -> ctypes.CDLL:
    return ctypes.CDLL(path)


def _library() -> ctypes.CDLL | None:
    """The CUPTI that torch has loaded; None where it has not, or this system does not tell."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    found = next((line[line.index("/") :] for line in lines if "libcupti.so" in line), None)
    try:
        return _loaded(found) if found is not None else None
    except OSError:
        return None
