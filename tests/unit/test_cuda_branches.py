"""Lanes of a capture on CUDA, with stand-ins for streams, events and driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grape.model import Later
from grape.model.overlap import OverlapPlan
from grape.runtime.backends.cuda import launches
from grape.runtime.backends.cuda.branching import branches as module
from grape.runtime.backends.cuda.branching.branches import CudaBranches
from grape.runtime.backends.cuda.driver import DriverError
from grape.runtime.backends.cuda.executables import updatable
from grape.runtime.backends.protocol import OverlapLost
from grape.tracing import hides_memory

PLAN = OverlapPlan(lanes=2, lane={0: 0, 1: 1}, waits={1: (0,)}, held=frozenset({0}), freed={}, operators=2, chain=2)


class Stream:
    """Its number is what comes last on it, as the driver tells."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.cuda_stream = 1
        self.fails: Exception | None = None

    def wait_event(self, event: object) -> None:
        if self.fails is not None:
            raise self.fails


class Driver:
    def call(self, name: str, stream: int) -> tuple[Any, ...]:
        assert name == "cuStreamGetCaptureInfo"
        return None, None, None, [stream], None, 1


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Stream, CudaBranches]]:
    main = Stream()
    monkeypatch.setattr(module, "_event_on", lambda stream: object())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    driver: Any = Driver()
    others: Any = [Stream()]
    given: Any = main
    yield main, CudaBranches(PLAN, driver, given, others)


def test_what_is_issued_aside_is_known_and_nothing_before_it(lanes: tuple[Stream, CudaBranches]) -> None:
    main, branches = lanes
    with branches.aside():
        main.cuda_stream = 2
    with branches.on_lane(0):
        main.cuda_stream = 3
    main.cuda_stream = 4  # a kernel without an operator
    with pytest.raises(OverlapLost), branches.aside():
        pytest.fail("a constant behind it must not hide it")
    with pytest.raises(OverlapLost):
        branches.join()


def test_a_capture_that_was_invalidated_is_abandoned_without_an_error(lanes: tuple[Stream, CudaBranches]) -> None:
    """Another one would take the place of the interrupt, or the error, that ended it."""
    main, branches = lanes
    with branches.on_lane(0):
        pass
    with branches.on_lane(1):
        pass
    main.fails = RuntimeError("the capture was invalidated")
    branches.abandon()


def test_memory_is_kept_when_its_tensor_gets_another(lanes: tuple[Stream, CudaBranches]) -> None:
    _, branches = lanes
    made = torch.zeros(8)
    storage = made.untyped_storage()
    branches.keep(0, made)
    made.set_(torch.ones(8))  # type: ignore[call-overload]
    before = torch._C._storage_Use_Count(storage._cdata)
    branches.abandon()
    assert torch._C._storage_Use_Count(storage._cdata) <= before
    assert made.sum() == 8


def test_tensors_made_of_others_and_objects_hide_memory() -> None:
    class Wrapper(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func: object, types: object, args: object = (), kwargs: object = None) -> object:
            raise NotImplementedError

    wrapper = torch.Tensor._make_wrapper_subclass(Wrapper, (2,))  # type: ignore[attr-defined]
    plain = torch.zeros(2)
    assert hides_memory((plain, [wrapper])) and hides_memory(({"a": plain},))
    assert not hides_memory((plain, torch.nn.Parameter(plain), [plain, None], 1, "x"))


def test_a_launch_on_another_stream_waits_for_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of several functions name the same workspaces."""
    log: list[tuple[int, int]] = []

    class Stream:
        def __init__(self, address: int) -> None:
            self.address = address

        def wait_stream(self, other: Stream) -> None:
            log.append((self.address, other.address))

    current = Stream(5)
    monkeypatch.setattr(launches, "_last", {})
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: current.address, raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: current)
    assert [launches.follow(0), launches.follow(0)] == [5, 5] and log == []
    current = Stream(6)
    assert [launches.follow(0), launches.follow(0)] == [6, 6] and log == [(6, 5)]
    current = Stream(5)
    assert launches.follow(1) == 5 and log == [(6, 5)], "another device"
    assert launches.follow(0) == 5 and log == [(6, 5), (5, 6)]


def test_branches_that_cannot_be_measured_are_captured_as_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call is tried again, and the region is not refused for it."""

    def refuse(*args: object) -> object:
        raise DriverError("cuGraphClone", 801)

    monkeypatch.setattr(updatable, "compare_orders", refuse)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    driver = SimpleNamespace(relaxed=nullcontext, types=SimpleNamespace(CUgraph=int))
    executables: Any = SimpleNamespace(driver=driver, device=torch.device("cpu"), instantiation=None)
    captured: Any = SimpleNamespace(raw_cuda_graph=lambda: 7, reset=lambda: None)
    graph = updatable.UpdatableCudaGraph(executables, captured, nodes=3, draws=False, pool=None)
    plan: Any = None
    with pytest.raises(OverlapLost, match="branches could not be measured: cuGraphClone") as lost:
        graph.compare_orders(plan)
    assert lost.value.outcome.later is Later.OVERLAP
