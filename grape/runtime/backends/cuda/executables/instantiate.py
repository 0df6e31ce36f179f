"""From a captured graph to an executable on the device.

An executable whose first update comes before it was ever on the device has slow kernels for good: 0.5 us more each on
an H200, whatever the update (`benchmarks/updates.py`). The first launch would put it there; so does an upload, which
takes of the host what that launch then need not.
"""

from __future__ import annotations

from typing import SupportsInt

import torch

from ..driver import OUT_OF_MEMORY, Driver, DriverError

_FLAGS = 1 | 8
"""AUTO_FREE_ON_LAUNCH and USE_NODE_PRIORITY, as `torch.cuda.CUDAGraph` instantiates."""


class Instantiation:
    """Makes the executables of one device. It has a stream of its own: an upload would wait for the work of others."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._stream: object = None

    def of(self, graph: object) -> SupportsInt:
        """The handle of a new executable, on the device. That device is current.

        Raises torch.OutOfMemoryError, `DriverError`.
        """
        for attempt in (1, 2):
            try:
                return self._uploaded(self._driver.call("cuGraphInstantiate", graph, _FLAGS))
            except DriverError as error:
                if error.code != OUT_OF_MEMORY:
                    raise
                if attempt == 2:
                    raise torch.OutOfMemoryError("no device memory for a graph's executable") from error
                torch.cuda.empty_cache()
        raise AssertionError

    def _uploaded(self, handle: SupportsInt) -> SupportsInt:
        driver = self._driver
        try:
            if self._stream is None:
                self._stream = driver.call("cuStreamCreate", int(driver.types.CUstream_flags.CU_STREAM_NON_BLOCKING))
            driver.call("cuGraphUpload", handle, self._stream)
            driver.call("cuStreamSynchronize", self._stream)
        except BaseException:
            driver.succeeds("cuGraphExecDestroy", handle)
            raise
        return handle

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            self._driver.succeeds("cuStreamDestroy", stream)
