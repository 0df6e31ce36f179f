"""An attempt to capture a training step may fail anywhere: everything is as the eager call left it.

That is memory (also such as lies on the host, which a capture writes for real), gradients, state of optimizers, random
states, version counters. Each call is compared with its plain twin.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch.nn import functional as F

from grape.runtime.backends.protocol import CaptureFailed
from grape.runtime.backends.reference.capture import CaptureMode
from grape.runtime.backends.reference.memory import bare
from grape.runtime.capture.proof import verification
from grape.runtime.capture.running.lockstep import Diverged, Lockstep
from grape.runtime.state import KeptState
from tests.property.programs import Twins, World

pytestmark = pytest.mark.usefixtures("without_eager_calls_in_between")

X, Y = torch.linspace(-1, 1, 12).view(3, 4), torch.linspace(0, 1, 6).view(3, 2)


class Counting(torch.optim.Optimizer):
    """Counts its steps, as Adam does in tensors of the CPU."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})
        for p in self.param_groups[0]["params"]:
            self.state[p] = {"step": torch.zeros(()), "average": torch.zeros_like(p)}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            self.state[p]["step"] += 1
            self.state[p]["average"].mul_(0.9).add_(p.grad)
            p.add_(self.state[p]["average"], alpha=-0.1)


def build() -> World:
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.2), nn.Linear(3, 2))
    optimizer = Counting(net.parameters())

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return World(net=net, optimizer=optimizer, function=step)


def batch(w: World) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (X, Y), {}


@pytest.fixture(autouse=True)
def counters_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps are written for real while a step is captured, as tensors of the CPU are beside a GPU."""
    record = CaptureMode._dispatch

    def dispatch(self: CaptureMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is torch.ops.aten.add_.Tensor and args[0].dim() == 0:
            with bare():
                func(*args, **kwargs)
        return record(self, func, args, kwargs)

    monkeypatch.setattr(CaptureMode, "_dispatch", dispatch)


ERRORS: dict[str, Callable[[], BaseException]] = {
    "other operators": lambda: Diverged(None, None),
    "the code raises": lambda: RuntimeError("at this operator"),
    "the device refuses": lambda: CaptureFailed("GR405", "at this operator"),
    "no memory": lambda: torch.OutOfMemoryError("at this operator"),
}


class _Failing:
    """Fails at the `at`-th operator of a captured run; `failed` counts how often it did, `most` how many there were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, error: Callable[[], BaseException]) -> None:
        self.failed = self.most = 0
        step = Lockstep._step

        def failing(lockstep: Lockstep, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            number = lockstep._next
            self.most = max(self.most, number + 1)
            result = step(lockstep, func, args, kwargs)
            if number == at:
                self.failed += 1
                raise error()
            return result

        monkeypatch.setattr(Lockstep, "_step", failing)


def operators(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many a captured run of the step has."""
    with monkeypatch.context() as patches:
        failing = _Failing(patches, -1, ERRORS["the code raises"])
        twins = Twins(build)
        twins.calls_of(batch, 5)
        twins.close()
    assert failing.most > 50
    return failing.most


@pytest.mark.parametrize("error", ERRORS)
def test_a_capture_that_fails_at_any_operator(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    most = operators(monkeypatch)
    tried = range(0, most, 1 if error == "other operators" else 7)
    failed = 0
    for at in tried:
        with monkeypatch.context() as patches:
            failing = _Failing(patches, at, ERRORS[error])
            twins = Twins(build)
            twins.calls_of(batch, 5)
            twins.close()
        failed += failing.failed > 0
    assert failed == len(tried)


@pytest.mark.parametrize("what", ["a replay that differs", "a replay that raises"])
def test_a_verification_that_fails(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if what == "a replay that differs":
        monkeypatch.setattr(verification, "first_mismatch", lambda pairs: 0)
    else:
        monkeypatch.setattr(verification, "_same_state", _raising)
    twins = Twins(build)
    twins.calls_of(batch, 5)
    assert twins.replays == 0
    assert twins.refused is not None
    twins.close()


def _raising(one: Any, other: Any) -> bool:
    raise RuntimeError("on the way")


def test_memory_of_the_host_that_a_replay_would_not_write_is_noticed() -> None:
    """The twin's counters go on, whether or not the step replays."""
    twins = Twins(build)
    twins.calls_of(batch, 10)
    twins.close()


def between() -> World:
    """What it changes on the way it sets again, as scripts do: mode, flags, memory, items, attributes."""
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2))
    world = World(net=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), notes={"depth": 1}, rows=[1, 2])

    def look(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        net.eval()
        kept, first = net[0].weight.data, net[3]
        net[0].weight.data = kept * 0.5
        net[3] = net[3]
        for p in net.parameters():
            p.requires_grad_(False)
        world.notes["depth"] = 2
        world.optimizer.param_groups[0]["lr"] = 0.2
        world.rows.append(3)
        torch.set_grad_enabled(False)
        out = net(x) * 2 + y.sum()
        torch.set_grad_enabled(True)
        world.rows.pop()
        world.optimizer.param_groups[0]["lr"] = 0.1
        world.notes["depth"] = 1
        for p in net.parameters():
            p.requires_grad_(True)
        net[0].weight.data = kept
        net[3] = first
        net.train()
        return out.tanh()

    world.function = look
    return world


def test_a_run_that_ends_half_way_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = 0
    for at in range(12):
        with monkeypatch.context() as patches:
            failing = _Failing(patches, at, ERRORS["other operators"])
            twins = Twins(between)
            for _ in range(5):
                twins.call(batch)
                assert torch.is_grad_enabled()
                assert twins.world.net.training
                assert twins.world.optimizer.param_groups[0]["lr"] == 0.1
            twins.close()
        failed += failing.failed > 0
    assert failed > 5


def test_a_deque_is_put_back_as_a_list_is() -> None:
    queue, items = deque([1, 2], maxlen=3), [1, 2]
    kept = KeptState([{"queue": queue}], [items], [], [], [])
    queue.append(3)
    items.append(3)
    kept.put_back()
    assert (list(queue), queue.maxlen, items) == ([1, 2], 3, [1, 2])
