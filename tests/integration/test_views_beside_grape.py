"""Views of which torch will not say how they were made: a plain cell may hold them, and so may one under `%%grape`."""

from __future__ import annotations

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import grape
from grape.magics import load

SETUP = """\
import torch
torch.manual_seed(0)
layer, data = torch.nn.Linear(5, 6), torch.ones(7, 5)
"""

CELLS = {
    "made without gradients, kept by the loop": """\
for i in range(12):
    y = layer(data).tanh()
    y.sum().backward()
    with torch.no_grad():
        v = y.view(-1)
    y.mul_(2)
""",
    "one of several": """\
for i in range(12):
    y = layer(data) * 1.0
    first, second = y.chunk(2, 1)
    (first.sum() * second.sum()).backward()
    y.mul_(2)
""",
    "an argument, without gradients": """\
y = layer(data) * 1.0
with torch.no_grad():
    v = y.view(-1)
y.mul_(2)
def f(x, unused):
    for _ in range(8):
        x = x.sin() * 2
    return x
with torch.no_grad():
    y = data
    for i in range(12):
        y = f(y, v)
""",
}


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("engine", ["auto", "regions", "streams"])
def test_a_view_that_autograd_forbids_is_only_held(shell: InteractiveShell, name: str, engine: str) -> None:
    found = []
    for magic in ("# as it is", f"%%grape --no-widget --engine {engine}"):
        if magic.startswith("%%"):
            load(shell)
        shell.run_cell(SETUP).raise_error()
        for _ in range(3):
            with capture_output():
                shell.run_cell(magic + "\n" + CELLS[name]).raise_error()
            found.append(shell.user_ns["y"].sum().item())
    assert found[:3] == found[3:]


def test_the_report_says_which_view_keeps_a_call_eager(shell: InteractiveShell) -> None:
    load(shell)
    shell.run_cell(SETUP).raise_error()
    with capture_output():
        shell.run_cell("%%grape --engine regions\n" + CELLS["made without gradients, kept by the loop"]).raise_error()
    assert grape.last is not None
    said = [finding.message for finding in grape.last.findings]
    assert any("what it views was changed in place since" in one for one in said)
    assert not any("need gradients" in one for one in said)
