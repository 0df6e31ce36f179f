"""The CUDA driver, through `cuda.bindings`: errors as exceptions, and one name for a function of several versions.

The driver is asked and not the runtime, because the driver's functions leave no error behind: what a failed call of the
runtime says stays until somebody reads it, and then it is torch that raises.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ....profiling.private_streams import driver_library

INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NOT_SUPPORTED = 801

_WITH_EDGES = {
    "cuGraphAddDependencies": "cuGraphAddDependencies_v2",
    "cuGraphAddNode": "cuGraphAddNode_v2",
    "cuGraphGetEdges": "cuGraphGetEdges_v2",
    "cuStreamGetCaptureInfo": "cuStreamGetCaptureInfo_v3",
    "cuStreamUpdateCaptureDependencies": "cuStreamUpdateCaptureDependencies_v2",
}
"""The name in bindings for CUDA 12 of the version that knows data of edges; those for CUDA 13 have no other."""


class DriverError(RuntimeError):
    """A call of the driver failed with `code`, a CUresult."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function} failed with error {code}")
        self.code = code


class Driver:
    """`call` a function by its name; `types` are the bindings' classes and enumerations.

    `library` loads the driver itself, or raises OSError.
    """

    def __init__(self, bindings: Any, library: Callable[[], object] = driver_library) -> None:
        self.types = bindings
        self._library = library

    def function(self, name: str) -> Any:
        """The binding itself, for loops in which an exception would cost too much.

        Raises `DriverError` where the bindings are too old to know it.
        """
        for known in (_WITH_EDGES.get(name, name), name):
            found = getattr(self.types, known, None)
            if found is not None:
                return found
        raise DriverError(name, NOT_SUPPORTED)

    def call(self, name: str, *args: object) -> Any:
        """Call the function, and return nothing, one value, or a tuple. Raises `DriverError`."""
        error, *results = self.function(name)(*args)
        if int(error):
            raise DriverError(name, int(error))
        return None if not results else results[0] if len(results) == 1 else tuple(results)

    def succeeds(self, name: str, *args: object) -> bool:
        return not int(self.function(name)(*args)[0])

    def plain(self, symbol: str, pointers: int) -> Callable[..., int] | None:
        """A function of so many addresses as the driver exports it, for loops in which even the bindings would cost too
        much: it takes integers and returns a CUresult. None where it cannot be had."""
        try:
            found = getattr(self._library(), symbol)
        except (OSError, AttributeError):
            return None
        found.argtypes, found.restype = (ctypes.c_void_p,) * pointers, ctypes.c_int
        function: Callable[..., int] = found
        return function

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """Inside, this thread may do what a capture of its own forbids elsewhere: make and destroy executables."""
        relaxed = self.types.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        before = self.call("cuThreadExchangeStreamCaptureMode", relaxed)
        try:
            yield
        finally:
            self.call("cuThreadExchangeStreamCaptureMode", before)


@functools.cache
def load() -> Driver | None:
    """None where the bindings are not installed, or there is no driver that they could speak to."""
    try:
        from cuda.bindings import driver
    except ImportError:
        return None
    return Driver(driver) if torch.cuda.is_available() else None
