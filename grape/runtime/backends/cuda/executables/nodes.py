"""Nodes of a captured graph as the driver reports them: a topology that stays, parameters that an update may change.

Parameters are bytes. Those of a kernel node are the driver's structure, then how its arguments lie, then the arguments
in the sizes that the driver reports; nothing here guesses what an argument means. Addresses inside the structure are
left out, and filled in where it is laid out to be written.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, SupportsInt

from ..driver import INVALID_VALUE, Driver, DriverError

KERNEL, MEMCPY, MEMSET, _EMPTY = 0, 1, 2, 5
"""CUgraphNodeType of the nodes that an update may concern."""

# CUDA_KERNEL_NODE_PARAMS_v2, CUDA_MEMCPY3D_v2 and CUDA_MEMSET_NODE_PARAMS_v1: the driver never changes a numbered one.
KERNEL_BYTES, MEMCPY_BYTES, MEMSET_BYTES = 72, 200, 40
_ARGUMENTS = slice(40, 56)
"""Of a kernel's structure: the addresses `kernelParams` and `extra`."""
_MEMCPY_EXTENT = struct.Struct("<QQQ")
_MEMSET_FIELDS = struct.Struct("<QQIIQQ")
_LAYOUT = struct.Struct("<II")
"""How many arguments, or `_PACKED`, and how many bytes they take."""
_PACKED = 0xFFFF_FFFF
_TWO, _SIX = struct.Struct("<QQ"), struct.Struct("<6Q")
_END, _BUFFER, _SIZE = 0, 1, 2
"""CU_LAUNCH_PARAM_...: the keys of `extra`."""

_NODE_ATTRIBUTES = (
    ("CU_LAUNCH_ATTRIBUTE_COOPERATIVE", 4),
    ("CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION", 12),
    ("CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE", 4),
    ("CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION", 12),
    ("CU_LAUNCH_ATTRIBUTE_PRIORITY", 4),
    ("CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN", 4),
    ("CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP", 2),
    ("CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT", 4),
)
"""Attributes of a kernel node, with their bytes, that an executable keeps from the kernel that it had first."""
_FUNCTION_ATTRIBUTES = (
    "CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET",
    "CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH",
    "CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT",
    "CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH",
    "CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED",
    "CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE",
)
"""The same, where the kernel was compiled with them."""
_CLUSTERS = ("CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION", "CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION")
"""An executable keeps the clusters of the kernel that it had first, and the driver reports success all the same (H200,
driver 580: kernels that wrote down their clusters). So clusters are a part of the topology. Where a device knows
preferred ones, which nobody can read, the function stands for them: SGLang's #37657 tells of a kernel that hung in the
clusters of the one before it, on a GB300."""
PREFERRED_CLUSTERS = (10, 0)
"""The compute capability from which on preferred clusters have an effect. On an H200 the driver takes the attribute,
and the kernel runs in the clusters that it must have."""


@dataclass(frozen=True, kw_only=True)
class Inspected:
    """A graph's nodes, in the driver's order. `topology` is equal wherever an update between two graphs can succeed.

    `chain`: each node needs just the one before, so that nodes of two graphs can be paired in one way only.
    """

    handles: tuple[SupportsInt, ...]
    kinds: tuple[int, ...]
    parameters: tuple[bytes, ...]
    topology: str
    chain: bool

    @functools.cached_property
    def nbytes(self) -> int:
        return sum(map(len, self.parameters))


def inspect(driver: Driver, graph: object, *, preferred_clusters: bool = True) -> Inspected | None:
    """None for a graph with nodes that cannot be updated: bodies, host functions, events, allocations.

    `preferred_clusters`: whether the device knows them (`PREFERRED_CLUSTERS`); then kernels that are launched in
    clusters keep their function. Takes about 10 us a node. Raises `DriverError`.
    """
    _, count = driver.call("cuGraphGetNodes", graph, 0)
    handles = driver.call("cuGraphGetNodes", graph, count)[0][:count] if count else []
    reader = _Reader(driver, preferred_clusters)
    kinds, described, parameters = [], [], []
    for handle in handles:
        kind = int(driver.call("cuGraphNodeGetType", handle))
        read = reader.read(handle, kind)
        if read is None:
            return None
        kinds.append(kind)
        described.append(read[0])
        parameters.append(read[1])
    edges = _edges(driver, graph, handles)
    shape = (described, edges)
    return Inspected(
        handles=tuple(handles),
        kinds=tuple(kinds),
        parameters=tuple(parameters),
        topology=hashlib.blake2b(repr(shape).encode(), digest_size=16).hexdigest(),
        chain=_is_chain([edge[:2] for edge in edges], len(handles)),
    )


def _is_chain(edges: Sequence[tuple[int, ...]], nodes: int) -> bool:
    after = {source: target for source, target in edges}
    return len(edges) == len(after) == len(set(after.values())) == max(nodes - 1, 0)


def _edges(driver: Driver, graph: object, handles: Sequence[SupportsInt]) -> list[tuple[int, ...]]:
    """Pairs of node numbers, with what the edge is about (ports and kind)."""
    *_, count = driver.call("cuGraphGetEdges", graph, 0)
    if not count:
        return []
    sources, targets, data, _ = driver.call("cuGraphGetEdges", graph, count)
    number = {int(handle): index for index, handle in enumerate(handles)}
    about = [(int(one.from_port), int(one.to_port), int(one.type)) for one in data or ()] or [(0, 0, 0)] * count
    pairs = zip(sources[:count], targets[:count], about, strict=False)
    return sorted((number[int(source)], number[int(target)], *ports) for source, target, ports in pairs)


class _Reader:
    """Reads the nodes of one graph. What it learns of kernels is not kept: a module may be unloaded later."""

    def __init__(self, driver: Driver, preferred_clusters: bool) -> None:
        self._driver = driver
        self._preferred_clusters = preferred_clusters
        self._layouts: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {}
        self._compiled: dict[tuple[int, int], tuple[int, ...]] = {}
        known = driver.types.CUkernelNodeAttrID.__members__
        self._attributes = [(name, known[name], nbytes) for name, nbytes in _NODE_ATTRIBUTES if name in known]

    def read(self, handle: object, kind: int) -> tuple[tuple[object, ...], bytes] | None:
        """Read what an update cannot change, and what it can."""
        if kind == KERNEL:
            return self._kernel(handle)
        if kind == MEMCPY:
            return self._memcpy(handle)
        if kind == MEMSET:
            return self._memset(handle)
        return (("empty",), b"") if kind == _EMPTY else None

    def _kernel(self, handle: object) -> tuple[tuple[object, ...], bytes] | None:
        found = self._driver.call("cuGraphKernelNodeGetParams", handle)
        functions = int(found.func), int(found.kern)
        if functions == (0, 0):
            return None
        raw = bytearray(ctypes.string_at(found.getPtr(), KERNEL_BYTES))
        raw[_ARGUMENTS] = bytes(16)
        if functions not in self._layouts:
            self._layouts[functions] = self._layout(found)
            self._compiled[functions] = self._compiled_with(found)
        if found.extra:
            arguments = _packed(int(found.extra))
            if arguments is None:
                return None
            record = bytes(raw) + _LAYOUT.pack(_PACKED, len(arguments)) + arguments
        else:
            record = bytes(raw) + _gathered(int(found.kernelParams), self._layouts[functions])
        attributes = tuple(self._attribute(handle, one, nbytes) for _, one, nbytes in self._attributes)
        names = (name for name, _, _ in self._attributes)
        clustered = any(name in _CLUSTERS and _is_cluster(value) for name, value in zip(names, attributes, strict=True))
        kept = functions if clustered and self._preferred_clusters else None
        return ("kernel", attributes, self._compiled[functions], kept), record

    def _layout(self, found: Any) -> tuple[tuple[int, int], ...]:
        """Offset and size of each argument."""
        name, of = ("cuFuncGetParamInfo", found.func) if int(found.func) else ("cuKernelGetParamInfo", found.kern)
        arguments: list[tuple[int, int]] = []
        while True:
            error, offset, nbytes = self._driver.function(name)(of, len(arguments))
            if int(error) == INVALID_VALUE:
                return tuple(arguments)
            if int(error):
                raise DriverError(name, int(error))
            arguments.append((int(offset), int(nbytes)))

    def _compiled_with(self, found: Any) -> tuple[int, ...]:
        driver, values = self._driver, []
        for name in _FUNCTION_ATTRIBUTES:
            attribute = getattr(driver.types.CUfunction_attribute, name)
            if int(found.func):
                error, value = driver.function("cuFuncGetAttribute")(attribute, found.func)
            else:
                device = driver.call("cuCtxGetDevice")
                error, value = driver.function("cuKernelGetAttribute")(attribute, found.kern, device)
            values.append(-int(error) if int(error) else int(value))
        return tuple(values)

    def _attribute(self, handle: object, attribute: object, nbytes: int) -> str:
        error, value = self._driver.function("cuGraphKernelNodeGetAttribute")(handle, attribute)
        return f"error {int(error)}" if int(error) else ctypes.string_at(value.getPtr(), nbytes).hex()

    def _memcpy(self, handle: object) -> tuple[tuple[object, ...], bytes]:
        found = self._driver.call("cuGraphMemcpyNodeGetParams", handle)
        raw = ctypes.string_at(found.getPtr(), MEMCPY_BYTES)
        _, height, depth = _MEMCPY_EXTENT.unpack_from(raw, MEMCPY_BYTES - _MEMCPY_EXTENT.size)
        if height > 1 or depth > 1:
            return ("memcpy", raw), b""
        return ("memcpy", int(found.srcMemoryType), int(found.dstMemoryType)), raw

    def _memset(self, handle: object) -> tuple[tuple[object, ...], bytes]:
        found = self._driver.call("cuGraphMemsetNodeGetParams", handle)
        raw = ctypes.string_at(found.getPtr(), MEMSET_BYTES)
        *_, nbytes, _, height = _MEMSET_FIELDS.unpack(raw)
        return (("memset", raw), b"") if height > 1 else (("memset", nbytes), raw)


def _is_cluster(value: str) -> bool:
    """True where an attribute of three dimensions, as `_Reader` has it, means more than one block."""
    if value.startswith("error"):
        return False
    sizes: tuple[int, ...] = struct.unpack("<3I", bytes.fromhex(value))
    return max(sizes) > 1


def _gathered(addresses: int, layout: Sequence[tuple[int, int]]) -> bytes:
    """The arguments behind an array of addresses, each where the device has it: at its offset."""
    arguments = bytearray(max((offset + nbytes for offset, nbytes in layout), default=0))
    pointers = (ctypes.c_uint64 * len(layout)).from_address(addresses) if layout else ()
    for pointer, (offset, nbytes) in zip(pointers, layout, strict=True):
        arguments[offset : offset + nbytes] = ctypes.string_at(pointer, nbytes)
    offsets = struct.pack(f"<{len(layout)}I", *(offset for offset, _ in layout))
    padding = bytes(_offsets_bytes(len(layout)) - len(offsets))
    return _LAYOUT.pack(len(layout), len(arguments)) + offsets + padding + bytes(arguments)


def _offsets_bytes(count: int) -> int:
    """Bytes that the offsets of so many arguments take: the arguments behind them lie at a multiple of 16."""
    return 4 * count + -4 * count % 16


def _packed(extra: int) -> bytes | None:
    """The arguments that `extra` points to in one buffer."""
    buffer = nbytes = position = 0
    while (key := ctypes.c_uint64.from_address(extra + position).value) != _END:
        value = ctypes.c_uint64.from_address(extra + position + 8).value
        if key == _BUFFER:
            buffer = value
        elif key == _SIZE:
            nbytes = ctypes.c_size_t.from_address(value).value
        else:
            return None
        position += 16
    return ctypes.string_at(buffer, nbytes) if nbytes else b""


@functools.cache
def _tables(count: int) -> tuple[struct.Struct, struct.Struct]:
    """Of so many offsets, and of so many addresses."""
    return struct.Struct(f"<{count}I"), struct.Struct(f"<{count}Q")


def laid_out_bytes(parameters: bytes) -> int:
    """Bytes that `lay_out` takes, up to a multiple of 16."""
    count, _ = _LAYOUT.unpack_from(parameters, KERNEL_BYTES)
    nbytes = _table(parameters) + (_SIX.size if count == _PACKED else 8 * int(count))
    return nbytes + -nbytes % 16


def lay_out(memory: ctypes.Array[ctypes.c_char], parameters: bytes, at: int = 0) -> None:
    """Put the structure of a kernel at `at` in `memory`, its arguments behind it, and fill in the addresses."""
    count, nbytes = _LAYOUT.unpack_from(parameters, KERNEL_BYTES)
    base, table = ctypes.addressof(memory) + at, _table(parameters)
    ctypes.memmove(base, parameters, len(parameters))
    if count == _PACKED:
        first = base + KERNEL_BYTES + _LAYOUT.size
        _SIX.pack_into(memory, at + table, _BUFFER, first, _SIZE, base + table + 40, _END, nbytes)
        _TWO.pack_into(memory, at + _ARGUMENTS.start, 0, base + table)
        return
    first = base + KERNEL_BYTES + _LAYOUT.size + _offsets_bytes(count)
    offsets, addresses = _tables(count)
    found = offsets.unpack_from(parameters, KERNEL_BYTES + _LAYOUT.size)
    addresses.pack_into(memory, at + table, *[first + offset for offset in found])
    _TWO.pack_into(memory, at + _ARGUMENTS.start, base + table if count else 0, 0)


def _table(parameters: bytes) -> int:
    """Where the addresses lie: behind the arguments, at a multiple of 8."""
    return len(parameters) + -len(parameters) % 8
