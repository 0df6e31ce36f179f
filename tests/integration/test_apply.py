"""`grape apply`: rewrites on disk, the results of both notebooks, and everything that must stop it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from grape.cli.entry import main
from grape.rewrite import Rewritten
from grape.rewrite.registry import fix
from tests.unit.rewrite_cases import finding

pytestmark = pytest.mark.usefixtures("forked_kernels")

SETUP = """\
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).eval()
batches = [torch.randn(5, 4) for _ in range(12)]
labels = [torch.randint(0, 3, (5,)) for _ in range(12)]
"""
TRAIN = """\
losses, correct = [], 0
# one pass over the data
with torch.no_grad():
    losses = []
    for x, y in zip(batches, labels):
        logits = model(x)
        logits[logits > 0.5] = 0.5
        losses.append(torch.nn.functional.cross_entropy(logits, y).item())
        correct += (logits.argmax(-1) == y).sum().item()
"""
COLLECT = """\
features = torch.zeros(0, 3)
with torch.no_grad():
    for x in batches:
        features = torch.cat([features, model(x)], dim=0)
"""
SHELL = "!echo untouched\n%timeit -n1 -r1 1 + 1"
RESULT = "print([value.hex() for value in losses], correct, features.double().sum().item().hex())"


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}, "mine": {"a": 1}}
    cells = [
        nbformat.v4.new_markdown_cell("# Evaluation"),
        nbformat.v4.new_code_cell(SETUP.rstrip()),
        nbformat.v4.new_code_cell(TRAIN.rstrip(), metadata={"tags": ["keep"]}),
        nbformat.v4.new_code_cell(COLLECT.rstrip()),
        nbformat.v4.new_code_cell(SHELL),
        nbformat.v4.new_code_cell("for x in", metadata={"tags": ["skip-execution"]}),
        nbformat.v4.new_code_cell(RESULT),
    ]
    path = tmp_path / "work.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), path)
    return path


@pytest.mark.slow
def test_a_notebook_is_run_rewritten_and_computes_the_same(notebook: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = notebook.read_bytes()
    assert main(["apply", str(notebook), "--cell", "2", "--cell", "3"]) == 0, capsys.readouterr()
    said = capsys.readouterr().out
    assert "cell 2: GR101 host-sync (In[2], line 9)" in said and "2 cells rewritten" in said
    assert notebook.read_bytes() == before

    copied = notebook.with_name("work.grape.ipynb")
    old, new = json.loads(before), json.loads(copied.read_text())
    sources = ["".join(cell["source"]) for cell in new["cells"]]
    assert "losses.append(torch.nn.functional.cross_entropy(logits, y).detach().clone())" in sources[2]
    assert "    correct_parts.append((logits.argmax(-1) == y).sum().detach().clone())" in sources[2].replace(
        "    ", "", 1
    )
    assert "features_parts.append(model(x).clone())" in sources[3]
    for one, other in zip(old["cells"], new["cells"], strict=True):
        assert {**one, "source": other["source"]} == other
    assert {**old, "cells": new["cells"]} == new
    assert [sources[i] for i in (0, 1, 4, 5, 6)] == ["".join(old["cells"][i]["source"]) for i in (0, 1, 4, 5, 6)]
    nbformat.validate(nbformat.read(copied, as_version=4))
    assert _printed(copied) == _printed(notebook)


def _printed(path: Path) -> str:
    notebook = nbformat.read(path, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if "skip-execution" not in cell.metadata.get("tags", [])]
    NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}).execute()
    return "".join(output.text for output in notebook.cells[-1].outputs)


Report = Callable[..., Path]


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """A report as `grape run --json` writes it, with the fixes of the given findings."""

    def write(*about: tuple[str, str, int], verified: bool = True, file: str = "In[2]", **evidence: Any) -> Path:
        findings = []
        for number, (source, code, line) in enumerate(about, start=1):
            one = finding(code, line, file=file, **evidence)
            made = fix(source, one)
            assert isinstance(made, Rewritten), made
            offered = {"id": number, "diff": made.diff, "verified": verified}
            findings.append({**one.to_dict(), "fix": offered})
        findings.append({**finding("GR406", 1).to_dict(), "fix": None})
        path = tmp_path / "report.json"
        path.write_text(json.dumps({"version": 1, "findings": findings}))
        return path

    return write


def test_fixes_of_a_report_are_combined(notebook: Path, report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    source = f"%%grape --profile\n{TRAIN}"
    path = report((source, "GR101", 9), (source, "GR401", 8), (source, "GR101", 10))
    out = notebook.with_name("out.ipynb")
    assert main(["apply", str(notebook), "--report", str(path), "-o", str(out)]) == 0, capsys.readouterr()
    lines = json.loads(out.read_text())["cells"][2]["source"]
    text = "".join(lines)
    assert "%%grape" not in text
    assert "logits.masked_fill_(logits > 0.5, 0.5)" in text
    assert "correct_parts = []" in text and "losses[:] = " in text
    compile(text, "cell", "exec")


def test_a_magic_line_of_the_cell_stays(notebook: Path, report: Report) -> None:
    raw = json.loads(notebook.read_text())
    raw["cells"][2]["source"] = f"%%grape -o mine\n{TRAIN}".rstrip()
    notebook.write_text(json.dumps(raw))
    out = notebook.with_name("out.ipynb")
    path = report((f"%%grape --profile\n{TRAIN}", "GR101", 9))
    assert main(["apply", str(notebook), "--report", str(path), "-o", str(out)]) == 0
    source = json.loads(out.read_text())["cells"][2]["source"]
    assert isinstance(source, str) and source.startswith("%%grape -o mine\nlosses, correct")


def test_only_what_was_accepted(notebook: Path, report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    path = report((TRAIN, "GR101", 8), (TRAIN, "GR401", 7), verified=False)
    out = notebook.with_name("out.ipynb")
    words = ["apply", str(notebook), "--report", str(path), "-o", str(out)]
    assert main(words) == 0
    assert "nothing to apply to work.ipynb; 2 not verified, take them with --unverified" in capsys.readouterr().out
    assert not out.exists()
    assert main([*words, "--unverified", "--code", "GR401"]) == 0
    text = "".join(json.loads(out.read_text())["cells"][2]["source"])
    assert "masked_fill_" in text and "losses.append(torch.nn.functional.cross_entropy(logits, y).item())" in text


def _refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(words)
    return code, capsys.readouterr().err


def test_an_edited_cell_stops_everything(notebook: Path, report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    path = report((TRAIN, "GR101", 8))
    raw = json.loads(notebook.read_text())
    raw["cells"][2]["source"][0] = "losses, correct = [], 1\n"
    notebook.write_text(json.dumps(raw))
    code, said = _refused(["apply", str(notebook), "--report", str(path)], capsys)
    assert code == 4
    assert said.startswith("grape: the cell of GR101 (In[2], line 8) was edited since the report")
    assert [file.name for file in notebook.parent.glob("*.ipynb")] == ["work.ipynb"]


def test_two_equal_cells_stop_everything(notebook: Path, report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    path = report((TRAIN, "GR101", 8))
    raw = json.loads(notebook.read_text())
    raw["cells"].append({**copy.deepcopy(raw["cells"][2]), "id": "other"})
    notebook.write_text(json.dumps(raw))
    code, said = _refused(["apply", str(notebook), "--report", str(path)], capsys)
    assert (code, said) == (4, "grape: cells 2 and 7 of work.ipynb are the same; change one of them first\n")


@pytest.mark.parametrize("picked", ["by number", "by magic"])
def test_two_equal_cells_stop_it_before_anything_runs(
    notebook: Path, picked: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = json.loads(notebook.read_text())
    raw["cells"].append({**copy.deepcopy(raw["cells"][2]), "id": "other"})
    if picked == "by magic":
        raw["cells"][-1]["source"].insert(0, "%%grape\n")
    notebook.write_text(json.dumps(raw))
    monkeypatch.setattr("grape.cli.run.run", lambda arguments: pytest.fail("the notebook ran"))
    code, said = _refused(["apply", str(notebook), *(["--cell", "2"] if picked == "by number" else [])], capsys)
    assert (code, said) == (4, "grape: cells 2 and 7 of work.ipynb are the same; change one of them first\n")


def test_an_old_format_stops_it_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "old.ipynb"
    cell = {"cell_type": "code", "input": "x = 1", "language": "python", "metadata": {}, "outputs": []}
    sheets = [{"cells": [cell], "metadata": {}}]
    path.write_text(json.dumps({"nbformat": 3, "nbformat_minor": 0, "metadata": {"name": ""}, "worksheets": sheets}))
    monkeypatch.setattr("grape.cli.run.run", lambda arguments: pytest.fail("the notebook ran"))
    code, said = _refused(["apply", str(path)], capsys)
    assert code == 2
    assert "has notebook format 3; convert it first" in said


def test_a_diff_that_this_version_would_not_make(
    notebook: Path, report: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    path = report((TRAIN, "GR101", 8))
    path.write_text(path.read_text().replace("detach().clone()", "detach()"))
    code, said = _refused(["apply", str(notebook), "--report", str(path)], capsys)
    assert code == 4 and "this version of Grape would not make the rewrite" in said


def test_nothing_is_overwritten(notebook: Path, report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    path = report((TRAIN, "GR101", 8))
    before = notebook.read_bytes()
    for target in (notebook, notebook.with_name("taken.ipynb")):
        target.touch()
        code, said = _refused(["apply", str(notebook), "--report", str(path), "-o", str(target)], capsys)
        assert (code, said) == (2, f"grape: '{target}' exists and is not overwritten; name another file with -o\n")
    assert notebook.read_bytes() == before and notebook.with_name("taken.ipynb").read_bytes() == b""


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON: it ends in the middle"),
        ("[]", "is not a report; write one with grape run NOTEBOOK --json report.json"),
        (
            '{"findings": [{"fix": {"diff": "--- In[2]\\tsha256:00\\n", "verified": true}}]}',
            "the report has a finding that cannot be read: KeyError('code')",
        ),
        ('{"findings": [{"fix": {"diff": "x", "verified": true}, "code": "GR101"}]}', "without the digest of its cell"),
    ],
)
def test_broken_reports(
    notebook: Path, tmp_path: Path, content: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    path.write_text(content)
    code, error = _refused(["apply", str(notebook), "--report", str(path)], capsys)
    assert code == 2 and said in error, error


def test_other_bad_input(notebook: Path, report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(report((TRAIN, "GR101", 8)))
    cases = [
        (["apply", str(notebook), "--report", path, "-o", "out.txt"], "is no name for a notebook; end it in .ipynb"),
        (["apply", str(notebook), "--report", path, "-o", "none/out.ipynb"], "there is no folder 'none'"),
        (["apply", str(notebook), "--report", path, "--code", "GR999"], "unknown code 'GR999'"),
        (["apply", str(notebook), "--report", "none.json"], "cannot read 'none.json'"),
        (["apply", "none.ipynb", "--report", path], "cannot read 'none.ipynb'"),
    ]
    for words, said in cases:
        code, error = _refused(words, capsys)
        assert code == 2 and said in error, error


def test_an_old_notebook_is_not_converted_in_passing(
    notebook: Path, report: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    old = nbformat.convert(nbformat.read(notebook, as_version=4), 3)
    nbformat.write(old, notebook, version=3)
    code, said = _refused(["apply", str(notebook), "--report", str(report((TRAIN, "GR101", 8)))], capsys)
    assert code == 2 and "has notebook format 3; convert it first" in said


def test_fixes_of_files_are_left(notebook: Path, report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    path = report((TRAIN, "GR101", 8), file="helpers.py")
    assert main(["apply", str(notebook), "--report", str(path)]) == 0
    assert "left: GR101 in helpers.py, line 8: it is not in the notebook" in capsys.readouterr().out
