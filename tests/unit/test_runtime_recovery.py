"""What goes wrong inside a capture, a verification or a replay costs the graph, never the person's result (R7, R8)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from grape.runtime import GraphedFunction
from grape.runtime.backends.reference.backend import ReferenceBackend
from tests.unit.sabotage import ERRORS, Pair, Sabotage, captures_again, raising, warm

pytestmark = pytest.mark.usefixtures("without_gradients")


@pytest.fixture
def backend() -> Iterator[ReferenceBackend]:
    made = ReferenceBackend(poison=True)
    yield made
    made.close()


FORBIDDEN: dict[str, Callable[[], Any]] = {
    "read": lambda: torch.ones(()).item(),
    "data-dependent shape": lambda: torch.nonzero(torch.ones(3)),
    "seed": lambda: torch.manual_seed(1),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4), nn.Tanh())


def usable(pair: Pair) -> None:
    """Generator, host reads and backend work, and a capture of something else succeeds."""
    assert torch.rand(3).isfinite().all() and torch.ones(2).tolist() == [1.0, 1.0]
    captures_again(pair)


@pytest.mark.parametrize("at", [1, 2, 4], ids=["first", "second", "fourth operator"])
@pytest.mark.parametrize("name", ERRORS)
def test_an_exception_inside_a_capture(backend: ReferenceBackend, name: str, at: int) -> None:
    sabotage, pair = Sabotage(backend), Pair(backend)
    sabotage.in_capture(raising(*ERRORS[name]), at=at)
    for _ in range(20):
        pair.call()
    assert sabotage.sprung == 1
    usable(pair)
    pair.call()


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_forbidden_operation_inside_a_capture(backend: ReferenceBackend, name: str) -> None:
    """The eager run before it did not do this, so nothing told the region in advance."""
    sabotage, pair = Sabotage(backend), Pair(backend)
    sabotage.in_capture(FORBIDDEN[name])
    for _ in range(20):
        pair.call()
    assert sabotage.sprung == 1
    usable(pair)


@pytest.mark.parametrize("where", ["capture", "verification"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_propagates_and_leaves_nothing(
    backend: ReferenceBackend, error: type[BaseException], where: str
) -> None:
    """The person pressed Ctrl-C: the call ends with it. What the eager run had done by then stays done, once."""
    sabotage, pair = Sabotage(backend), Pair(backend)
    arm = sabotage.in_capture if where == "capture" else sabotage.in_replay
    arm(raising(error))
    for _ in range(20):
        pair.call(interrupt=None if sabotage.sprung else error)
    assert sabotage.sprung == 1
    usable(pair)


@pytest.mark.parametrize("name", [*ERRORS, "silently wrong"])
def test_a_failure_inside_verification(backend: ReferenceBackend, name: str) -> None:
    """A replay that raises, or that does nothing, is found out before it serves anybody."""
    sabotage, pair = Sabotage(backend), Pair(backend)
    sabotage.in_replay(raising(*ERRORS[name]) if name in ERRORS else lambda: None)
    for _ in range(20):
        pair.call()
    assert sabotage.sprung == 1
    usable(pair)


def test_a_replay_that_computes_something_else_is_refused_and_says_so(backend: ReferenceBackend) -> None:
    """Nothing but the comparison of the results can tell: no random stream, no state."""
    sabotage, net = Sabotage(backend), network()
    graphed = GraphedFunction(net, backend=backend, tolerance=0.0)
    sabotage.in_replay(lambda: None, times=99)
    for _ in range(20):
        x = torch.randn(3, 4)
        assert graphed(x).equal(net(x))
    evidence = graphed.evidence()
    assert evidence is not None and evidence.replays == 0 and evidence.verified is None
    assert evidence.refused is not None and "other bits than eager code does" in evidence.refused.why


@pytest.mark.parametrize("name", ["exception", "out of device memory"])
def test_a_failed_capture_leaks_no_memory(backend: ReferenceBackend, name: str) -> None:
    """Failing twenty times takes no more of the pool than failing once."""
    sizes = []
    for _ in range(20):
        sabotage, pair = Sabotage(backend), Pair(backend)
        sabotage.in_capture(raising(*ERRORS[name]), at=4, times=99)
        for _ in range(12):
            pair.call()
        assert sabotage.sprung
        backend.capture = sabotage._original  # type: ignore[method-assign]
        pair.release()
        sizes.append(backend.memory().pool_bytes)
        del pair, sabotage
    assert sizes[-1] == sizes[1], sizes


def test_a_region_that_never_can_be_captured_is_refused_and_says_so(backend: ReferenceBackend) -> None:
    sabotage, pair = Sabotage(backend), Pair(backend)
    sabotage.in_capture(raising(ValueError, "no such table"), times=99)
    for _ in range(40):
        pair.call()
    refused = pair.evidence.refused
    assert refused is not None and refused.code == "GR405"
    assert "ValueError" in refused.why and "no such table" in refused.why
    assert sabotage.sprung <= 2 and pair.evidence.outcome == "refused" and pair.evidence.replays == 0


def test_a_region_that_replays_and_fails_twice_is_refused_and_says_so(backend: ReferenceBackend) -> None:
    """The first failure closes its shape and leaves the others; the second ends the region."""
    sabotage, pair = Sabotage(backend), Pair(backend)
    pair.warm(3)
    sabotage.in_capture(raising(torch.OutOfMemoryError, "CUDA out of memory."), times=99)
    for _ in range(15):
        pair.call(5)
    assert sabotage.sprung == 1 and pair.evidence.refused is None
    replays = pair.evidence.replays
    for _ in range(3):
        pair.call(3)
    assert pair.evidence.replays > replays, "a shape that has a graph goes on replaying"
    for _ in range(15):
        pair.call(7)
    refused = pair.evidence.refused
    assert sabotage.sprung == 2 and refused is not None and "out of memory" in refused.why
    served = pair.evidence.replays
    for rows in (3, 5, 7):
        pair.call(rows)
    assert pair.evidence.replays == served


def test_the_persons_own_exception_is_theirs_and_costs_nothing(backend: ReferenceBackend) -> None:
    pair = Pair(backend)
    pair.warm()
    replays = pair.evidence.replays
    with pytest.raises(RuntimeError, match=r"mat1 and mat2 shapes cannot be multiplied \(3x5 and 4x4\)"):
        pair.graphed(torch.randn(3, 5))
    for _ in range(3):
        pair.call()
    assert pair.evidence.refused is None and pair.evidence.replays > replays


def test_another_thread_works_while_a_capture_runs(backend: ReferenceBackend) -> None:
    """It computes and reads values; neither does the capture see it, nor does it see the capture."""
    sabotage, pair = Sabotage(backend), Pair(backend)
    turn, done = threading.Event(), threading.Event()
    found: list[float] = []

    def work() -> None:
        turn.wait(30)
        x = torch.full((4,), 2.0)
        for _ in range(50):
            x = x * 1.5 - x * 0.5
        found.extend(x.tolist())
        found.append((x @ x).item())
        done.set()

    thread = threading.Thread(target=work)
    thread.start()

    def let_it() -> None:
        turn.set()
        assert done.wait(30)

    sabotage.in_capture(let_it, at=3)
    try:
        pair.warm()
    finally:
        turn.set()
        thread.join(30)
    assert sabotage.sprung == 1 and found == [2.0] * 4 + [16.0]
    for _ in range(5):
        pair.call()


def test_another_thread_that_calls_the_region_runs_eagerly(backend: ReferenceBackend) -> None:
    """Placeholders and slots belong to one thread: calls from others are neither counted nor served by a graph."""
    net = network()
    graphed = GraphedFunction(net, backend=backend, tolerance=0.0)
    warm(graphed, lambda: graphed(torch.randn(3, 4)))
    before, wrong = graphed.evidence(), []

    def work() -> None:
        with torch.no_grad():
            for index in range(20):
                x = torch.full((3, 4), index / 10)
                if not graphed(x).equal(net(x)):
                    wrong.append(index)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    after = graphed.evidence()
    assert not wrong and before is not None and after is not None
    assert (after.calls, after.replays) == (before.calls, before.replays)
    x = torch.randn(3, 4)
    assert graphed(x).equal(net(x))


def test_batches_of_a_data_loader_with_workers(backend: ReferenceBackend) -> None:
    rows = torch.arange(240.0).view(60, 4)
    net = network()
    graphed = GraphedFunction(net, backend=backend, tolerance=0.0)
    loader = DataLoader(TensorDataset(rows), batch_size=3, num_workers=1)
    found = [graphed(batch) for (batch,) in loader]
    assert all(result.equal(net(rows[3 * i : 3 * i + 3])) for i, result in enumerate(found)) and len(found) == 20
    evidence = graphed.evidence()
    assert evidence is not None and evidence.replays >= 5


def test_no_memory_for_what_a_replay_needs(backend: ReferenceBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory in the copies around a launch: the call is served as it would be without Grape."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4), nn.Tanh())
    graphed = GraphedFunction(net, backend=backend, tolerance=0.0)
    warm(graphed, lambda: graphed(torch.randn(3, 4)))
    copy, failures = backend.copy, [torch.OutOfMemoryError("CUDA out of memory.")]

    def full(*args: Any, **kwargs: Any) -> None:
        if failures:
            raise failures.pop()
        copy(*args, **kwargs)

    monkeypatch.setattr(backend, "copy", full)
    for _ in range(8):
        x = torch.randn(3, 4)
        assert graphed(x).equal(net(x))
    assert not failures, "the sabotage must have met a replay"
