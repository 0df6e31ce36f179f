"""`grape.graph` in a notebook whose cells ran under `%%grape` before."""

from __future__ import annotations

import pytest
from IPython.core.interactiveshell import InteractiveShell

from grape.magics import load

SETUP = """\
import torch, grape
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8), torch.nn.Tanh()).eval()
def step(x):
    return net(x) * 0.5 + x
batches = [torch.randn(size, 8) for size in (3, 7, 5)]
with torch.no_grad():
    expected = [step(batch) for batch in batches]
"""
CELL = "%%grape\nwith torch.no_grad():\n    for batch in batches * 4:\n        out = {}(batch)"
LATER = """\
with torch.no_grad():
    for _ in range(6):
        assert all(map(torch.equal, map(fast, batches), expected))
"""
GRAPHED = """\
fast = grape.graph({}, memory_budget="1GB")
with torch.no_grad():
    wanted = [{}(batch) for batch in batches]
    for _ in range(6):
        assert all(map(torch.equal, map(fast, batches), wanted))
told = fast.evidence()
fast.release()
"""


@pytest.mark.parametrize("of", ["net", "step"])
@pytest.mark.parametrize("applied", ["net", "step"])
def test_what_a_cell_replays_is_graphed_once_more(shell: InteractiveShell, applied: str, of: str) -> None:
    load(shell)
    assert shell.run_cell(SETUP).success
    assert shell.run_cell(CELL.format(applied)).success and shell.run_cell(CELL.format(applied)).success
    assert shell.run_cell(GRAPHED.format(of, of)).success
    told = shell.user_ns["told"]
    assert told.refused is None and told.replays > 0
    assert shell.run_cell(CELL.format(applied)).success
    import grape

    assert grape.last is not None and any(region["replays"] for region in grape.last.to_dict()["regions"])


def test_a_graphed_function_that_is_called_first_in_an_observed_cell_is_captured_later(shell: InteractiveShell) -> None:
    """The cell's own regions serve what is inside meanwhile."""
    load(shell)
    assert shell.run_cell(SETUP).success
    assert shell.run_cell('fast = grape.graph(step, memory_budget="1GB")').success
    for _ in range(2):
        assert shell.run_cell(CELL.format("fast")).success
    told = shell.user_ns["fast"].evidence()
    assert told.refused is None and told.replays == 0
    import grape

    assert grape.last is not None and any(region["replays"] for region in grape.last.to_dict()["regions"])
    assert shell.run_cell(LATER).success
    told = shell.user_ns["fast"].evidence()
    assert told.refused is None and told.replays > 0
    assert shell.run_cell(CELL.format("fast")).success
    again = shell.user_ns["fast"].evidence()
    assert again.refused is None and again.replays > told.replays
    shell.user_ns["fast"].release()
