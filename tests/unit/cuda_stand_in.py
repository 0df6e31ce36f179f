"""A stand-in for the driver, as far as updates of executables go: it keeps what was written, and refuses on demand.

It knows the memory that is handed over, and nothing of what a driver would do with it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grape.runtime.backends.cuda import launches
from grape.runtime.backends.cuda.driver import Driver
from grape.runtime.backends.cuda.executables import nodes as cuda_nodes
from grape.runtime.backends.cuda.executables.executable import CudaExecutable
from grape.runtime.backends.cuda.executables.nodes import Inspected

KERNEL, MEMCPY, MEMSET, EMPTY = 0, 1, 2, 5
LAYOUT = ((0, 8), (8, 4), (16, 12))
"""Offsets and sizes of the arguments of every kernel here."""


def kernel(function: int, arguments: bytes, *, packed: bool = False) -> bytes:
    """The parameters of a kernel node, in one form or the other."""
    assert len(arguments) == 28
    head = function.to_bytes(8, "little") + bytes(range(1, 33)) + bytes(16) + bytes(range(64, 80))
    if packed:
        return head + cuda_nodes._LAYOUT.pack(cuda_nodes._PACKED, len(arguments)) + arguments
    held = ctypes.create_string_buffer(arguments, len(arguments))
    base = ctypes.addressof(held)
    table = (ctypes.c_uint64 * len(LAYOUT))(*(base + offset for offset, _ in LAYOUT))
    return head + cuda_nodes._gathered(ctypes.addressof(table), LAYOUT)


class _Struct:
    nbytes = 200

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(self.nbytes)

    def getPtr(self) -> int:
        return ctypes.addressof(self._memory)

    def taken(self, nbytes: int) -> bytes:
        return ctypes.string_at(self.getPtr(), nbytes)


class StandIn:
    """`held` is what each executable holds, by its handle and node. `refuses` is asked before each write.

    `exported`: the driver's own functions can be had, and `plain` counts their calls.
    """

    def __init__(self, *, exported: bool = True) -> None:
        self.plain = 0
        self.held: dict[int, dict[int, bytes]] = {}
        self.graphs: dict[int, Inspected] = {}
        self.refuses: Callable[[int, bytes], bool] = lambda node, parameters: False
        self.update_error = 0
        self.busy = False
        self.instantiate_errors: list[int] = []
        self.upload_errors: list[int] = []
        self.uploaded: set[int] = set()
        self.log: list[str] = []
        self.free = 1 << 30
        self._next = 100
        self.driver = Driver(
            SimpleNamespace(
                CUgraph=int,
                CUgraphExec=int,
                CUgraphNode=int,
                CUstreamCaptureMode=SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2),
                CUstream_flags=SimpleNamespace(CU_STREAM_NON_BLOCKING=1),
                CUDA_KERNEL_NODE_PARAMS=_Struct,
                CUDA_MEMCPY3D=_Struct,
                CUDA_MEMSET_NODE_PARAMS=_Struct,
                cuThreadExchangeStreamCaptureMode=lambda mode: (0, 0),
                cuCtxGetCurrent=lambda: (0, 7),
                cuGraphInstantiate=self._instantiate,
                cuGraphUpload=self._upload,
                cuStreamCreate=lambda flags: (0, 9),
                cuStreamSynchronize=lambda stream: (0 if stream == 9 else 709,),
                cuStreamDestroy=lambda stream: (0,),
                cuGraphExecDestroy=self._destroy,
                cuGraphExecUpdate=self._update,
                cuGraphLaunch=self._launch,
                cuStreamQuery=lambda stream: (600 if stream == 5 and self.busy else 0,),
                cuGraphExecKernelNodeSetParams=lambda e, n, p: (self._set_kernel(e, n, p.getPtr()),),
                cuGraphExecMemcpyNodeSetParams=lambda e, n, p, c: (self._set(e, n, p.taken(200)),),
                cuGraphExecMemsetNodeSetParams=lambda e, n, p, c: (self._set(e, n, p.taken(40)),),
            ),
            lambda: SimpleNamespace(cuGraphExecKernelNodeSetParams_v2=self._exported()) if exported else object(),
        )

    def _exported(self) -> Callable[[int, int, int], int]:
        def set_kernel(executable: int, node: int, structure: int) -> int:
            self.plain += 1
            return self._set_kernel(executable, node, structure)

        return set_kernel

    def _instantiate(self, graph: int, flags: int) -> tuple[Any, ...]:
        if self.instantiate_errors and (error := self.instantiate_errors.pop(0)):
            return error, None
        self._next += 1
        self.held[self._next] = dict(enumerate(self.graphs[graph].parameters))
        self.free -= 1000
        return 0, self._next

    def _upload(self, executable: int, stream: int) -> tuple[int]:
        """Not on a stream that has other work."""
        if self.upload_errors and (error := self.upload_errors.pop(0)):
            return (error,)
        self.uploaded.add(executable)
        return (0 if stream == 9 and executable in self.held else 400,)

    def _destroy(self, executable: int) -> tuple[int]:
        del self.held[executable]
        self.log.append(f"destroy {executable}")
        return (0,)

    def _update(self, executable: int, graph: int) -> tuple[Any, ...]:
        assert executable in self.uploaded, "its kernels would be slow for good"
        if self.update_error:
            if self.update_error != 910:
                self.held[executable][0] = b"half an update"
            return self.update_error, None
        self.held[executable] = dict(enumerate(self.graphs[graph].parameters))
        return 0, None

    def _launch(self, executable: int, stream: int) -> tuple[int]:
        self.log.append(f"launch {executable} on {stream}")
        return (0 if executable in self.held else 400,)

    def _set_kernel(self, executable: int, node: int, structure: int) -> int:
        raw = ctypes.string_at(structure, 72)
        addresses, extra = (int.from_bytes(raw[start : start + 8], "little") for start in (40, 48))
        head = raw[:40] + bytes(16) + raw[56:]
        if extra:
            packed = cuda_nodes._packed(extra)
            assert packed is not None and not addresses
            return self._set(executable, node, head + cuda_nodes._LAYOUT.pack(cuda_nodes._PACKED, len(packed)) + packed)
        return self._set(executable, node, head + cuda_nodes._gathered(addresses, LAYOUT))

    def _set(self, executable: int, node: int, parameters: bytes) -> int:
        assert executable in self.uploaded, "its kernels would be slow for good"
        if self.refuses(node, parameters):
            return 1
        self.held[executable][node] = parameters
        return 0


class RawGraph:
    """Stands for `torch.cuda.CUDAGraph(keep_graph=True)`."""

    def __init__(self, stand_in: StandIn, inspected: Inspected) -> None:
        self.number = len(stand_in.graphs) + 1
        stand_in.graphs[self.number] = inspected
        self._log = stand_in.log

    def raw_cuda_graph(self) -> int:
        return self.number

    def reset(self) -> None:
        self._log.append(f"reset {self.number}")


def inspected(*parameters: bytes, topology: str = "one", chain: bool = True) -> Inspected:
    kinds = {200: MEMCPY, 40: MEMSET, 0: EMPTY}
    return Inspected(
        handles=tuple(range(len(parameters))),
        kinds=tuple(kinds.get(len(one), KERNEL) for one in parameters),
        parameters=parameters,
        topology=topology,
        chain=chain,
    )


def write_nodes(executable: CudaExecutable, changes: Sequence[tuple[int, bytes]], attachment: object) -> bool:
    return executable.update_prepared([executable.prepare(changes)], attachment)


class NoDevice(nullcontext[None]):
    """Stands for `torch.cuda.device`, which is a class."""


@contextmanager
def without_a_device(patch: pytest.MonkeyPatch, stand_in: StandIn) -> Iterator[None]:
    """What executables ask of torch's CUDA, answered here."""
    with patch.context() as inside:
        inside.setattr(torch.cuda, "device", NoDevice)
        inside.setattr(torch.cuda, "current_device", lambda: 0)
        inside.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
        inside.setattr(torch.cuda, "mem_get_info", lambda device: (stand_in.free, 1 << 31))
        inside.setattr(torch.cuda, "memory_reserved", lambda device: 0)
        inside.setattr(torch.cuda, "empty_cache", lambda: stand_in.log.append("empty cache"))
        inside.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 5, raising=False)
        inside.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(wait_stream=stand_in.log.append))
        inside.setattr(launches, "_last", {})
        yield
