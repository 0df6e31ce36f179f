"""Notebooks as files: reading them, naming their code cells, choosing those that run under Grape."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import nbformat

from ...errors import UsageError

_RUN_PYTHON = ("%%time", "%%capture", "%%prun")
"""How magics begin that run their body as Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeCell:
    """One code cell. `number` counts code cells from 1, `index` all cells from 0.

    `kind` is "grape" where it begins with ``%%grape``, "plain" for Python that compiles, "empty", or "other"; then
    `why` says why it cannot run under Grape.
    """

    number: int
    index: int
    kind: Literal["grape", "plain", "empty", "other"]
    why: str = ""
    is_masked: bool = False
    """It is Python but for magic or shell lines in it, or below a magic that times it."""


def read_notebook(path: Path) -> nbformat.NotebookNode:
    """The notebook in the newest format; older ones are converted in memory. Raises `UsageError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except IsADirectoryError:
        raise UsageError(f"'{path}' is a folder; name an .ipynb file in it") from None
    except UnicodeDecodeError:
        raise UsageError(f"'{path}' is not a notebook: it is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UsageError(f"cannot read '{path}': {why}; check the path") from None
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"'{path}' is not a notebook: broken JSON, {error}") from None
    if not isinstance(raw, dict) or type(raw.get("nbformat")) is not int:
        raise UsageError(f"'{path}' is not a notebook: it is JSON without an 'nbformat' number")
    return _newest(path, raw, text)


def _newest(path: Path, raw: Mapping[str, int], text: str) -> nbformat.NotebookNode:
    version = raw["nbformat"]
    if not 1 <= version <= nbformat.current_nbformat:
        raise UsageError(
            f"'{path}' has notebook format {version}; the installed nbformat reads 1 to {nbformat.current_nbformat}"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # missing cell ids are added, not worth a line
            notebook: nbformat.NotebookNode = nbformat.reads(text, as_version=4)
            nbformat.validate(notebook)
    except Exception as error:  # a converter fails on a malformed file in any way it likes
        first = (str(error).splitlines() or [""])[0].rstrip(".: ") or type(error).__name__
        raise UsageError(f"'{path}' is not a valid notebook of format {version}: {first}") from None
    return notebook


def code_cells(notebook: nbformat.NotebookNode) -> tuple[CodeCell, ...]:
    """The code cells in the order of the file."""
    places = [index for index, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    return tuple(_judge(number, index, notebook.cells[index]) for number, index in enumerate(places, start=1))


def _judge(number: int, index: int, cell: nbformat.NotebookNode) -> CodeCell:
    source = cell.source
    if not source.strip():
        return CodeCell(number=number, index=index, kind="empty", why="it is empty")
    if "skip-execution" in cell.metadata.get("tags", []):
        return CodeCell(number=number, index=index, kind="other", why="its tag 'skip-execution' says not to run it")
    language = cell.metadata.get("vscode", {}).get("languageId", "python")
    if language != "python":
        return CodeCell(number=number, index=index, kind="other", why=f"its language is {language}")
    magic = re.match(r"\s*(%%\S*)", source)
    if magic:
        if magic[1] == "%%grape":
            if not source.strip().partition("\n")[2].strip():
                return CodeCell(number=number, index=index, kind="empty", why="it is empty below %%grape")
            return CodeCell(number=number, index=index, kind="grape")
        timed = magic[1].startswith(_RUN_PYTHON)
        return CodeCell(number=number, index=index, kind="other", why=f"it begins with {magic[1]}", is_masked=timed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            empty = not ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = _line_of(source, error)
        text = line if len(line) <= 40 else line[:37] + "..."
        why = f"line {getattr(error, 'lineno', None)} is not Python: {text}" if line else f"it is not Python: {error}"
        return CodeCell(number=number, index=index, kind="other", why=why, is_masked=line.startswith(("%", "!")))
    if empty:
        return CodeCell(number=number, index=index, kind="empty", why="it has only comments")
    return CodeCell(number=number, index=index, kind="plain")


def _line_of(source: str, error: Exception) -> str:
    """The line of `source` that an error names; empty where it names none."""
    lines, number = source.splitlines(), getattr(error, "lineno", None)
    return lines[number - 1].strip() if number is not None and 1 <= number <= len(lines) else ""


def choose_cells(
    name: str, cells: Sequence[CodeCell], *, numbers: Sequence[int] | None, everything: bool
) -> frozenset[int]:
    """The numbers of the cells that run under Grape. `name` is the notebook's, for messages. Raises `UsageError`."""
    if numbers:
        for number in numbers:
            if number > len(cells):
                count = f"{len(cells)} code cell" + ("" if len(cells) == 1 else "s")
                raise UsageError(f"there is no cell {number} in {name}: it has {count}, numbered from 1")
            cell = cells[number - 1]
            if cell.kind in ("empty", "other"):
                raise UsageError(f"cell {number} of {name} cannot run under Grape: {cell.why}; leave it out of --cell")
        return frozenset(numbers)
    marked = frozenset(cell.number for cell in cells if cell.kind == "grape")
    if marked and not everything:
        return marked
    chosen = frozenset(cell.number for cell in cells if cell.kind in ("grape", "plain"))
    if not chosen:
        raise UsageError(f"{name} has no code cell that can run under Grape; Grape measures cells of plain Python")
    return chosen


def drop_emptied(notebook: nbformat.NotebookNode) -> None:
    """Drop outputs that hold nothing any more: where the progress of a cell stood that has shown something since."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("data") != {"text/plain": "", "text/html": ""}]


def notebook_text(notebook: nbformat.NotebookNode) -> str:
    """The file's text, in the format the notebook had within version 4."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text: str = nbformat.writes(notebook)
    return text if text.endswith("\n") else text + "\n"
