"""Writes to the nodes of executables, laid out in memory once and issued as often as they are needed.

A switch between two shapes writes some hundred kernels, and most of its time would go into putting their parameters
where the driver reads them. Here they lie there from the first switch on, and a write is one call of the driver's own
function with three addresses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import SupportsInt

from .driver import Driver
from .executables.nodes import KERNEL, KERNEL_BYTES, MEMCPY, MEMCPY_BYTES, MEMSET, MEMSET_BYTES, laid_out_bytes, lay_out

_NODE_BYTES = 64
"""Bytes that Python keeps of a prepared node: places in three tuples, and the address of its structure."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PreparedWrites:
    """Implements `Prepared`. They hold for each executable that was made from the graph whose nodes they name.

    `numbers` are those of all nodes, kernels first. `nodes` and `structures` are addresses, of the kernels' nodes and
    of their parameters in `memory`, whose place must not change. `others`: number, node, kind and parameters.
    """

    memory: object
    numbers: tuple[int, ...]
    nodes: tuple[int, ...]
    structures: tuple[int, ...]
    others: tuple[tuple[int, object, int, bytes], ...]
    nbytes: int

    def alone(self, number: int) -> PreparedWrites:
        """The write of one of the nodes, in the same memory, which is not counted again."""
        at = self.numbers.index(number)
        return PreparedWrites(
            memory=self.memory,
            numbers=(number,),
            nodes=self.nodes[at : at + 1],
            structures=self.structures[at : at + 1],
            others=tuple(other for other in self.others if other[0] == number),
            nbytes=0,
        )


class NodeWriter:
    """Prepares writes, and issues them. Not for several threads at once: the bindings' structures are used again.

    `set_kernel` takes the addresses of an executable, a node and a structure, and returns a CUresult.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._kernel = driver.types.CUDA_KERNEL_NODE_PARAMS()
        self._memcpy = driver.types.CUDA_MEMCPY3D()
        self._memset = driver.types.CUDA_MEMSET_NODE_PARAMS()
        self._set_memcpy = driver.function("cuGraphExecMemcpyNodeSetParams")
        self._set_memset = driver.function("cuGraphExecMemsetNodeSetParams")
        self._set_kernel = driver.function("cuGraphExecKernelNodeSetParams")
        plain = driver.plain("cuGraphExecKernelNodeSetParams_v2", 3)
        self.set_kernel: Callable[[int, int, int], int] = plain or self._through_bindings

    def prepare(
        self, handles: Sequence[SupportsInt], kinds: Sequence[int], changes: Sequence[tuple[int, bytes]]
    ) -> PreparedWrites:
        """`handles` are the nodes of the graph that the executables are made from. A node changes once at most."""
        kernels = [(number, parameters) for number, parameters in changes if kinds[number] == KERNEL]
        rest = [(number, parameters) for number, parameters in changes if kinds[number] != KERNEL]
        *starts, end = accumulate((laid_out_bytes(parameters) for _, parameters in kernels), initial=0)
        memory = ctypes.create_string_buffer(end + 15)
        base = ctypes.addressof(memory)
        aligned = -base % 16
        for start, (_, parameters) in zip(starts, kernels, strict=True):
            lay_out(memory, parameters, aligned + start)
        return PreparedWrites(
            memory=memory,
            numbers=tuple(number for number, _ in (*kernels, *rest)),
            nodes=tuple(int(handles[number]) for number, _ in kernels),
            structures=tuple(base + aligned + start for start in starts),
            others=tuple((number, handles[number], kinds[number], parameters) for number, parameters in rest),
            nbytes=len(memory) + _NODE_BYTES * len(changes) + sum(len(parameters) for _, parameters in rest),
        )

    def issue(self, executable: SupportsInt, prepared: PreparedWrites) -> bool:
        """True where the device took all of them; where it did not, it may have taken some."""
        if any(map(self.set_kernel, repeat(int(executable)), prepared.nodes, prepared.structures)):
            return False
        return all(self._write(executable, *other[1:]) for other in prepared.others)

    def _write(self, executable: object, handle: object, kind: int, parameters: bytes) -> bool:
        if kind == MEMCPY and parameters:
            ctypes.memmove(self._memcpy.getPtr(), parameters, MEMCPY_BYTES)
            context = self._driver.call("cuCtxGetCurrent")
            return not int(self._set_memcpy(executable, handle, self._memcpy, context)[0])
        if kind == MEMSET and parameters:
            ctypes.memmove(self._memset.getPtr(), parameters, MEMSET_BYTES)
            context = self._driver.call("cuCtxGetCurrent")
            return not int(self._set_memset(executable, handle, self._memset, context)[0])
        return not parameters

    def _through_bindings(self, executable: int, node: int, structure: int) -> int:
        types = self._driver.types
        ctypes.memmove(self._kernel.getPtr(), structure, KERNEL_BYTES)
        return int(self._set_kernel(types.CUgraphExec(executable), types.CUgraphNode(node), self._kernel)[0])
