"""Attention that drops out under a stream: its backward pass draws again what the forward pass drew, in graphs too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from grape.streams import Settings
from tests.property.stream_programs import needs_compiler
from tests.unit.test_streams_same_tensors import ONE, THREE, TWO, Given, attention

from .test_streams_gpu import agrees, the_same_kernels_each_time

__all__ = ["the_same_kernels_each_time"]

pytestmark = [needs_compiler, pytest.mark.filterwarnings("ignore")]

SETTINGS = Settings(device="cuda", settled=0, patience=0, price=0, doubt=0)
KINDS = {
    "efficient": (SDPBackend.EFFICIENT_ATTENTION, torch.float32),
    "efficient, half precision": (SDPBackend.EFFICIENT_ATTENTION, torch.float16),
    "flash": (SDPBackend.FLASH_ATTENTION, torch.float16),
    "cudnn": (SDPBackend.CUDNN_ATTENTION, torch.bfloat16),
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).view(*x.shape[:2], 3, 2, 32).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.25, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(x.shape))


def training(kind: str, step: Callable[[nn.Module, Tensor, int], Tensor], steps: int = 30) -> Callable[[], list[Any]]:
    backend, dtype = KINDS[kind]

    def loop() -> list[Any]:
        torch.manual_seed(0)
        net = nn.Sequential(Block(), Block()).cuda().to(dtype)
        optimizer = torch.optim.SGD(net.parameters(), 1e-2)
        x, losses = torch.randn(4, 16, 64, device="cuda", dtype=dtype), []
        with sdpa_kernel(backend):
            for i in range(steps):
                optimizer.zero_grad()
                loss = step(net, x, i)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach().clone())
        return [losses, list(net.parameters()), torch.cuda.get_rng_state()]

    return loop


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_in_training(kind: str) -> None:
    evidence = agrees(training(kind, lambda net, x, i: net(x).float().square().mean()), SETTINGS)
    print(kind, evidence)
    assert evidence.matched > 0.7 * evidence.seen
    assert evidence.launched > 15
    assert not evidence.uncaptured
    if kind != "cudnn":
        assert "random numbers" not in evidence.written


@pytest.mark.parametrize("kind", ["efficient", "flash"])
def test_a_pass_backward_of_what_was_recomputed(kind: str) -> None:
    def step(net: nn.Module, x: Tensor, i: int) -> Tensor:
        y = x.clone().requires_grad_()
        for block in net.children():
            y = checkpoint(block, y, use_reentrant=False)
        return y.float().square().mean()

    agrees(training(kind, step), SETTINGS)


@pytest.mark.parametrize("kind", ["efficient", "flash"])
def test_a_pass_backward_that_comes_late_or_twice(kind: str) -> None:
    """The numbers of one forward pass, behind those of others; and a pass that runs as written, for it diverges."""

    def step(net: nn.Module, x: Tensor, i: int) -> Tensor:
        first, second = net(x).float().square().mean(), net(x * 2).float().square().mean()
        if i % 7 == 3:
            torch.rand(3, device="cuda")
        if i % 5 == 4:
            first.backward(retain_graph=True)
            first = torch.tanh(first)
        return first + second if i % 3 else second + first * 2

    agrees(training(kind, step, steps=60), SETTINGS)


def test_what_the_backward_pass_is_told() -> None:
    """The two numbers themselves, which whoever calls the operator may read."""

    def loop() -> list[Any]:
        torch.manual_seed(5)
        q, told = torch.randn(1, 2, 8, 16, device="cuda"), []
        for _ in range(40):
            out, _, seed, offset = torch.ops.aten._scaled_dot_product_efficient_attention(q, q, q, None, True, 0.5)
            told += [seed.item(), offset.item(), out.sum()]
        return told

    agrees(loop, SETTINGS)


@pytest.mark.parametrize("given", [(ONE,), (TWO,), (THREE,), (ONE, THREE), (ONE, TWO, THREE)], ids=len)
def test_attention_of_one_tensor_or_of_several_over_the_same_memory(given: tuple[Given, ...]) -> None:
    agrees(attention(*given, on="cuda"), SETTINGS)


def test_attention_of_one_tensor_is_deferred_and_keeps_its_way_of_computing() -> None:
    evidence = agrees(attention(ONE, on="cuda"), SETTINGS)
    assert evidence.matched > 0.7 * evidence.seen


def test_another_tensor_over_the_same_memory_does_not_match() -> None:
    loops = attention(ONE, on="cuda"), attention(THREE, on="cuda")
    assert agrees(lambda: [loop() for loop in (*loops, *loops)], SETTINGS).diverged > 0
