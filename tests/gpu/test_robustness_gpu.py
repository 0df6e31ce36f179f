"""Recovery on a GPU: after any failure allocator, generator and stream work, and the next capture succeeds (R7, R8)."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from grape.runtime import GraphedFunction
from grape.runtime.accounts import policy
from grape.runtime.accounts.policy import decide
from grape.runtime.backends.cuda.backend import CudaBackend
from tests.unit.sabotage import ERRORS, Pair, Sabotage, captures_again, raising, warm

CALLS = 16
"""Enough to observe, to capture and to replay."""
SLACK = 32 * 2**20
"""Bytes that the driver may keep for itself: executables are not given back at once."""
OF_TORCH = 32
"""Streams that torch hands out in turn."""


pytestmark = pytest.mark.usefixtures("without_gradients")


@pytest.fixture(autouse=True)
def capture_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "decide", lambda estimate: replace(decide(estimate), action="capture"))


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture
def backend(device: torch.device) -> Iterator[CudaBackend]:
    made = CudaBackend(device)
    yield made
    made.close()


def network(device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4), nn.Tanh()).to(device)


def usable(pair: Pair) -> None:
    """Everything that an invalidated capture can leave broken works again."""
    device = pair.backend.device
    torch.cuda.synchronize()
    assert not torch.cuda.is_current_stream_capturing()
    x = torch.randn(64, 64, device=device)
    assert (x @ x).isfinite().all().item()
    state = torch.cuda.get_rng_state(device)
    drawn = torch.rand(8, device=device)
    torch.cuda.set_rng_state(state, device)
    assert drawn.equal(torch.rand(8, device=device)) and not drawn.equal(torch.rand(8, device=device))
    torch.cuda.empty_cache()
    captures_again(pair)
    torch.cuda.synchronize()


@pytest.mark.parametrize("at", [1, 4], ids=["first operator", "fourth operator"])
@pytest.mark.parametrize("name", ERRORS)
def test_an_exception_inside_a_capture(backend: CudaBackend, name: str, at: int) -> None:
    sabotage, pair = Sabotage(backend), Pair(backend)
    sabotage.in_capture(raising(*ERRORS[name]), at=at)
    for _ in range(CALLS):
        pair.call()
    assert sabotage.sprung == 1
    usable(pair)
    pair.call()


def test_a_real_lack_of_memory_inside_a_capture(backend: CudaBackend) -> None:
    sabotage, pair = Sabotage(backend), Pair(backend)
    total = torch.cuda.mem_get_info()[1]
    sabotage.in_capture(lambda: torch.empty(2 * total, dtype=torch.uint8, device=backend.device), at=3)
    for _ in range(CALLS):
        pair.call()
    assert sabotage.sprung == 1
    usable(pair)


def unjoined() -> None:
    """Work on another stream that the capture forks to and never joins."""
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        torch.ones(4, device="cuda").mul_(2)


FORBIDDEN: dict[str, Callable[[], Any]] = {
    "item": lambda: torch.ones((), device="cuda").item(),
    "nonzero": lambda: torch.nonzero(torch.ones(3, device="cuda")),
    "synchronize": torch.cuda.synchronize,
    "copy to the host": lambda: torch.ones(3, device="cuda").cpu(),
    "copy from pageable memory": lambda: torch.ones(3).to("cuda"),
    "an unjoined stream": unjoined,
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_forbidden_operation_inside_a_capture(backend: CudaBackend, name: str) -> None:
    """The eager run before it did not do this, so nothing told the region in advance."""
    sabotage, pair = Sabotage(backend), Pair(backend)
    sabotage.in_capture(FORBIDDEN[name], at=3)
    for _ in range(CALLS):
        pair.call()
    assert sabotage.sprung == 1
    usable(pair)


@pytest.mark.parametrize("where", ["capture", "verification"])
def test_an_interrupt_propagates_and_leaves_nothing(backend: CudaBackend, where: str) -> None:
    sabotage, pair = Sabotage(backend), Pair(backend)
    arm = sabotage.in_capture if where == "capture" else sabotage.in_replay
    arm(raising(KeyboardInterrupt))
    for _ in range(CALLS):
        pair.call(interrupt=None if sabotage.sprung else KeyboardInterrupt)
    assert sabotage.sprung == 1
    usable(pair)


@pytest.mark.parametrize("name", [*ERRORS, "silently wrong"])
def test_a_failure_inside_verification(backend: CudaBackend, name: str) -> None:
    sabotage, pair = Sabotage(backend), Pair(backend)
    sabotage.in_replay(raising(*ERRORS[name]) if name in ERRORS else lambda: None)
    for _ in range(CALLS):
        pair.call()
    assert sabotage.sprung == 1
    usable(pair)


@pytest.mark.parametrize("act", [raising(ValueError, "no"), FORBIDDEN["item"]], ids=["exception", "invalidated"])
def test_failed_captures_leave_the_memory_where_it_was(device: torch.device, act: Callable[[], Any]) -> None:
    """Ten regions that fail, each with a backend of its own: memory afterwards is that of before."""
    sizes = []
    for _ in range(10):
        backend = CudaBackend(device)
        sabotage, pair = Sabotage(backend), Pair(backend)
        sabotage.in_capture(act, at=4, times=99)
        for _ in range(CALLS):
            pair.call()
        assert sabotage.sprung
        pair.release()
        backend.close()
        del pair, sabotage, backend
        gc.collect()
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()  # one for each capture stream; no graph is left that uses it
        torch.cuda.empty_cache()
        sizes.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]))
    allocated, reserved, free = zip(*sizes, strict=True)
    assert allocated[-1] <= allocated[1], sizes
    assert reserved[-1] <= reserved[1], sizes
    assert free[-1] >= free[1] - SLACK, sizes


def test_a_region_that_replays_and_fails_twice_is_refused_and_says_so(backend: CudaBackend) -> None:
    sabotage, pair = Sabotage(backend), Pair(backend)
    pair.warm(3)
    sabotage.in_capture(raising(torch.OutOfMemoryError, "CUDA out of memory."), times=2)
    for rows in (5, 7):
        for _ in range(CALLS):
            pair.call(rows)
    refused = pair.evidence.refused
    assert sabotage.sprung == 2 and refused is not None and "out of memory" in refused.why
    served = pair.evidence.replays
    for rows in (3, 5, 7):
        pair.call(rows)
    assert pair.evidence.replays == served
    usable(pair)


def test_another_thread_works_while_a_capture_runs(backend: CudaBackend) -> None:
    """On every stream that torch hands out it allocates, launches and waits; its memory is none of the graph's."""
    sabotage, pair = Sabotage(backend), Pair(backend)
    ready, turn, done = threading.Event(), threading.Event(), threading.Event()
    kept: list[torch.Tensor] = []
    found: list[float] = []

    def work() -> None:
        with torch.no_grad():
            for stream in streams:
                with torch.cuda.stream(stream):
                    x = torch.ones(256, 256, device=backend.device)
                    (x @ x).sum().item()
            ready.set()
            turn.wait(60)
            for stream in streams:
                with torch.cuda.stream(stream):
                    x = torch.full((256, 256), 2.0, device=backend.device)
                    for _ in range(50):
                        x = x * 1.5 - x * 0.5
                    found.append((x @ x).sum().item())
                    kept.append(x)
        done.set()

    def let_it() -> None:
        turn.set()
        assert done.wait(60)

    streams = {torch.cuda.Stream() for _ in range(2 * OF_TORCH)}
    thread = threading.Thread(target=work)
    thread.start()
    assert ready.wait(60)
    sabotage.in_capture(let_it, at=3)
    try:
        pair.warm()
    finally:
        turn.set()
        thread.join(60)
    assert sabotage.sprung == 1 and len(streams) == OF_TORCH and found == [4.0 * 256**3] * OF_TORCH
    for _ in range(8):
        pair.call()
    torch.cuda.synchronize()
    assert all((one == 2.0).all().item() for one in kept), "a replay wrote into the other thread's memory"


def test_another_thread_launches_all_the_time(backend: CudaBackend) -> None:
    """Captures and replays beside a thread that never stops launching on a stream of its own."""
    pair, ready, stop, wrong = Pair(backend), threading.Event(), threading.Event(), threading.Event()
    rounds: list[int] = []

    def work() -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            ones = torch.ones(512, 512, device=backend.device)
            while not stop.is_set():
                x = ones
                for _ in range(10):
                    x = (x @ ones) / 512
                if not x.equal(ones):
                    wrong.set()
                rounds.append(1)
                ready.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert ready.wait(60)
        for rows in (3, 5, 7):
            for _ in range(CALLS):
                pair.call(rows)
    finally:
        stop.set()
        thread.join(60)
    assert rounds and not wrong.is_set() and pair.evidence.replays > 0


def test_batches_of_a_data_loader_with_pinned_memory(backend: CudaBackend) -> None:
    """Two workers and the thread that pins; batches of two sizes, copied without waiting."""
    rows = torch.randn(190, 4, generator=torch.Generator().manual_seed(0))
    net = network(backend.device)
    graphed = GraphedFunction(net, backend=backend, tolerance=0.0)
    loader = DataLoader(TensorDataset(rows), batch_size=4, num_workers=2, pin_memory=True)
    found = [graphed(batch.to(backend.device, non_blocking=True)) for (batch,) in loader]
    torch.cuda.synchronize()
    assert len(found) == 48
    for index, result in enumerate(found):
        assert result.equal(net(rows[4 * index : 4 * index + 4].to(backend.device))), index
    evidence = graphed.evidence()
    assert evidence is not None and evidence.replays >= 10


def test_a_region_keeps_working_after_the_allocator_was_emptied(backend: CudaBackend) -> None:
    net = network(backend.device)
    graphed = GraphedFunction(net, backend=backend, tolerance=0.0)
    warm(graphed, lambda: graphed(torch.randn(3, 4, device=backend.device)))
    for _ in range(6):
        gc.collect()
        torch.cuda.empty_cache()
        torch.full((2**20,), float("nan"), device=backend.device)
        x = torch.randn(3, 4, device=backend.device)
        assert graphed(x).equal(net(x))
