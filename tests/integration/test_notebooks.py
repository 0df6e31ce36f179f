"""The notebooks that are the documentation: they run as they are stored, and show reports."""

from __future__ import annotations

import ast
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

from grape.rewrite.control_flow import RewrittenFlow, rewrite_control_flow

FOLDER = Path(__file__).parents[2] / "notebooks"
NAMES = [
    "quickstart.ipynb",
    "generate.ipynb",
    "dynamic_shapes.ipynb",
    "control_flow.ipynb",
    "training.ipynb",
    "several_gpus.ipynb",
    "simulation.ipynb",
]
INTERPRETERS = ("quickstart.ipynb", "several_gpus.ipynb")
"""Their kernels are new interpreters, as everywhere else; those of the others have imported torch and Grape already."""


def read(name: str) -> NotebookNode:
    return nbformat.read(FOLDER / name, as_version=4)


def text_of(cell: NotebookNode, mime: str) -> str:
    return "\n".join(output.data[mime] for output in cell.outputs if mime in output.get("data", {}))


@pytest.mark.parametrize("name", NAMES)
def test_is_stored_without_outputs(name: str) -> None:
    notebook = read(name)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == "python3"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_runs_and_shows_its_reports(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Every cell runs to its end (so every top-level assert was reached), and each `%%grape` cell shows a report."""
    request.getfixturevalue("new_kernels" if name in INTERPRETERS else "forked_kernels")
    if name == "generate.ipynb":
        pytest.importorskip("transformers")
    notebook = read(name)
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert sum(checks(cell.source) for cell in code) >= 3
    measured = [cell for cell in code if cell.source.startswith("%%grape")]
    assert len(measured) >= 2 or name == "several_gpus.ipynb"
    for cell in measured:
        assert "<table" in text_of(cell, "text/html") and text_of(cell, "text/plain").strip()
    if name == "control_flow.ipynb":
        for cell in code:
            if cell.source.startswith("%grape diff"):
                assert "_flow." in "".join(output.get("text", "") for output in cell.outputs), cell.id
    if name == "training.ipynb":
        before, finding, after = (cell for cell in code if cell.id in ("regions", "finding", "whole"))
        assert "('loop at line 6 #2', 'replayed'" in text_of(before, "text/plain")
        assert "lr=3e-3, fused=True)`" in "".join(output.get("text", "") for output in finding.outputs)
        assert "('loop at line 6', 7, 'replayed'" in text_of(after, "text/plain")
    if name == "several_gpus.ipynb":
        (ran, straggler) = (cell for cell in code if cell.id in ("run", "straggler"))
        assert "waited for others" in "".join(output.get("text", "") for output in ran.outputs)
        assert "the other rank waits for rank 1 at `allreduce`" in text_of(straggler, "text/plain")
    if name == "simulation.ipynb":
        (diff,) = (cell for cell in code if cell.id == "diff")
        assert "+    return grape.pad_edges(" in "".join(output.get("text", "") for output in diff.outputs)
    if name == "quickstart.ipynb":
        (regions,) = (cell for cell in code if cell.id == "dict")
        assert "'replayed'" in text_of(regions, "text/plain")
    assert not list(tmp_path.iterdir())


def checks(source: str) -> int:
    """How many top-level asserts a cell has."""
    if source.startswith("%") and not source.startswith("%%grape"):
        return 0
    plain = source.partition("\n")[2] if source.startswith("%%grape") else source
    return sum(isinstance(node, ast.Assert) for node in ast.parse(plain).body)


def test_the_rewritten_cells_are_what_grape_makes_of_the_others() -> None:
    cells = {cell.id: cell.source for cell in read("control_flow.ipynb").cells}
    rewritten = [name for name in cells if name.endswith("-rewritten")]
    assert len(rewritten) == 3
    for name in rewritten:
        made = rewrite_control_flow(cells[name.replace("-rewritten", "-define")], filename=name)
        assert isinstance(made, RewrittenFlow)
        # The stored cell is formatted, and a decision's functions are named by the line.
        assert ast.dump(ast.parse(made.source)) == ast.dump(ast.parse(cells[name]))


def test_nothing_is_downloaded() -> None:
    for name in NAMES:
        sources = "\n".join(cell.source for cell in read(name).cells if cell.cell_type == "code")
        assert "from_pretrained" not in sources and "http" not in sources
