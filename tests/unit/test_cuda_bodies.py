"""What a capture on CUDA does around its operators: bodies begun and ended in order, refusals, memory of loops.

The driver and torch's CUDA are stand-ins that write down what they are asked; what a driver makes of it is tested on a
GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from grape.runtime.backends.cuda import conditional as cuda_conditional
from grape.runtime.backends.cuda.bound import LOOPS, LoopBound
from grape.runtime.backends.cuda.conditional import Bodies
from grape.runtime.backends.cuda.driver import Driver
from grape.runtime.backends.cuda.executables.kernels import Kernels
from grape.runtime.backends.cuda.watch import CaptureWatch
from grape.runtime.backends.protocol import CaptureFailed

CPU = torch.device("cpu")


class Bindings:
    """Streams are numbers; 1 is being captured from the start. `fails` names a function that fails from now on."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.fails: str | None = None
        self.capturing = {1: "graph"}
        kinds = {"CU_GRAPH_COND_TYPE_IF": "if", "CU_GRAPH_COND_TYPE_WHILE": "while"}
        self.CUgraphConditionalNodeType = SimpleNamespace(**kinds)
        self.CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_CONDITIONAL=13)
        modes = {"CU_STREAM_CAPTURE_MODE_THREAD_LOCAL": 1, "CU_STREAM_CAPTURE_MODE_RELAXED": 2}
        self.CUstreamCaptureMode = SimpleNamespace(**modes)
        self.CUstreamCaptureStatus = SimpleNamespace(CU_STREAM_CAPTURE_STATUS_ACTIVE=1)
        self.CUstreamUpdateCaptureDependencies_flags = SimpleNamespace(CU_STREAM_SET_CAPTURE_DEPENDENCIES=1)

    def CUgraphNodeParams(self) -> Any:
        return SimpleNamespace(conditional=SimpleNamespace())

    def _did(self, name: str, what: str, *results: Any) -> tuple[Any, ...]:
        self.log.append(what)
        return (719, *(None for _ in results)) if name == self.fails else (0, *results)

    def cuCtxGetCurrent(self) -> Any:
        return 0, "context"

    def cuThreadExchangeStreamCaptureMode(self, mode: int) -> Any:
        return 0, 0

    def cuStreamGetCaptureInfo(self, stream: int) -> Any:
        return 0, int(stream in self.capturing), 0, self.capturing.get(stream), ["before"], None, 1

    def cuGraphConditionalHandleCreate(self, graph: str, context: str, default: int, flags: int) -> Any:
        return self._did("cuGraphConditionalHandleCreate", f"handle in {graph}", 77)

    def cuLaunchKernel(self, kernel: str, *rest: Any) -> Any:
        stream, ((handle, _, *steered), types) = rest[7], rest[8]
        assert len(types) == 2 + len(steered)
        loop = f" of loop {steered[1]}{', first' * steered[2]}" if kernel == "steer" else ""
        return self._did("cuLaunchKernel", f"set {handle}{loop} on {stream}")

    def cuGraphAddNode(self, graph: str, behind: Any, edges: Any, count: int, parameters: Any) -> Any:
        assert behind == ["before"] and count == 1 and parameters.type == 13
        assert parameters.conditional.handle == 77 and parameters.conditional.ctx == "context"
        kind = parameters.conditional.type
        parameters.conditional.phGraph_out = [f"{graph}.{kind}"]
        return self._did("cuGraphAddNode", f"{kind} in {graph}", "node")

    def cuStreamUpdateCaptureDependencies(self, stream: int, nodes: Any, edges: Any, count: int, flags: int) -> Any:
        assert nodes == ["node"] and count == flags == 1
        return self._did("cuStreamUpdateCaptureDependencies", f"go on in {stream}")

    def cuStreamBeginCaptureToGraph(self, stream: int, graph: str, *rest: Any) -> Any:
        self.capturing[stream] = graph
        return self._did("cuStreamBeginCaptureToGraph", f"begin {graph} on {stream}")

    def cuStreamEndCapture(self, stream: int) -> Any:
        return self._did("cuStreamEndCapture", f"end {self.capturing.pop(stream)}", "graph")

    def cuGraphGetNodes(self, graph: str, count: int) -> Any:
        return 0, [], 3


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def bindings(log: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Bindings]:
    made = Bindings(log)
    current = [1]

    def stream(number: int, device: Any = None) -> Any:
        return SimpleNamespace(cuda_stream=number)

    @contextmanager
    def on(one: Any) -> Iterator[None]:
        current.append(one.cuda_stream)
        try:
            yield
        finally:
            current.pop()

    @contextmanager
    def pool(one: str, device: Any) -> Iterator[None]:
        log.append(f"enter {one}")
        try:
            yield
        finally:
            log.append(f"leave {one}")

    @contextmanager
    def nothing(*_: Any) -> Iterator[None]:
        yield

    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "device", nothing)
        patch.setattr(torch.cuda, "stream", on)
        patch.setattr(torch.cuda, "current_stream", lambda device: stream(current[-1]))
        patch.setattr(torch.cuda, "use_mem_pool", pool)
        patch.setattr(cuda_conditional, "_stream_at", lambda device, depth: stream(10 * depth + 10))
        yield made
    assert current == [1]


@pytest.fixture
def bodies(bindings: Bindings) -> Bodies:
    made: Any = Bodies(Driver(bindings), CPU)
    made._kernels, made.pool, made.bound = (
        Kernels(module=0, set_condition="set", steer_loop="steer"),
        "pool",
        LoopBound(CPU),
    )
    return made  # type: ignore[no-any-return]


def test_a_while_body_sets_its_handle_before_and_at_its_end(bodies: Bodies, log: list[str]) -> None:
    watch = CaptureWatch(CPU)
    with bodies.body("while", torch.tensor(True), watch):
        log.append("work")
    assert log == [
        "handle in graph",
        "set 77 of loop 0, first on 1",
        "while in graph",
        "go on in 1",
        "enter pool",
        "begin graph.while on 10",
        "work",
        "set 77 of loop 0 on 10",
        "end graph.while",
        "leave pool",
    ]
    assert watch.body_nodes == 3


def test_bodies_in_bodies_have_streams_of_their_own_and_one_pool(bodies: Bodies, log: list[str]) -> None:
    watch = CaptureWatch(CPU)
    with bodies.body("if", torch.tensor(True), watch), bodies.body("if", torch.tensor(True), watch):
        log.append("work")
    with bodies.body("if", torch.tensor(True), watch):
        pass
    assert log == [
        *("handle in graph", "set 77 on 1", "if in graph", "go on in 1", "enter pool", "begin graph.if on 10"),
        *("handle in graph.if", "set 77 on 10", "if in graph.if", "go on in 10", "begin graph.if.if on 20", "work"),
        *("end graph.if.if", "end graph.if", "leave pool"),
        *("handle in graph", "set 77 on 1", "if in graph", "go on in 1", "enter pool", "begin graph.if on 10"),
        *("end graph.if", "leave pool"),
    ]


def test_what_waits_for_the_whole_device_is_refused_in_a_body(bodies: Bodies, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would invalidate the captures of the body and around it, and the driver does not survive the end of both."""
    calls: list[str] = []
    for name in ("_cuda_synchronize", "_cuda_emptyCache"):
        monkeypatch.setattr(torch._C, name, lambda name=name: calls.append(name), raising=False)
    watch = CaptureWatch(CPU)
    inner: Any = torch._C
    for name in ("_cuda_synchronize", "_cuda_emptyCache"):
        with (
            pytest.raises(CaptureFailed, match="waits for the whole device"),
            bodies.body("if", torch.tensor(True), watch),
            bodies.body("if", torch.tensor(True), watch),
        ):
            other = threading.Thread(target=getattr(inner, name))
            other.start()
            other.join()
            getattr(inner, name)()
        getattr(inner, name)()
    assert calls == ["_cuda_synchronize"] * 2 + ["_cuda_emptyCache"] * 2
    with pytest.raises(CaptureFailed, match="waits for the whole device"):
        watch.settle()


def test_loops_have_numbers_of_their_own(bodies: Bodies, log: list[str]) -> None:
    watch = CaptureWatch(CPU)
    outer, between, inner = (bodies.body(kind, torch.tensor(True), watch) for kind in ("while", "if", "while"))
    with outer, between, inner:
        pass
    with bodies.body("while", torch.tensor(True), watch):
        pass
    assert [one for one in log if one.startswith("set")] == [
        "set 77 of loop 0, first on 1",
        "set 77 on 10",
        "set 77 of loop 1, first on 20",
        "set 77 of loop 1 on 30",
        "set 77 of loop 0 on 10",
        "set 77 of loop 2, first on 1",
        "set 77 of loop 2 on 10",
    ]
    watch.loops = LOOPS
    with pytest.raises(CaptureFailed, match="more than 4096 loops"), bodies.body("while", torch.tensor(True), watch):
        pass


def test_an_exception_ends_the_captures_of_all_bodies(bodies: Bodies, bindings: Bindings, log: list[str]) -> None:
    watch = CaptureWatch(CPU)
    outer, inner = (bodies.body(kind, torch.tensor(True), watch) for kind in ("while", "if"))
    with pytest.raises(ZeroDivisionError), outer, inner:
        bindings.fails = "cuStreamEndCapture"  # an invalidated capture says so when it is ended
        raise ZeroDivisionError
    assert log[-3:] == ["end graph.while.if", "end graph.while", "leave pool"]
    assert watch.depth == 0 and bindings.capturing == {1: "graph"}
    assert watch.lost_body, "the driver has freed a graph that the one around it refers to"
    bodies.end_unseen(torch.cuda.current_stream(CPU))
    assert log[-1] == "end graph"
    watch.settle(ZeroDivisionError())  # the person's own exception is the one that counts
    with pytest.raises(CaptureFailed, match="caught outside"):
        watch.settle()


@pytest.mark.parametrize(
    "function",
    [
        "cuGraphConditionalHandleCreate",
        "cuLaunchKernel",
        "cuGraphAddNode",
        "cuStreamUpdateCaptureDependencies",
        "cuStreamBeginCaptureToGraph",
        "cuStreamEndCapture",
    ],
)
def test_what_the_driver_refuses_is_refused(bodies: Bodies, bindings: Bindings, log: list[str], function: str) -> None:
    watch = CaptureWatch(CPU)
    bindings.fails = function
    with pytest.raises(CaptureFailed) as caught, bodies.body("if", torch.tensor(True), watch):
        log.append("work")
    assert caught.value.code == "GR405" and ("work" in log) == (function == "cuStreamEndCapture")
    assert log.count("enter pool") == log.count("leave pool")
    with pytest.raises(CaptureFailed):
        watch.settle()


@pytest.mark.parametrize("pred", [torch.ones(1, dtype=torch.bool), torch.tensor(1)])
def test_a_condition_is_one_bool(bodies: Bodies, pred: torch.Tensor, log: list[str]) -> None:
    body = bodies.body("if", pred, CaptureWatch(CPU))
    with pytest.raises(CaptureFailed, match="bool tensor without dimensions"), body:
        pass
    assert log == []


def test_a_body_needs_a_capture_and_preparation(bodies: Bodies, bindings: Bindings) -> None:
    bindings.capturing.clear()
    body = bodies.body("if", torch.tensor(True), CaptureWatch(CPU))
    with pytest.raises(CaptureFailed, match="outside of a capture"), body:
        pass
    bodies.close()
    with pytest.raises(CaptureFailed, match="not prepared"), bodies.body("if", torch.tensor(True), CaptureWatch(CPU)):
        pass


# -- what the operators of a capture are watched for -----------------------------------------------------------------


def test_random_draws_are_seen_and_refused_in_bodies() -> None:
    watch, x = CaptureWatch(CPU), torch.ones(4)
    q = x.reshape(1, 1, 2, 2)
    with watch:
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
        assert not watch.drew
        torch.nn.functional.dropout(x, 0.5)
        assert watch.drew
    watch.settle()
    watch = CaptureWatch(CPU)
    refused = pytest.raises(CaptureFailed, match="draws random numbers in a conditional body")
    with watch, refused, watch.inside(loop=False):
        x.bernoulli_(0.5)
    assert x.tolist() == [1, 1, 1, 1]
    with pytest.raises(CaptureFailed, match="draws random numbers"):
        watch.settle()  # also where the program went on


def test_memory_from_before_a_loop_that_it_reads_outlives_the_loop() -> None:
    watch = CaptureWatch(CPU)

    def ref(tensor: torch.Tensor) -> StorageWeakRef:
        return StorageWeakRef(tensor.untyped_storage())

    with watch, torch.no_grad():
        early, unread = torch.ones(4), torch.ones(4)
        refs = {"early": ref(early), "unread": ref(unread)}
        with watch.inside(loop=True):
            late = early * 2
            refs["late"] = ref(late)
            del early, unread
            with watch.inside(loop=False), watch.inside(loop=True):
                inner = late + 1
                refs["inner"] = ref(inner)
                del late
                inner = inner + 1
                alive = {name for name, one in refs.items() if not one.expired()}
                # `inner` is made anew by each iteration; `late` only by those of the outer loop.
                assert alive == {"early", "late"}
            assert not refs["early"].expired() and refs["late"].expired()
        assert refs["early"].expired()


def test_a_condition_from_before_a_loop_outlives_the_loop(bodies: Bodies) -> None:
    """The kernel that reads it is no operator."""
    watch = CaptureWatch(CPU)
    with watch, torch.no_grad():
        way = torch.ones(1) > 0
        pred = way[0]
        ref = StorageWeakRef(way.untyped_storage())
        with bodies.body("while", torch.tensor(True), watch):
            with bodies.body("if", pred, watch):
                pass
            del way, pred
            assert not ref.expired()
        assert ref.expired()
