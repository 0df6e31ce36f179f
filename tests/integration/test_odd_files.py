"""Files that are not what their name says: one clear line from each command, exit code 2, nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from nbformat.v4 import new_markdown_cell

from grape.cli.entry import main
from tests.integration.notebook_files import notebook_file

REPORT = {"version": 1, "device": "CPU", "verdict": "x", "cell": {"file": "In[1]"}, "regions": [], "findings": []}
JSON: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "blank": (b" \n", "is empty"),
    "binary": (bytes(range(256)), "is not JSON: it is not UTF-8 text"),
    "cut off": (json.dumps(REPORT).encode()[:60], "is not JSON: it ends in the middle"),
    "cut in a word": (b'{"version": 1, "dev', "is not JSON: it ends in the middle"),
    "a comma too much": (b'{"version": 1,}', "is not JSON: Expecting property name enclosed in double quotes"),
    "nested deeply": (b"[" * 100_000, "is not JSON: "),
}


@pytest.mark.parametrize("name", JSON)
@pytest.mark.parametrize("command", ["view", "compare", "apply"])
def test_what_is_no_json(command: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, said = JSON[name]
    file = tmp_path / "odd.json"
    file.write_bytes(content)
    notebook = notebook_file(tmp_path, "x = 1", name="work.ipynb")
    words = {
        "view": ["view", str(file)],
        "compare": ["compare", str(file), str(file)],
        "apply": ["apply", str(notebook), "--report", str(file)],
    }
    assert main(words[command]) == 2
    error = capsys.readouterr().err
    assert error.startswith("grape: '") and said in error and error.count("\n") == 1, error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["odd.json", "work.ipynb"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({**REPORT, "version": 2}, "has version 2 of the report; this Grape reads version 1"),
        ({**REPORT, "version": "1"}, "has version '1' of the report; this Grape reads version 1"),
        ({**REPORT, "version": 0}, "has version 0 of the report; this Grape reads version 1"),
        ({"version": 1}, "holds no report of Grape; write one with --json"),
        ([REPORT], "holds no report of Grape; write one with --json"),
        ({**REPORT, "regions": 5}, "is a damaged report: TypeError"),
        ({**REPORT, "regions": [{"name": "f"}]}, "is a damaged report: KeyError"),
        ({**REPORT, "findings": ["GR101"]}, "is a damaged report: "),
    ],
)
def test_reports_that_cannot_be_compared(
    content: object, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, odd = tmp_path / "good.json", tmp_path / "odd.json"
    good.write_text(json.dumps(REPORT), encoding="utf-8-sig")  # as some editors save it
    odd.write_text(json.dumps(content))
    assert main(["compare", str(good), str(odd)]) == 2
    assert f"'{odd}' {said}" in capsys.readouterr().err
    assert main(["compare", str(good), str(good)]) == 0


def test_a_damaged_report_has_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    for content in (REPORT, {"version": 1, "cells": [REPORT]}):
        file.write_text(json.dumps(content))
        assert main(["view", str(file)]) == 2
        assert "'report.json' is a damaged report: KeyError: 'backend'" in capsys.readouterr().err
    file.write_text(json.dumps({"format": "grape-view", "version": 99}))
    assert main(["view", str(file)]) == 2
    assert "is of version 99; this Grape reads version" in capsys.readouterr().err


def test_a_view_is_written_where_one_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into the current directory, not beside its input; over an earlier page, not over anything else."""
    source = Path(__file__).parents[2] / "docs" / "data" / "gpt2-decode.json"
    before = sorted(source.parent.iterdir())
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert main(["view", str(source)]) == 0
        assert capsys.readouterr().out == "wrote gpt2-decode.html\n"
    assert sorted(source.parent.iterdir()) == before
    assert [file.name for file in tmp_path.iterdir()] == ["gpt2-decode.html"]
    (tmp_path / "gpt2-decode.html").write_text("mine")
    assert main(["view", str(source)]) == 2
    assert "is no page of Grape's; name another file with --out" in capsys.readouterr().err
    assert (tmp_path / "gpt2-decode.html").read_text() == "mine"


@pytest.mark.parametrize("command", ["view", "compare"])
def test_a_folder(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "folder.json"
    folder.mkdir()
    assert main([command, *[str(folder)] * (2 if command == "compare" else 1)]) == 2
    assert f"'{folder}' is a folder; name a file in it" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["empty", "markdown"])
def test_a_notebook_without_code(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [new_markdown_cell("# Title")] if kind == "markdown" else []
    file = notebook_file(tmp_path, *cells, name=f"{kind}.ipynb")
    assert main(["advise", str(file)]) == 0
    assert capsys.readouterr().out == f"{kind}.ipynb: no cell of Python\n"
    assert main(["run", str(file)]) == 2
    assert "has no code cell that can run under Grape" in capsys.readouterr().err
