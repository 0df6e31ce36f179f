"""Parameters of kernel nodes as bytes: what is read from memory is what is put there again, in both of its forms."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grape.runtime.backends.cuda.driver import Driver, DriverError
from grape.runtime.backends.cuda.executables import nodes as cuda_nodes

SIZES = st.lists(st.integers(1, 40), max_size=12)


def laid_out(sizes: list[int]) -> list[tuple[int, int]]:
    layout, end = [], 0
    for nbytes in sizes:
        end = -(-end // 8) * 8
        layout.append((end, nbytes))
        end += nbytes
    return layout


def laid_out_memory(parameters: bytes) -> Any:
    nbytes = cuda_nodes.laid_out_bytes(parameters)
    memory = ctypes.create_string_buffer(b"\xaa" * nbytes, nbytes)
    cuda_nodes.lay_out(memory, parameters)
    return memory


def arguments_of(memory: Any, layout: list[tuple[int, int]]) -> list[bytes]:
    """As the driver would read them: through the addresses in the structure."""
    addresses = int.from_bytes(memory.raw[40:48], "little")
    extra = int.from_bytes(memory.raw[48:56], "little")
    assert not extra and bool(addresses) == bool(layout)
    pointers = (ctypes.c_uint64 * len(layout)).from_address(addresses) if layout else ()
    starts = [pointer - offset for pointer, (offset, _) in zip(pointers, layout, strict=True)]
    assert len(set(starts)) <= 1 and all((start - ctypes.addressof(memory)) % 16 == 0 for start in starts)
    return [ctypes.string_at(pointer, nbytes) for pointer, (_, nbytes) in zip(pointers, layout, strict=True)]


@given(sizes=SIZES, data=st.data())
def test_arguments_behind_addresses(sizes: list[int], data: st.DataObject) -> None:
    layout = laid_out(sizes)
    given_bytes = [data.draw(st.binary(min_size=nbytes, max_size=nbytes)) for nbytes in sizes]
    held = [ctypes.create_string_buffer(one, len(one)) for one in given_bytes]
    table = (ctypes.c_uint64 * max(len(held), 1))(*(ctypes.addressof(one) for one in held))
    parameters = bytes(range(72)) + cuda_nodes._gathered(ctypes.addressof(table), layout)
    memory = laid_out_memory(parameters)
    assert arguments_of(memory, layout) == given_bytes
    assert memory.raw[:40] == bytes(range(40)) and memory.raw[56:72] == bytes(range(56, 72))


@given(arguments=st.binary(max_size=200))
def test_arguments_in_one_buffer(arguments: bytes) -> None:
    head = cuda_nodes._LAYOUT.pack(cuda_nodes._PACKED, len(arguments))
    memory = laid_out_memory(bytes(72) + head + arguments)
    assert memory.raw[40:48] == bytes(8)
    assert cuda_nodes._packed(int.from_bytes(memory.raw[48:56], "little")) == arguments


def test_a_buffer_with_an_unknown_key_is_not_guessed_at() -> None:
    assert cuda_nodes._packed(ctypes.addressof((ctypes.c_uint64 * 3)(7, 7, 0))) is None


class Bindings:
    """A graph of kernels in a row, each with one argument of 8 bytes, and what one may ask of it."""

    def __init__(
        self, values: list[int], *, cluster: int = 1, function: int = 11, kinds: list[int] | None = None
    ) -> None:
        self.values, self.cluster, self.function = values, cluster, function
        self.kinds = kinds or [0] * len(values)
        self.CUkernelNodeAttrID = SimpleNamespace(__members__={"CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION": 4})
        names = cuda_nodes._FUNCTION_ATTRIBUTES
        self.CUfunction_attribute = SimpleNamespace(**{name: name for name in names})
        self._held: list[Any] = []

    def _kept(self, made: Any) -> int:
        self._held.append(made)
        return ctypes.addressof(made)

    def cuGraphGetNodes(self, graph: int, count: int) -> Any:
        return 0, [500 + index for index in range(count)], len(self.values)

    def cuGraphNodeGetType(self, node: int) -> Any:
        return 0, self.kinds[node - 500]

    def cuGraphGetEdges(self, graph: int, count: int) -> Any:
        edges = [(500 + i, 501 + i) for i in range(len(self.values) - 1)][::-1]
        data = [SimpleNamespace(from_port=0, to_port=0, type=0)] * count
        return 0, [a for a, _ in edges][:count], [b for _, b in edges][:count], data, len(edges)

    def cuGraphKernelNodeGetParams(self, node: int) -> Any:
        argument = ctypes.c_uint64(self.values[node - 500])
        self._held.append(argument)
        table = (ctypes.c_uint64 * 1)(ctypes.addressof(argument))
        struct = self._kept(ctypes.create_string_buffer(self.function.to_bytes(8, "little"), 72))
        addresses = self._kept(table)
        return 0, SimpleNamespace(func=self.function, kern=0, extra=0, kernelParams=addresses, getPtr=lambda: struct)

    def cuFuncGetParamInfo(self, function: int, index: int) -> Any:
        return (0, 0, 8) if index == 0 else (1, None, None)

    def cuFuncGetAttribute(self, name: str, function: int) -> Any:
        return 0, 0

    def cuGraphKernelNodeGetAttribute(self, node: int, attribute: int) -> Any:
        value = self._kept((ctypes.c_uint32 * 3)(self.cluster, 1, 1))
        return 0, SimpleNamespace(getPtr=lambda: value)


def topology(bindings: Any, *, preferred_clusters: bool = True) -> str | None:
    found = cuda_nodes.inspect(Driver(bindings), 0, preferred_clusters=preferred_clusters)
    return found.topology if found is not None else None


def test_what_a_topology_depends_on() -> None:
    one = topology(Bindings([1, 2, 3]))
    assert one is not None
    assert topology(Bindings([4, 5, 6])) == one
    assert topology(Bindings([1, 2, 3], function=12)) == one
    clustered = topology(Bindings([1, 2, 3], cluster=2))
    assert topology(Bindings([4, 5, 6], cluster=2)) == clustered
    assert topology(Bindings([1, 2, 3], cluster=2, function=12)) != clustered, "attributes that nobody can read"
    known = topology(Bindings([1, 2, 3], cluster=2), preferred_clusters=False)
    assert topology(Bindings([1, 2, 3], cluster=2, function=12), preferred_clusters=False) == known
    assert topology(Bindings([1, 2, 3], cluster=4, function=12), preferred_clusters=False) != known
    assert topology(Bindings([1, 2, 3, 4])) != one
    assert topology(Bindings([1, 2, 3], cluster=2)) != one
    assert topology(Bindings([1, 2, 3], kinds=[0, 5, 0])) != one
    assert topology(Bindings([1, 2, 3], kinds=[0, 13, 0])) is None
    assert topology(Bindings([1, 2, 3], function=0)) is None


@pytest.mark.parametrize(
    ("edges", "nodes", "chain"),
    [
        ([], 0, True),
        ([], 1, True),
        ([(0, 1), (1, 2)], 3, True),
        ([(0, 2), (2, 1)], 3, True),
        ([], 2, False),
        ([(0, 1), (0, 2)], 3, False),
        ([(0, 2), (1, 2)], 3, False),
        ([(0, 1), (1, 2), (0, 2)], 3, False),
    ],
)
def test_a_chain_has_one_order(edges: list[tuple[int, int]], nodes: int, chain: bool) -> None:
    assert cuda_nodes._is_chain(edges, nodes) is chain


def test_parameters_are_those_of_the_nodes() -> None:
    found = cuda_nodes.inspect(Driver(Bindings([0x1122, 0x3344])), 0)
    assert found is not None and found.handles == (500, 501)
    assert [one[-8:] for one in found.parameters] == [(0x1122).to_bytes(8, "little"), (0x3344).to_bytes(8, "little")]
    assert found.parameters[0][:8] == (11).to_bytes(8, "little")


def test_an_error_of_the_driver_is_one() -> None:
    bindings: Any = Bindings([1])
    bindings.cuFuncGetParamInfo = lambda function, index: (700, None, None)
    with pytest.raises(DriverError, match="cuFuncGetParamInfo failed with error 700"):
        cuda_nodes.inspect(Driver(bindings), 0)


def test_bindings_that_are_too_old_are_an_error_of_the_driver() -> None:
    """Then the nodes of a graph cannot be read, and it keeps an executable of its own."""
    driver = Driver(SimpleNamespace(cuGraphGetEdges=lambda graph: (0, [], [], 0)))
    assert driver.call("cuGraphGetEdges", 1) == ([], [], 0)
    with pytest.raises(DriverError, match="cuKernelGetParamInfo failed with error 801"):
        driver.function("cuKernelGetParamInfo")
