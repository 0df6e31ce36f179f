"""Notebooks as files."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook


def notebook_file(
    folder: Path, *cells: str | NotebookNode, name: str = "notebook.ipynb", kernel: str | None = None
) -> Path:
    """Text makes a code cell. Without `kernel` the notebook names none."""
    notebook = new_notebook(cells=[new_code_cell(cell) if isinstance(cell, str) else cell for cell in cells])
    if kernel is not None:
        notebook.metadata["kernelspec"] = {"name": kernel, "display_name": kernel, "language": "python"}
    path = folder / name
    nbformat.write(notebook, path)
    return path
