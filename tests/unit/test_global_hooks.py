"""Hooks of all modules, whatever kind and whenever they come: every module runs them, so nothing is replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as _modules

from tests.property.programs import Twins, World

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("without_eager_calls_in_between")]

X, Y = torch.linspace(-1, 1, 12).view(3, 4), torch.linspace(0, 1, 6).view(3, 2)


def stepping() -> World:
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return World(net=net, optimizer=optimizer, function=step)


def batch(w: World) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (X, Y), {}


CALLS: list[str] = []


def _doubled(module: nn.Module, given: Any, came: Any = None) -> Any:
    CALLS.append(type(module).__name__)


REGISTER: dict[str, Callable[[], Any]] = {
    "forward": lambda: _modules.register_module_forward_hook(_doubled),
    "forward pre": lambda: _modules.register_module_forward_pre_hook(_doubled),
    "full backward": lambda: _modules.register_module_full_backward_hook(_doubled),
    "full backward pre": lambda: _modules.register_module_full_backward_pre_hook(_doubled),
}


@pytest.mark.parametrize("kind", REGISTER)
def test_a_hook_that_comes_after_the_capture(kind: str) -> None:
    twins = Twins(stepping)
    twins.warm(batch, limit=12)
    replays = twins.replays
    handle = REGISTER[kind]()
    try:
        for _ in range(3):
            CALLS.clear()
            twins.call(batch)
            assert CALLS
            assert len(CALLS) % 2 == 0
            assert CALLS[: len(CALLS) // 2] == CALLS[len(CALLS) // 2 :]
        assert twins.replays == replays
    finally:
        handle.remove()
    twins.calls_of(batch, 2)
    assert twins.replays == replays + 2
    twins.close()


@pytest.mark.parametrize("kind", REGISTER)
def test_a_hook_that_was_there_before(kind: str) -> None:
    handle = REGISTER[kind]()
    try:
        twins = Twins(stepping)
        twins.calls_of(batch, 8)
        assert twins.replays == 0
        twins.close()
    finally:
        handle.remove()


def test_a_hook_that_torch_does_not_know_of() -> None:
    twins = Twins(stepping)
    twins.warm(batch, limit=12)
    _modules._global_forward_hooks[-1] = _doubled
    try:
        replays = twins.replays
        twins.call(batch)
        assert twins.replays == replays
    finally:
        del _modules._global_forward_hooks[-1]
    twins.close()
