"""What `CudaBackend.capture` does around a body, over stand-ins for the driver and for torch's CUDA.

Tensors lie on the CPU and operators execute: what a device would make of them is tested on a GPU.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo  # random operators without a device import it, and it wraps functions of torch for good
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from grape.runtime.backends.cuda import backend as cuda
from grape.runtime.backends.cuda.backend import CudaBackend
from grape.runtime.backends.cuda.denied import captures_here
from grape.runtime.backends.cuda.executables.updatable import UpdatableCudaGraph
from grape.runtime.backends.cuda.graph import CudaGraph
from grape.runtime.backends.cuda.memory import pool_bytes
from grape.runtime.backends.protocol import CaptureFailed
from grape.streams import cuda_warmup

from .cuda_stand_in import StandIn, inspected, without_a_device


class RawGraph:
    """Stands for `torch.cuda.CUDAGraph`; `log` is what was asked of all of them."""

    log: list[str]
    fails: set[str]
    made: int

    def __init__(self, keep_graph: bool) -> None:
        assert keep_graph
        type(self).made += 1
        self.number = type(self).made

    def _did(self, what: str) -> None:
        self.log.append(f"{what} {self.number}")
        if what in self.fails:
            raise RuntimeError(f"CUDA error: {what}\nmore")

    def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        self._did("begin")

    def capture_end(self) -> None:
        self._did("end")

    def instantiate(self) -> None:
        self._did("instantiate")

    def replay(self) -> None:
        self._did("replay")

    def reset(self) -> None:
        self._did("reset")

    def raw_cuda_graph(self) -> int:
        return self.number


@pytest.fixture
def raw(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[RawGraph]]:
    """torch's CUDA and the driver are played. Afterwards nothing of a capture may be left."""
    stand_in = StandIn()
    made = type("Raw", (RawGraph,), {"log": [], "fails": set(), "made": 0})
    stream = SimpleNamespace(wait_stream=lambda other: None, synchronize=lambda: None)

    @contextmanager
    def on(one: Any) -> Iterator[None]:
        yield

    with without_a_device(monkeypatch, stand_in), monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "CUDAGraph", made)
        patch.setattr(torch.cuda, "current_stream", lambda device: stream)
        patch.setattr(torch.cuda, "stream", on)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        patch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
        patch.setattr(torch.cuda, "memory_snapshot", lambda pool: [{"total_size": 64}])
        patch.setattr(cuda, "private_stream", lambda device, use: stream)
        patch.setattr(cuda, "load", lambda: stand_in.driver)
        patch.setattr(cuda, "warm_products", lambda device, stream, autograd: None)
        patch.setattr(cuda, "_count_nodes", lambda graph: 5)
        stand_in.driver.types.cuDriverGetVersion = lambda: (0, 13_000)
        before = _get_current_dispatch_mode_stack()
        yield made
        assert not captures_here() and _get_current_dispatch_mode_stack() == before
        assert torch.is_autocast_cache_enabled()


def backend(**switches: bool) -> CudaBackend:
    made = CudaBackend(torch.device("cuda", 0), **switches)
    made.device = torch.device("cpu")
    return made


def test_without_switches_a_capture_is_instantiated_and_nothing_watches_it(raw: type[RawGraph]) -> None:
    made = backend(updatable=False, conditional_bodies=False)
    assert not made.updatable and not made.conditional_bodies
    modes: list[Any] = []
    graph, result = made.capture(lambda: modes.extend(_get_current_dispatch_mode_stack()) or 7)
    assert isinstance(graph, CudaGraph) and result == 7 and graph.nodes == 5 and modes == []
    graph.replay()
    assert raw.log == ["begin 1", "end 1", "begin 2", "end 2", "instantiate 2", "replay 2"]
    with pytest.raises(CaptureFailed, match="records no conditional bodies"):
        made.if_body(torch.tensor(True))
    made.close()
    with pytest.raises(RuntimeError, match="released"):
        graph.replay()


def test_an_updatable_graph_has_no_executable_and_knows_whether_it_draws(raw: type[RawGraph]) -> None:
    made = backend()
    x, graphs = torch.ones(4), []
    host = torch.ones(4, device="meta")  # elsewhere than the backend's device, which is the CPU here
    bodies = (
        (lambda: x + 1, False),
        (lambda: torch.rand(2, device="meta") + host.uniform_()[:2], False),
        (lambda: torch.nn.functional.dropout(x, 0.5), True),
        (lambda: torch.rand(2), True),
    )
    for body, draws in bodies:
        graph, _ = made.capture(body)
        assert isinstance(graph, UpdatableCudaGraph)
        graphs.append(graph)
        assert graph._draws is draws and graph.nbytes == 0 and not any("instantiate" in one for one in raw.log)
    assert graphs[-1].topology is None
    assert sum(graph.host_bytes for graph in graphs) == 4 * 5 * 3_500 and made.memory().pool_bytes == 64
    graph.replay()
    graph.replay()
    assert [one.split()[0] for one in raw.log[-3:]] == ["instantiate", "replay", "replay"]
    made.close()


def test_a_refusal_counts_where_the_program_swallows_it(raw: type[RawGraph]) -> None:
    made = backend()
    assert made.conditional_bodies

    def outside() -> None:
        with suppress(CaptureFailed), made.if_body(torch.tensor(True)):
            pass

    with pytest.raises(CaptureFailed, match="were not prepared"):
        made.capture(outside)
    ended = [one for one in raw.log if one.startswith("end")]
    assert len(ended) == 2, raw.log  # the pool's first graph, and the capture that was refused
    with pytest.raises(CaptureFailed, match="outside of a capture"), made.if_body(torch.tensor(True)):
        pass
    assert made.capture(lambda: 3)[1] == 3
    made.close()


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("switches", [{"updatable": False}, {}])
def test_an_exception_of_the_body_ends_the_capture(
    raw: type[RawGraph], error: type[BaseException], switches: dict[str, bool]
) -> None:
    made = backend(**switches)

    def body() -> None:
        torch.ones(3).add_(1)
        raise error

    with torch.autocast("cpu"), pytest.raises(error):
        made.capture(body)
    assert raw.log[-1].startswith("end")
    raw.fails.add("instantiate")
    if switches:
        with pytest.raises(RuntimeError, match="instantiate"):
            made.capture(lambda: 1)
    raw.fails.clear()
    assert made.capture(lambda: 3)[1] == 3
    made.close()


def test_an_invalidated_capture_is_a_refusal_and_opens_another_pool(raw: type[RawGraph]) -> None:
    made = backend()
    made.prepare()
    first = made._anchor

    def body() -> None:
        raw.fails.add("end")

    handles = iter([(0, 2), (0, 3)])
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
            patch.setattr(torch._C, name, lambda device, pool: None, raising=False)
        patch.setattr(torch.cuda, "graph_pool_handle", lambda: raw.fails.clear() or next(handles))
        with pytest.raises(CaptureFailed, match=r"invalidated: CUDA error: end$"):
            made.capture(body)
    assert made._anchor is not first and made._pool == (0, 2)
    made.close()


def test_a_capture_that_cannot_begin_gives_the_allocator_back(raw: type[RawGraph]) -> None:
    made = backend()
    made.prepare()
    given_back: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
            patch.setattr(torch._C, name, lambda device, pool, name=name: given_back.append(name), raising=False)
        patch.setattr(torch.cuda, "graph_pool_handle", lambda: raw.fails.clear() or (0, 2))
        raw.fails.add("begin")
        with pytest.raises(CaptureFailed, match=r"could not begin: CUDA error: begin$"):
            made.capture(lambda: 1)
    assert given_back == ["_cuda_endAllocateToPool", "_cuda_releasePool"]
    assert made.capture(lambda: 3)[1] == 3
    made.close()


def test_closing_releases_executables_that_others_made(raw: type[RawGraph]) -> None:
    made = backend()
    graph, _ = made.capture(lambda: torch.ones(2) + 1)
    assert isinstance(graph, UpdatableCudaGraph) and made._executables is not None
    stand_in_graphs: Any = made._executables.driver.types.cuGraphInstantiate.__self__.graphs
    stand_in_graphs[graph.raw()] = inspected(b"")
    graph._inspected, graph._looked = inspected(b""), True
    executable = graph.instantiate()
    graph.release()
    assert made.memory().executable_bytes == executable.nbytes == 1000
    made.close()
    assert made.memory().executable_bytes == 0
    with pytest.raises(RuntimeError, match="released"):
        executable.replay()


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    """Taken back before what `raw` patched."""
    with pytest.MonkeyPatch.context() as inside:
        yield inside


def test_bytes_of_graphs_are_what_the_driver_had_less_shared_out_by_nodes(
    raw: type[RawGraph], patch: pytest.MonkeyPatch
) -> None:
    """The driver takes memory in pieces: the first executable takes one, those after it find room there."""
    made, free = backend(updatable=False), [1 << 30]
    nodes = iter([1, 10, 20, 30, 20])  # the first is the graph that holds the pool open
    patch.setattr(cuda, "_count_nodes", lambda graph: next(nodes))
    patch.setattr(torch.cuda, "mem_get_info", lambda device: (free[0], 1 << 31))
    patch.setattr(raw, "instantiate", lambda self: free.append(free.pop() - pieces.pop(0)))
    pieces = [6000, 0, 0, 10**6]
    graphs = [made.capture(lambda: 1)[0] for _ in range(3)]
    assert [graph.nbytes for graph in graphs] == [1000, 2000, 3000]
    assert made.memory().executable_bytes == 6000
    graphs[1].release()
    assert graphs[1].nbytes == 0 and made.memory().executable_bytes == 4000
    again = made.capture(lambda: 1)[0]  # where the released one was: nobody asks the driver
    assert again.nbytes == 2000
    made.close()
    assert made.memory().executable_bytes == 0


def test_the_numbers_of_a_pool_survive_a_snapshot_that_gives_them_up(raw: type[RawGraph]) -> None:
    pool = (int("100001"), int("100002"))

    def give_up(numbers: tuple[int, int]) -> list[dict[str, int]]:
        for number in numbers:
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(number))
        return [{"total_size": 8}, {"total_size": 4}]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "memory_snapshot", give_up)
        before = [sys.getrefcount(number) for number in pool]
        assert [pool_bytes(pool) for _ in range(5)] == [12] * 5
        assert [sys.getrefcount(number) for number in pool] == before


def test_a_pool_from_before_a_failed_capture_counts_while_a_graph_of_it_lives(raw: type[RawGraph]) -> None:
    made, handles, bytes_of = backend(), iter([(0, 1), (0, 2)]), {(0, 1): 100, (0, 2): 7}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
            patch.setattr(torch._C, name, lambda device, pool: None, raising=False)
        patch.setattr(torch.cuda, "graph_pool_handle", lambda: raw.fails.clear() or next(handles))
        patch.setattr(torch.cuda, "memory_snapshot", lambda pool: [{"total_size": bytes_of[pool]}])
        first, _ = made.capture(lambda: 1)
        assert made.memory().pool_bytes == 100
        with pytest.raises(CaptureFailed, match="invalidated"):
            made.capture(lambda: raw.fails.add("end"))
        second, _ = made.capture(lambda: 1)
        assert made.memory().pool_bytes == 107
        first.release()
        assert made.memory().pool_bytes == 7
        second.release()
        assert made.memory().pool_bytes == 7  # kept for the next capture
        made.close()
        assert made.memory().pool_bytes == 0


def test_workspaces_lie_in_a_pool_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cuBLAS allocates on the stream of captures, from whatever thread, is never given to eager code."""
    log: list[Any] = []
    on = [None]

    @contextmanager
    def stream(one: Any) -> Iterator[None]:
        on.append(one.name)
        yield
        on.pop()

    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "MemPool", lambda: SimpleNamespace(id=(5, 0)))
    monkeypatch.setattr(cuda_warmup, "_workspaces", {})
    for name in ("_cuda_beginAllocateCurrentStreamToPool", "_cuda_endAllocateToPool", "_cuda_releasePool"):
        note = lambda index, pool, name=name: log.append((name, on[-1], pool))  # noqa: E731
        monkeypatch.setattr(torch._C, name, note, raising=False)
    original = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda *args: log.append("bmm") or original(*args))
    for name in ("captures", "bodies"):
        one = SimpleNamespace(name=name, synchronize=lambda: log.append("wait"))
        cuda_warmup.warm_products(torch.device("cpu"), one, autograd=True)
    for name, part in (("captures", log[:7]), ("bodies", log[7:])):
        assert part == [
            ("_cuda_beginAllocateCurrentStreamToPool", name, (5, 0)),
            *["bmm"] * 3,
            "wait",
            ("_cuda_endAllocateToPool", name, (5, 0)),
            ("_cuda_releasePool", name, (5, 0)),
        ]
