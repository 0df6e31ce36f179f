"""What a cell under `%%grape` tells in a notebook, `grape run` tells of the same cell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from grape.cli import main
from grape.cli.parser import build_parser
from grape.options import OPTIONS
from tests.integration.notebook_files import notebook_file

CELLS = (
    """\
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(8))).eval()
""",
    """\
kept = []
x = torch.zeros(1, 8)
with torch.inference_mode():
    for _ in range(40):
        x = net(x)
        kept.append(x.sum().item())
""",
)
MAGIC = "%%grape --no-widget --engine regions"


def told(report: dict[str, Any]) -> list[Any]:
    """All that does not depend on times."""
    kept = ("name", "line", "outcome", "reason", "calls", "verified", "shapes")
    found = ("code", "severity", "line", "message", "fixable")
    return [
        [{key: region[key] for key in kept} | {"replayed": region["replays"] > 0} for region in report["regions"]],
        [{key: finding[key] for key in found} for finding in report["findings"]],
        sorted(report),
        sorted(report["cell"]),
        report["device"],
    ]


def in_a_notebook(folder: Path) -> dict[str, Any]:
    cells = ("%load_ext grape", CELLS[0], f"{MAGIC} --json report.json\n{CELLS[1]}")
    notebook = nbformat.read(notebook_file(folder, *cells, name="plain.ipynb"), as_version=4)
    NotebookClient(notebook, timeout=180, resources={"metadata": {"path": str(folder)}}).execute()
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def on_the_command_line(path: Path, *words: str) -> dict[str, Any]:
    file = path.with_suffix(".json")
    assert main(["run", "--json", str(file), *words, str(path)]) == 0
    report: dict[str, Any] = json.loads(file.read_text())
    return report


def test_regions_and_findings_are_those_of_the_magic(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("GRAPE_REFERENCE", "1")  # so that looking has no end that depends on time
    magic = in_a_notebook(tmp_path)
    ran = on_the_command_line(notebook_file(tmp_path, *CELLS), "--cell", "2", "--no-widget", "--engine", "regions")
    assert told(ran) == told(magic)
    assert magic["regions"][0]["replays"] > 0 and magic["findings"][0]["code"] == "GR101"


def test_every_option_of_the_magic_is_one_of_the_command() -> None:
    flags = set(build_parser().run_flags)
    assert not [option.field for option in OPTIONS if not set(option.flags) <= flags]
