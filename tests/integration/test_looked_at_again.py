"""A cell whose graphs serve it is looked at again once they serve no call: the notebook changed what they depend on."""

from __future__ import annotations

from typing import Any

import pytest

from grape.model import CellTime
from grape.sessions.past.history import MOST_AGAIN, OUT_OF_DATE
from tests.integration.notebook import Notebook

SETUP = """
import torch
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
        self.scale = 1
    def forward(self, x):
        return torch.tanh(self.b(torch.relu(self.a(x)))) * self.scale
net = Net().eval()
xs = [torch.randn(4, 8) for _ in range(40)]
def step(x):
    return net(x) * 0.5 + x
"""
CELL = """%%grape
with torch.no_grad():
    for x in xs:
        y = step(x)
"""


@pytest.fixture(autouse=True)
def regions(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they leave is served by streams otherwise."""
    monkeypatch.setenv("GRAPE_ENGINE", "regions")


@pytest.fixture
def served(notebook: Notebook) -> Notebook:
    """A cell of it is served by graphs, and nothing is observed."""
    for _ in range(4):
        report = notebook.under_grape(CELL)
    assert _replays(report) == 40 and "its graphs serve it" in _note(report)
    return notebook


def _replays(report: dict[str, Any]) -> int:
    return max((region["replays"] for region in report["regions"]), default=0)


def _note(report: dict[str, Any]) -> str:
    return " ".join(report["cell"]["notes"])


def test_what_they_depend_on_changed_once(served: Notebook) -> None:
    served.run("net.scale = 3").raise_error()
    report = served.under_grape(CELL)
    assert _replays(report) == 0 and "no call of this run, so the next run is looked at" in _note(report)
    report = served.under_grape(CELL)
    assert _replays(report) > 20 and not _note(report)
    for _ in range(3):
        report = served.under_grape(CELL)
    assert _replays(report) == 40 and "its graphs serve it" in _note(report)


@pytest.fixture(params=[None, 0.1])
def times(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """So often a cell is looked at again whose looks take no longer than it, or make it ten times slower."""
    monkeypatch.setattr(CellTime, "ratio", request.param)
    return MOST_AGAIN if request.param is None else MOST_AGAIN // 2


def test_what_changes_again_and_again_is_left_alone(times: int, served: Notebook) -> None:
    notes = []
    for number in range(4 * MOST_AGAIN):
        served.run(f"net.scale = {number}").raise_error()
        notes.append(_note(served.under_grape(CELL)))
    assert sum("so the next run is looked at" in note for note in notes) == times
    assert f"it runs as written, for {OUT_OF_DATE}" in notes[-1]


def test_a_run_without_a_call_tells_nothing(served: Notebook) -> None:
    served.run("xs, kept = [], xs").raise_error()
    assert "its graphs serve it" in _note(served.under_grape(CELL))
    served.run("xs = kept").raise_error()
    report = served.under_grape(CELL)
    assert _replays(report) == 40 and "its graphs serve it" in _note(report)


def test_a_run_that_ends_in_an_error_tells_nothing(served: Notebook) -> None:
    served.run("net.scale, kept, xs = 3, xs, [torch.randn(4, 9)]").raise_error()
    served.run(CELL)
    served.run("net.scale, xs = 1, kept").raise_error()
    report = served.under_grape(CELL)
    assert _replays(report) == 40 and "its graphs serve it" in _note(report)
