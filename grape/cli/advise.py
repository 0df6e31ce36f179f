"""`grape advise`: what the source of a notebook or a file shows, without running it."""

from __future__ import annotations

import argparse
import ast
import json
import re
import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path

from ..errors import UsageError
from ..model import Finding
from ..render.files import write_text

_SHOWN = 5
_WIDTH = 100


def advise(arguments: argparse.Namespace) -> int:
    """Print the findings, at most five of them; all are in the file that --json names. Raises `UsageError`."""
    from ..advisor import advise_sources

    path = Path(arguments.file)
    sources = _sources(path)
    findings = advise_sources(sources)
    if arguments.json is not None:
        content = {"version": 1, "file": path.name, "findings": [finding.to_dict() for finding in findings]}
        write_text(arguments.json, json.dumps(content, indent=2) + "\n", "the findings")
    print(_text(path, sources, findings))
    return 0


def _sources(path: Path) -> list[tuple[str, str]]:
    """(name to show, source) of the cells of a notebook, or of the one file."""
    if path.suffix == ".ipynb":
        from .notebooks.notebook import code_cells, read_notebook

        notebook = read_notebook(path)
        cells = [cell for cell in code_cells(notebook) if cell.kind in ("grape", "plain") or cell.is_masked]
        return [(f"cell {cell.number}", notebook.cells[cell.index].source) for cell in cells]
    if path.suffix != ".py":
        raise UsageError(f"'{path}' is neither a notebook (.ipynb) nor a Python file (.py)")
    try:
        source = path.read_text(encoding="utf-8")
        ast.parse(source)
    except SyntaxError as error:
        raise UsageError(f"'{path}', line {error.lineno}: {error.msg}; grape advise reads Python") from None
    except UnicodeDecodeError:
        raise UsageError(f"'{path}' is no Python file: it is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UsageError(f"cannot read '{path}': {why}; check the path") from None
    return [(path.name, source)]


def _text(path: Path, sources: Sequence[tuple[str, str]], findings: Sequence[Finding]) -> str:
    if not sources and path.suffix == ".ipynb":
        return f"{path.name}: no cell of Python"
    if not findings:
        if not any(re.search(r"\b(torch|transformers|diffusers)\b", source) for _, source in sources):
            return f"{path.name}: no PyTorch code"
        return f"{path.name}: nothing found in the source alone\n\nnext: {_next(path)}"
    count = f"{len(findings)} finding{'s' if len(findings) > 1 else ''}"
    lines = [f"{path.name}: {count} in the source alone; what they cost is unknown until the code runs"]
    for finding in findings[:_SHOWN]:
        lines += ["", f"{finding.code} {finding.name}, {finding.at}"]
        lines += textwrap.wrap(finding.message, _WIDTH, initial_indent="  ", subsequent_indent="  ")
        lines += textwrap.wrap(f"fix: {finding.advice}", _WIDTH, initial_indent="  ", subsequent_indent="  ")
    if len(findings) > _SHOWN:
        lines += ["", f"and {len(findings) - _SHOWN} more: --json FILE writes all of them"]
    return "\n".join([*lines, "", f"next: {_next(path)}"])


def _next(path: Path) -> str:
    return f"grape run {shlex.quote(str(path))} measures what it costs"
