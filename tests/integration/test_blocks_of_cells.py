"""Cells with blocks, modes and transforms of torch's own leave what they leave without Grape, and torch as it was."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch._dynamo  # it wraps functions of torch for good
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from grape.magics import load

SETUP = """\
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
log = []
"""

INFERENCE = {
    "toggled": """\
for i in range(40):
    with torch.inference_mode(bool(i % 2)):
        log.append(net(torch.randn(2, 8)).sum().item())
""",
    "trained inside": """\
@torch.inference_mode(False)
def finetune(x):
    net.zero_grad()
    loss = net(x.clone()).pow(2).mean()
    loss.backward()
    return loss.item()
with torch.inference_mode():
    for i in range(40):
        log.append(net(torch.randn(4, 8)).sum().item())
        if i % 3 == 0:
            log.append(finetune(torch.randn(4, 8)))
""",
    "the guard itself": """\
for i in range(40):
    with torch._C._InferenceMode(False):
        log.append(net(torch.randn(2, 8)).sum().item())
""",
}


def ran(shell: InteractiveShell, setup: str, cell: str) -> tuple[list[Any], list[str]]:
    """What the cell logged, and the warnings that it showed. Afterwards torch works."""
    with capture_output():
        assert shell.run_cell(SETUP + setup).success
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert shell.run_cell(cell).success
        torch.randn(2)
        assert not torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.Python)
    return shell.user_ns["log"], [str(warning.message) for warning in caught]


def is_as_plain(shell: InteractiveShell, cell: str, setup: str = "") -> None:
    load(shell)
    plain = ran(shell, setup, cell)
    for options in ("", " --engine regions"):
        assert [ran(shell, setup, f"%%grape --no-widget{options}\n{cell}") for _ in range(2)] == [plain, plain]


@pytest.mark.parametrize("name", INFERENCE)
def test_torch_works_behind_inference_mode(shell: InteractiveShell, name: str) -> None:
    is_as_plain(shell, INFERENCE[name])
