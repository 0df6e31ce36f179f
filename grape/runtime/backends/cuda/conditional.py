"""IF and WHILE bodies on CUDA: conditional nodes, added to a graph while it is captured.

The driver's conditional node decides by a handle that only device code can set. So a kernel of one thread
(`cuda_kernels`) copies the condition into the handle before the node, and, for WHILE, again at the end of the body. The
body is captured into the node's own graph, on a stream of its own. See "Conditional Graph Nodes" in the CUDA
programming guide.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import Literal

import torch

from ....profiling.private_streams import private_stream
from ....streams.cuda_warmup import warm_products
from ..protocol import CaptureFailed
from .bound import LOOPS, LoopBound
from .driver import Driver, DriverError
from .executables.kernels import Kernels, kernels_of
from .watch import CaptureWatch

_DRIVER_VERSION = 12_040
_WARM_DEPTHS = 2
"""Bodies within bodies whose streams have a cuBLAS workspace before the first capture."""


class Bodies:
    """Conditional bodies of one backend. `pool` holds what bodies allocate, as long as any of its graphs.

    The allocator tells a capture's allocations by the capture of their stream, and a body is a capture of its own: in
    the default pool its memory would be given to eager code. Bodies of all graphs share the pool, as graphs do theirs.
    """

    def __init__(self, driver: Driver, device: torch.device) -> None:
        self._driver = driver
        self._device = device
        self._kernels: Kernels | None = None
        self.pool: torch.cuda.MemPool | None = None
        self.bound: LoopBound | None = None

    @staticmethod
    def supported(driver: Driver) -> bool:
        """True where the driver has conditional nodes."""
        error, version = driver.function("cuDriverGetVersion")()
        return not int(error) and int(version) >= _DRIVER_VERSION

    def prepare(self) -> None:
        """Compile, make streams, warm up. Idempotent; not inside a capture. Raises `DriverError`, RuntimeError."""
        if self._kernels is None:
            with torch.cuda.device(self._device):
                torch.cuda.synchronize()  # makes the context, without which the driver loads no kernel
                self._kernels = kernels_of(self._driver, self._device)
                self.pool = torch.cuda.MemPool()
                self.bound = LoopBound(self._device)
                _warm(self._device)

    def close(self) -> None:
        """Let go of the pool; no graph with a body may be left."""
        self._kernels = self.pool = self.bound = None

    @property
    def kept(self) -> object:
        """Objects that a graph with bodies needs as long as it lives."""
        return self.pool, self.bound

    def end_unseen(self, stream: torch.cuda.Stream) -> None:
        """End the capture of `stream`, and leave its graph to nobody."""
        self._driver.succeeds("cuStreamEndCapture", stream.cuda_stream)

    @contextmanager
    def body(self, kind: Literal["if", "while"], pred: torch.Tensor, watch: CaptureWatch) -> Iterator[None]:
        """Make what is launched on the current stream within the block the body of a node of this kind."""
        if self._kernels is None or self.pool is None:
            raise watch.refuse(CaptureFailed("GR405", "conditional bodies were not prepared before the capture"))
        if pred.dtype != torch.bool or pred.dim() != 0 or pred.device != self._device:
            why = f"the condition of a body must be a bool tensor without dimensions on {self._device}"
            raise watch.refuse(CaptureFailed("GR405", why))
        if kind == "while" and watch.loops == LOOPS:
            raise watch.refuse(CaptureFailed("GR405", f"it has more than {LOOPS} loops"))
        watch.uses(pred)
        loop = watch.loops if kind == "while" else None
        watch.loops += kind == "while"
        try:
            graph, handle = self._node(loop, pred)
            stream = _stream_at(self._device, watch.depth)
        except DriverError as error:
            raise watch.refuse(CaptureFailed("GR405", f"no conditional node could be added: {error}")) from error
        with ExitStack() as stack:
            if not watch.depth:  # a pool that records already cannot be entered again
                stack.enter_context(torch.cuda.use_mem_pool(self.pool, self._device))
                stack.enter_context(_no_waiting(watch))
            with self._captured(stream, graph, watch), torch.cuda.stream(stream), watch.inside(loop=loop is not None):
                yield
                if loop is not None:
                    self._steer(handle, pred, loop, stream, first=False)

    def _node(self, loop: int | None, pred: torch.Tensor) -> tuple[object, int]:
        """Add a node behind what the current stream has recorded; the graph of its body, and its handle.

        `loop` is the number of a WHILE node in its graph, None for an IF node.
        """
        driver, types = self._driver, self._driver.types
        stream = torch.cuda.current_stream(self._device)
        graph = self._recording(stream)[0]
        context = driver.call("cuCtxGetCurrent")
        handle = driver.call("cuGraphConditionalHandleCreate", graph, context, 0, 0)
        if loop is None:
            self._set(int(handle), pred, stream)
        else:
            self._steer(int(handle), pred, loop, stream, first=True)
        graph, behind, edges = self._recording(stream)
        parameters = types.CUgraphNodeParams()
        parameters.type = types.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        parameters.conditional.handle = handle
        conditional = types.CUgraphConditionalNodeType
        parameters.conditional.type = (
            conditional.CU_GRAPH_COND_TYPE_IF if loop is None else conditional.CU_GRAPH_COND_TYPE_WHILE
        )
        parameters.conditional.size = 1
        parameters.conditional.ctx = context
        node = driver.call("cuGraphAddNode", graph, behind, edges, len(behind), parameters)
        replace = types.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
        driver.call("cuStreamUpdateCaptureDependencies", stream.cuda_stream, [node], None, 1, int(replace))
        return parameters.conditional.phGraph_out[0], int(handle)

    def _recording(self, stream: torch.cuda.Stream) -> tuple[object, list[object], list[object] | None]:
        """The graph that a stream records into, and what comes before its next node, with data of the edges."""
        status, _, graph, behind, edges, count = self._driver.call("cuStreamGetCaptureInfo", stream.cuda_stream)
        if int(status) != int(self._driver.types.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE):
            raise CaptureFailed("GR405", "a conditional body outside of a capture")
        behind, edges = list(behind or ())[:count], list(edges or ())[:count]
        return graph, behind, edges if len(edges) == len(behind) else None

    def _set(self, handle: int, pred: torch.Tensor, stream: torch.cuda.Stream) -> None:
        assert self._kernels is not None
        arguments = ((handle, pred.data_ptr()), (ctypes.c_ulonglong, ctypes.c_void_p))
        self._launch(self._kernels.set_condition, arguments, stream)

    def _steer(self, handle: int, pred: torch.Tensor, loop: int, stream: torch.cuda.Stream, *, first: bool) -> None:
        assert self._kernels is not None and self.bound is not None
        values = (handle, pred.data_ptr(), self.bound.cells.data_ptr(), loop, int(first))
        types = (ctypes.c_ulonglong, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        self._launch(self._kernels.steer_loop, (values, types), stream)

    def _launch(self, kernel: object, arguments: object, stream: torch.cuda.Stream) -> None:
        self._driver.call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream.cuda_stream, arguments, 0)

    @contextmanager
    def _captured(self, stream: torch.cuda.Stream, graph: object, watch: CaptureWatch) -> Iterator[None]:
        driver = self._driver
        mode = driver.types.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        try:
            driver.call("cuStreamBeginCaptureToGraph", stream.cuda_stream, graph, None, None, 0, mode)
        except DriverError as error:
            raise watch.refuse(CaptureFailed("GR405", f"a conditional body could not be captured: {error}")) from error
        try:
            yield
        except BaseException:
            # The body's error matters, not what ending its capture says.
            watch.lost_body |= not driver.succeeds("cuStreamEndCapture", stream.cuda_stream)
            raise
        if not driver.succeeds("cuStreamEndCapture", stream.cuda_stream):
            watch.lost_body = True
            raise watch.refuse(CaptureFailed("GR405", "the capture of a conditional body was invalidated"))
        try:
            watch.body_nodes += int(driver.call("cuGraphGetNodes", graph, 0)[1])
        except DriverError as error:
            raise watch.refuse(CaptureFailed("GR405", f"a conditional body cannot be read: {error}")) from error


_WAITING = ("_cuda_synchronize", "_cuda_emptyCache")
"""Functions of `torch._C` that reach for the whole device."""


@contextmanager
def _no_waiting(watch: CaptureWatch) -> Iterator[None]:
    """Refuse what would invalidate a body's capture and the one around it at once: the driver crashes ending those."""
    thread, owner, undo = get_ident(), torch._C, ExitStack()

    def stand_in(original: Callable[[], object]) -> object:
        def refused() -> object:
            if get_ident() != thread:
                return original()
            raise watch.refuse(CaptureFailed("GR405", "it waits for the whole device in a branch that became a body"))

        return refused

    for name in _WAITING:
        original = getattr(owner, name, None)
        if original is None:  # torch without CUDA
            continue
        setattr(owner, name, stand_in(original))
        undo.callback(setattr, owner, name, original)
    with undo:
        yield


def _stream_at(device: torch.device, depth: int) -> torch.cuda.Stream:
    """On which bodies so deep are captured. One that is made inside a capture has its workspace in the bodies' pool."""
    return private_stream(device, f"bodies {depth}")


def _warm(device: torch.device) -> None:
    for depth in range(_warm_depths.get(device, 0), _WARM_DEPTHS):
        warm_products(device, _stream_at(device, depth))
        _warm_depths[device] = depth + 1


_warm_depths: dict[torch.device, int] = {}
