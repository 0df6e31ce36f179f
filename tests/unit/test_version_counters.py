"""Version counters after a replay are those of eager code, so that what autograd has saved can be gone through.

`Twins` compares the counters of all tensors of both worlds, of results and arguments after each call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn

from tests.property.programs import Twins, World

pytestmark = pytest.mark.usefixtures("without_eager_calls_in_between")


def in_training() -> World:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())

    def look(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return net(x)

    return World(net=net, function=look)


def batch(w: World) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.linspace(-1, 1, 24).view(6, 4),), {}


def test_a_backward_that_waits_while_a_replay_moves_the_statistics_of_a_batch_norm() -> None:
    twins = Twins(in_training)
    twins.warm(batch)
    before = twins.replays
    x = torch.ones(3, 4) * torch.arange(3.0)[:, None]
    for _ in range(4):
        losses = [world.net(x).pow(2).sum() for world in (twins.eager, twins.world)]
        twins.call(batch)
        for loss in losses:
            loss.backward()
    assert twins.replays >= before + 3
    twins.close()


def _outside(w: World) -> Callable[..., Any]:
    w.state, w.view, w.many = torch.zeros(4), torch.zeros(4, 4), [torch.zeros(3), torch.zeros(2)]

    def function(x: torch.Tensor) -> torch.Tensor:
        w.state.mul_(0.5).add_(x.sum(0))
        w.view[1].copy_(w.state)
        torch._foreach_add_(w.many, 1.0)
        return x * w.state

    return function


def _argument(w: World) -> Callable[..., Any]:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.add_(1.0).mul_(0.5)
        return x.sum(0).relu_().tanh_()

    return function


def _views(w: World) -> Callable[..., Any]:
    def function(x: torch.Tensor) -> Any:
        y = (x * 2).add_(1.0)
        return y, y[1:], y.clone()

    return function


WRITING = {"tensors from outside": _outside, "an argument": _argument, "results": _views}


@pytest.mark.parametrize("name", WRITING)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_writes_count_as_in_eager_code(name: str, mode: Callable[[], Any]) -> None:
    def build() -> World:
        world = World()
        world.function = WRITING[name](world)
        return world

    twins = Twins(build)
    with mode():
        twins.warm(batch, limit=12)
        before = twins.replays
        twins.calls_of(batch, 3)
    assert twins.replays == before + 3
    twins.close()
