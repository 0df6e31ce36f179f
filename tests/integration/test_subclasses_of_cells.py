"""Subclasses of tensors that a cell makes by calling them, while Grape's dispatch mode is on the stack."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from grape.magics import load

SETUP = """\
import torch
class Sub(torch.Tensor): pass
class Below(Sub): pass
class Tagged(torch.Tensor):
    @staticmethod
    def __new__(cls, data, tag=None): return super().__new__(cls, data)
    def __init__(self, data, tag=None): super().__init__(); self.tag = tag
class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, data): return torch.as_tensor(data).as_subclass(cls)
def made(i): return Sub([1.0, float(i)]) * 2
"""
MADE = {
    "called": "Sub([1.0, float(i)])",
    "of a tensor": "Sub(torch.ones(2) * i)",
    "below a subclass": "Below([float(i)])",
    "with a __new__ of its own": "Tagged([1.0, float(i)], tag=i)",
    "with one that calls no other": "Wrapped([1.0, float(i)])",
    "in a function": "made(i)",
}
OWN = {"Sub": False, "Below": False, "Tagged": True, "Wrapped": True}


def ran(shell: InteractiveShell, cell: str) -> Any:
    with capture_output():
        assert shell.run_cell(SETUP).success
        assert shell.run_cell(cell).success
    assert {name: "__new__" in vars(shell.user_ns[name]) for name in OWN} == OWN
    return shell.user_ns["log"]


@pytest.mark.parametrize("name", MADE)
def test_they_are_made_as_in_plain_cells(shell: InteractiveShell, name: str) -> None:
    """Below any mode torch makes a tensor with an object first, and raises as it makes one of the subclass for it."""
    cell = f"""\
log = []
for i in range(12):
    one = {MADE[name]}
    log.append((type(one).__name__, type(one * 2).__name__, (one * 2).tolist(), getattr(one, "tag", None)))
"""
    load(shell)
    plain = ran(shell, cell)
    for options in ("", " --engine regions"):
        assert [ran(shell, f"%%grape --no-widget{options}\n{cell}") for _ in range(2)] == [plain, plain]


def test_their_errors_show_no_frames_of_grapes(shell: InteractiveShell) -> None:
    load(shell)
    with capture_output():
        assert shell.run_cell(SETUP).success
        error = shell.run_cell("%%grape --no-widget --engine regions\nSub('a', 'b')").error_in_exec
    assert isinstance(error, TypeError)
    assert [frame.filename for frame in traceback.extract_tb(error.__traceback__) if "/grape/" in frame.filename] == []


TOLD = """\
import torch
from torch import nn
class Told(torch.Tensor):
    log = []
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.log.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4).as_subclass(Told))
    def forward(self, x): return self.linear(x) * self.scale
torch.manual_seed(0)
net, w, x, told = Net(), torch.randn(4, 4), torch.randn(3, 4), torch.ones(4, 4).as_subclass(Told)
def made(x): return [x * 2, {"a": (x @ w).as_subclass(Told)}]
"""
TELLING = """\
Told.log.clear()
for i in range(30):
    y = torch.tanh(told @ x.t()) + 1
    z = made(x)
    loss = net(x).sum()
    loss.backward()
log = list(Told.log)
"""


def test_they_are_told_of_no_more_than_in_plain_cells(shell: InteractiveShell) -> None:
    """A class that counts, prints or raises in its `__torch_function__` is not told of what Grape reads."""
    load(shell)
    logs: list[list[str]] = []
    with capture_output():
        for magic in ("", "%%grape --no-widget --engine regions\n", "%%grape --no-widget --engine streams\n"):
            assert shell.run_cell(TOLD).success
            for _ in range(2):
                assert shell.run_cell(magic + TELLING).success
                logs.append(shell.user_ns["log"])
    assert logs[0] and all(log == logs[0] for log in logs)
