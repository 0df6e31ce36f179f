"""Where Grape fails in the middle of a cell, the cell goes on, and its report says so."""

from __future__ import annotations

from typing import Any

import pytest

import grape
from grape.failures import HOW
from grape.outlining.outliner import Outliner
from grape.outlining.parts import RegionPart
from grape.outlining.run import Run
from grape.runtime.capture import attempt
from grape.sessions import seen
from grape.sessions.engine import Engine
from tests.integration.notebook import Notebook

SETUP = "import torch\nx = torch.ones(3)\n"
CELL = "%%grape --engine regions\nx = torch.ones(3)\nfor i in range(9):\n    y = x.sin() * 2\n    x = y + 1\n"
STEPS = "%%grape --engine regions\nwith torch.no_grad():\n    for i in range(40):\n        step(x)\n"

PLACES: dict[str, tuple[Any, str]] = {
    "_make": (RegionPart, "it made a region of a loop's statements"),
    "arm": (Run, "it looked at a loop"),
    "compile": (Outliner, "it outlined the loops of a cell"),
    "settle_calls": (Engine, "it compared the times of replays and calls as written"),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_failure_is_told_and_the_cell_goes_on(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    owner, doing = PLACES[name]
    notebook.run(CELL.partition("\n")[2]).raise_error()
    expected = notebook["x"]

    def fail(*_: Any, **__: Any) -> Any:
        raise KeyError("no such row")

    monkeypatch.setattr(owner, name, fail)
    report = notebook.under_grape(CELL)
    assert notebook["x"].equal(expected)
    (note,) = [note for note in report["cell"]["notes"] if "Grape failed" in note]
    assert doing in note and "KeyError: 'no such row'" in note and note.endswith(HOW)
    assert "in fail" in caplog.text
    monkeypatch.undo()
    assert not any("Grape failed" in note for note in notebook.under_grape(CELL)["cell"]["notes"])


def test_a_capture_that_fails_is_a_finding_that_says_how_to_see_more(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise KeyError("no such row")

    monkeypatch.setattr(attempt, "judge", fail)
    notebook.run("def step(x):\n    return (x.sin() + 1).tanh() * 2\n")
    report = notebook.under_grape(STEPS)
    (note,) = [note for note in report["cell"]["notes"] if "Grape failed" in note]
    assert note.startswith("Grape failed while it captured a call (KeyError: 'no such row')")
    (region,) = report["regions"]
    assert (region["outcome"], region["reason"]) == ("refused", "GR405")
    (finding,) = [one for one in report["findings"] if one["code"] == "GR405"]
    assert finding["message"].startswith("`step` stays eager: Grape failed while it captured this")
    assert f"it runs as written; {HOW}" in grape.last.to_text(width=400)


def test_without_a_report_the_line_says_how_to_see_more(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise KeyError("no such row")

    monkeypatch.setattr(seen, "advise", fail)
    notebook.run(CELL).raise_error()
    assert f"Grape: no report, the cell itself is not affected: KeyError: 'no such row'; {HOW}" in notebook.said
