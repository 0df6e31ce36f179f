"""While the person's code runs, no exception of Grape's is being handled: contexts of errors are his own."""

from __future__ import annotations

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from grape.magics import load

SETUP = """\
import sys
import torch
torch.manual_seed(0)
class Named(torch.Tensor):
    pass
class Net(torch.nn.Linear):
    def forward(self, x):
        seen.append(sys.exception())
        return torch.tanh(super().forward(x))
def probe(x):
    seen.append(sys.exception())
    return x
net, x, seen = Net(8, 8), torch.randn(2, 8), []
"""
FAILS = "        if i == 25:\n            x = x @ torch.ones(3, 3)\n"
CELLS = {
    "arguments that cannot be guarded": f"""\
x = x.as_subclass(Named)
with torch.no_grad():
    for i in range(30):
        x = net(x) * 0.3
{FAILS}""",
    "a name of a loop that is not bound yet": f"""\
with torch.no_grad():
    for i in range(30):
        h = net(x) * 0.5
        if i > 20:
            carry = h.clone()
        probe(x)
        x = h + x * 0.1
        x = x + (carry if i > 20 else 0)
{FAILS}""",
}


@pytest.mark.parametrize("name", CELLS)
def test_no_exception_of_grapes_is_handled(shell: InteractiveShell, name: str) -> None:
    load(shell)
    with capture_output():
        shell.run_cell(SETUP)
        error = shell.run_cell(f"%%grape --no-widget --engine regions\n{CELLS[name]}").error_in_exec
    assert isinstance(error, RuntimeError) and error.__context__ is None
    assert len(shell.user_ns["seen"]) >= 26 and set(shell.user_ns["seen"]) == {None}
