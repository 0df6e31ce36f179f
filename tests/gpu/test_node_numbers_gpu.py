"""On a GPU autograd numbers the nodes of backward passes in a thread of its own: their sums keep their order."""

from __future__ import annotations

import threading

import pytest
import torch._dynamo  # noqa: F401 - optimizers import it, and it wraps functions of torch for good
from IPython.core.interactiveshell import InteractiveShell
from torch import Tensor

import grape
from benchmarks._numbering import DEVICE, lead, level
from grape.magics import load, unload
from grape.runtime.replaying.node_numbers import advance, in_backward, is_supported, numbered
from grape.sessions import close_engine

SETUP = """
import torch
import torch._dynamo  # optimizers import it, and it wraps functions of torch for good
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(),
                          torch.nn.Linear(64, 4)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
data = torch.randn(64, 4, device="cuda")
"""
FIRST_ORDER = """
for _ in range(400):
    optimizer.zero_grad()
    loss = (net(data) - data).square().mean()
    loss.backward()
    optimizer.step()
"""
SECOND_ORDER = """
for step in range(120):
    optimizer.zero_grad()
    points = data.clone().requires_grad_()
    out = net(points)
    slope = torch.autograd.grad(out, points, torch.ones_like(out), create_graph=True)[0]
    bend = torch.autograd.grad(slope, points, torch.ones_like(slope), create_graph=True)[0]
    loss = 0.01 * (bend + 3 * slope + 5 * out).square().mean() + (net(data) - data).square().mean()
    loss.backward()
    optimizer.step()
"""


def test_numbers_of_the_thread_of_backward_passes() -> None:
    assert is_supported()
    assert in_backward(DEVICE, threading.get_ident) not in (None, threading.get_ident())
    before, mine = in_backward(DEVICE, numbered), numbered()
    in_backward(DEVICE, lambda: advance(17))
    assert in_backward(DEVICE, numbered) == (before or 0) + 17
    assert numbered() == mine + 2


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


@pytest.mark.parametrize("engine", ["regions", "streams"])
@pytest.mark.parametrize("cells", [(FIRST_ORDER,), (SECOND_ORDER,), (FIRST_ORDER, SECOND_ORDER) * 2])
def test_threads_are_as_far_apart_as_after_plain_cells(cells: tuple[str, ...], engine: str) -> None:
    def states(head: str) -> tuple[int, dict[str, Tensor]]:
        shell.run_cell(SETUP).raise_error()
        level()
        before = lead()
        is_supported.cache_clear()
        for cell in cells:
            shell.run_cell(head + cell).raise_error()
        return lead() - before, {name: one.clone() for name, one in shell.user_ns["net"].state_dict().items()}

    shell = InteractiveShell.instance()
    load(shell)
    try:
        apart, expected = states("")
        assert all(weight.isfinite().all() for weight in expected.values())
        again, weights = states("")
        assert again == apart and equal(weights, expected), "the program does not repeat itself"
        replays = 0
        for _ in range(3):
            found, weights = states(f"%%grape --no-widget --engine {engine}\n")
            assert found == apart
            assert equal(weights, expected)
            assert grape.last is not None
            replays += sum(one["replays"] for one in grape.last.to_dict()["regions"])
        if cells == (FIRST_ORDER,) and engine == "regions":
            assert replays > 100
    finally:
        unload(shell)
        close_engine()
