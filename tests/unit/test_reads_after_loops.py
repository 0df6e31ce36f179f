"""GR101 and its rewrite: the finding falls silent once the reads stand behind the loop, also beside device loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from grape.model import Finding
from grape.options import Options
from grape.rewrite import Rewritten
from grape.rewrite.registry import fix
from grape.sessions import Cell, Session

LOOPS = {
    "append": """
losses = []
for x in batches:
    h = torch.relu(x @ weight).sum(0)
    losses.append(h.mean().item())
""",
    "sum": """
total = 0.0
for x in batches:
    h = torch.relu(x @ weight).sum(0)
    total += h.mean().item() * 0.5
""",
    "comprehension": """
losses = [torch.relu(x @ weight).sum(0).mean().item() for x in batches]
""",
    "beside a loop that the device ends": """
losses = []
for x in batches:
    for _ in range(3):
        x = torch.relu(x @ weight)
        if x.sum() < 1:
            break
    losses.append(x.mean().item())
""",
}


pytestmark = pytest.mark.usefixtures("closed_engine")


def observed(source: str, path: Path) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    path.write_text(source)
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "__main__", "torch": torch}
    names["weight"] = torch.randn(8, 8)
    names["batches"] = [torch.randn(4, 8) for _ in range(6)]
    session = Session(options=Options(), cell=Cell(name=str(path), source=source, filename=str(path)), namespace=names)
    session.open()
    exec(compile(source, str(path), "exec"), names)
    session.close(None)
    assert session.report is not None
    return names, session.report.findings


@pytest.mark.parametrize("source", LOOPS.values(), ids=LOOPS.keys())
def test_the_finding_falls_silent_after_its_fix(source: str, tmp_path: Path) -> None:
    before, findings = observed(source, tmp_path / "before.py")
    (finding,) = (one for one in findings if one.code == "GR101")
    assert finding.severity == "costly"
    made = fix(source, finding)
    assert isinstance(made, Rewritten), made
    after, left = observed(made.source, tmp_path / "after.py")
    assert not [one for one in left if one.code == "GR101"]
    for name in ("losses", "total"):
        assert before.get(name) == after.get(name)


@pytest.mark.parametrize(
    "source",
    [
        "for _ in range(3):\n    kept = [x * 2 for x in batches]\n    values = [k.sum().item() for k in kept]\n",
        "kept = [x.sum() for x in batches]\nfor _ in range(3):\n    values = [k.item() for k in kept]\n",
        "values = []\nfor x in batches:\n    values.append(x.sum().item())\n",
    ],
)
def test_it_stays_where_something_is_launched_between_the_reads_or_the_loop_repeats(
    source: str, tmp_path: Path
) -> None:
    _, findings = observed(source, tmp_path / "cell.py")
    assert [one.code for one in findings if one.code == "GR101"] == ["GR101"]


def test_a_function_that_was_defined_again_is_traced_again(tmp_path: Path) -> None:
    """The same cell runs twice; what it calls reads a value in its first version only."""
    cell = "found = [f(x) for x in batches]\n"
    names: dict[str, Any] = {"__name__": "__main__", "torch": torch, "batches": [torch.randn(4) for _ in range(6)]}
    codes = []
    for version, result in enumerate(("x.sum().item()", "x * 2")):
        path = tmp_path / f"version{version}.py"
        path.write_text(f"def f(x):\n    return {result}\n")
        exec(compile(path.read_text(), str(path), "exec"), names)
        session = Session(options=Options(), cell=Cell(name="cell", source=cell, filename="cell"), namespace=names)
        session.open()
        exec(compile(cell, "cell", "exec"), names)
        session.close(None)
        assert session.report is not None
        codes.append({one.code for one in session.report.findings})
    assert "GR101" in codes[0] and "GR101" not in codes[1]
