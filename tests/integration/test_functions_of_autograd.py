"""Operators inside of an `autograd.Function` run without gradients; what it returns has a graph all the same."""

from __future__ import annotations

import pytest
import torch._dynamo  # noqa: F401  (imported by torch's checkpointing; it wraps functions of torch for good)
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from grape.magics import load

SETUP = """\
import torch
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0)
class Wave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        for _ in range(6):
            x = x.sin() @ weight
        return x
    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight, x.t() @ gradient
class Waves(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(5))
    def forward(self, x):
        return Wave.apply(x, self.weight)
class Again(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(*[torch.nn.Linear(5, 5), torch.nn.Tanh()] * 3)
    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=True)
net = {kind}()
"""

LOOP = """\
for i in range(24):
    x = torch.full((4, 5), 0.1 * i).requires_grad_(True)
    y = net(x)
    loss = y.sum()
    loss.backward()
"""


@pytest.mark.parametrize("kind", ["Waves", "Again"])
@pytest.mark.parametrize("engine", ["auto", "regions", "streams"])
def test_a_module_that_is_one_function_of_autograd_trains_as_written(
    shell: InteractiveShell, kind: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAPE_REFERENCE", "1")
    found = []
    for magic in ("# as it is", f"%%grape --no-widget --engine {engine}"):
        if magic.startswith("%%"):
            load(shell)
        shell.run_cell(SETUP.replace("{kind}", kind)).raise_error()
        for _ in range(3):
            with capture_output():
                shell.run_cell(magic + "\n" + LOOP).raise_error()
            gradients = [p.grad.tolist() for p in shell.user_ns["net"].parameters()]
            found.append((shell.user_ns["x"].grad.tolist(), gradients))
    assert found[:3] == found[3:]


WALK = """\
for _ in range(12):
    y = net(torch.ones(2, 8))
    y.sum().backward()
    flat.zero_()
    seen.append(net.weight.grad.sum().item())
    {look}
"""
WALKED = """\
import torch
torch.manual_seed(0)
net, flat, seen = torch.nn.Linear(8, 8), torch.zeros(4), []
def first(y):
    return y.grad_fn.next_functions[0][0].variable is net.bias
"""


@pytest.mark.parametrize("look", ["seen.append(y.grad_fn.next_functions[0][0].variable is net.bias)", "first(y)"])
@pytest.mark.parametrize("engine", ["auto", "regions"])
def test_code_that_walks_through_a_consumed_graph_finds_parameters(
    shell: InteractiveShell, look: str, engine: str
) -> None:
    """A step that was looked at left a graph without the nodes of their gradients: `None` has no `variable`."""
    load(shell)
    found = []
    for magic in ("# as it is", f"%%grape --no-widget --engine {engine}"):
        with capture_output():
            shell.run_cell(WALKED).raise_error()
            for _ in range(2):
                shell.run_cell(f"{magic}\n{WALK.format(look=look)}").raise_error()
        found.append(shell.user_ns["seen"])
    assert found[0] == found[1] and len(found[0]) >= 24
