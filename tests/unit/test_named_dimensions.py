"""Until torch 2.12 dimensions can have names, which code can read: they are part of what a replay needs unchanged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good  # noqa: F401
from IPython.core.interactiveshell import InteractiveShell

import grape
from grape.magics import load, unload
from grape.runtime.guarding.structure import HAS_NAMES
from grape.sessions import close_engine

pytestmark = pytest.mark.skipif(not HAS_NAMES, reason="this version of torch gives dimensions no names")

SETUP = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(8, 8)
net.register_buffer("extra", torch.ones(3, 3))
x, other = torch.ones(2, 8), torch.ones(2, 8)
def of_argument(x):
    return torch.tanh(net(x.rename(None)) + 1) * (2 if x.names[0] else 1)
def of_other(x):
    return torch.tanh(net(x) + 1) * (2 if other.names[0] else 1)
def of_buffer(x):
    return torch.tanh(net(x) + 1) * (2 if net.extra.names[0] else 1)
"""
HOT = "with torch.no_grad():\n    for _ in range(24):\n        y = {}(x)\n"


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    shell = InteractiveShell.instance()
    load(shell)
    shell.run_cell(SETUP).raise_error()
    yield shell
    unload(shell)
    close_engine()


@pytest.mark.filterwarnings("ignore:Named tensors")
@pytest.mark.parametrize(
    ("function", "tensor"), [("of_argument", "x"), ("of_other", "other"), ("of_buffer", "net.extra")]
)
def test_a_tensor_that_is_given_names_later(function: str, tensor: str, shell: InteractiveShell) -> None:
    hot = HOT.format(function)
    shell.run_cell(hot).raise_error()
    plain, replays = shell.user_ns["y"], 0
    for _ in range(3):
        shell.run_cell(f"%%grape --no-widget\n{hot}").raise_error()
        assert grape.last is not None and shell.user_ns["y"].equal(plain)
        replays += sum(region["replays"] for region in grape.last.to_dict()["regions"])
    assert replays > 0
    shell.run_cell(f"{tensor}.rename_('N', 'C')").raise_error()
    for _ in range(2):
        shell.run_cell(hot).raise_error()  # graphs stay applied
        assert shell.user_ns["y"].rename(None).equal(plain * 2)
