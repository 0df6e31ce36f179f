"""No mode of Grape's is left on the stack by a cell, wherever looking had its end."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo.mutation_guard
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from grape.magics import load

torch._dynamo.mutation_guard.install_generation_tagging_init()  # the first optimizer's step may do it, for good

CELL = """\
import torch
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
optimizers = {p: torch.optim.AdamW([p], lr=1e-3, foreach=False) for p in net.parameters()}
def hook(p):
    optimizers[p].step()
    optimizers[p].zero_grad()
for p in net.parameters():
    p.register_post_accumulate_grad_hook(hook)
data = torch.ones(40, 8)
"""

LOOP = """\
for _ in range(2):
    for batch in data.split(5):
        loss = net(batch).square().mean()
        loss.backward()
"""


@pytest.mark.parametrize("engine", ["auto", "regions"])
def test_a_call_that_ends_the_recording_from_a_hook_of_a_backward_leaves_no_mode(
    shell: InteractiveShell, engine: str
) -> None:
    load(shell)
    shell.run_cell(CELL).raise_error()
    for _ in range(3):
        with capture_output():
            shell.run_cell(f"%%grape --no-widget --engine {engine}\n{LOOP}").raise_error()
        assert not torch._C._len_torch_function_stack() and not torch._C._len_torch_dispatch_stack()
