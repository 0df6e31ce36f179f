"""`grape run`: execute a notebook with chosen cells under Grape, and report."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import nbformat

from ..errors import GrapeError
from ..render.files import write_text
from ..render.html.page import read_view
from .notebooks.kernel import CellRaised, CellReport, NotebookKernel, open_kernel
from .notebooks.notebook import CodeCell, choose_cells, code_cells, drop_emptied, notebook_text, read_notebook
from .parser import option_words
from .written.outputs import check_outputs, found, has_color, width
from .written.page import NO_TIMELINE, Section, check_view_name, html_page, json_text, write_drawn

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_GRAPE_SAYS = ("Grape: ", "UsageError: %%grape", "%%grape: ")


class _Found(GrapeError):
    """--fail-on found something."""


class _NotMeasured(GrapeError):
    """A cell that was to be measured ran, but made no report."""


def run(arguments: argparse.Namespace) -> int:
    """Execute the notebook and write what was asked for. Raises a `GrapeError` for every exit code but 0."""
    words = option_words(arguments)
    path = Path(arguments.notebook)
    notebook = read_notebook(path)
    cells = code_cells(notebook)
    chosen = choose_cells(path.name, cells, numbers=arguments.cell, everything=arguments.all)
    check_view_name(arguments.view)
    outputs = (arguments.json, arguments.html, arguments.out, arguments.view, arguments.trace)
    check_outputs(path, "notebook", [file for file in outputs if file is not None])
    if arguments.out is None and "--no-widget" not in words:
        words.append("--no-widget")  # nobody would see it
    magic_line = shlex.join(["%%grape", *words])

    extra = {"view": arguments.view or arguments.html, "trace": arguments.trace}
    reports: list[CellReport] = []
    failure: BaseException | None = None
    try:
        with open_kernel(notebook, path.resolve().parent, name=arguments.kernel, timeout_s=arguments.timeout) as kernel:
            for cell in cells:
                wanted = tuple(what for what, file in extra.items() if file) if cell.number in chosen else None
                _run_cell(kernel, cell, len(cells), _apply_words(arguments, cell), magic_line, wanted, reports)
    except (GrapeError, KeyboardInterrupt) as error:
        failure = error
    if reports or failure is None:  # what stopped before anything was measured overwrites nothing
        _write(arguments, path.name, notebook, cells, reports, magic_line)
    if failure is not None:
        raise failure
    _check_complete(notebook, cells, chosen, reports)
    severe = found([(f"cell {one.number}", one.report) for one in reports], arguments.fail_on)
    if severe is not None:
        raise _Found(severe)
    return 0


def _apply_words(arguments: argparse.Namespace, cell: CodeCell) -> str:
    """The words that name this cell to `grape apply`."""
    named = arguments.cell or arguments.all
    return shlex.join([arguments.notebook, *(["--cell", str(cell.number)] if named else [])])


def _run_cell(
    kernel: NotebookKernel,
    cell: CodeCell,
    count: int,
    notebook: str,
    magic_line: str,
    wanted: tuple[str, ...] | None,
    reports: list[CellReport],
) -> None:
    """Run one code cell, under Grape where something of its report is `wanted`; print that and keep it in `reports`."""
    if cell.kind == "empty":
        return
    under = wanted is not None
    start = time.monotonic()
    print(f"cell {cell.number} of {count}{', under Grape' if under else ''} ...", end="", file=sys.stderr, flush=True)
    raised: CellRaised | None = None
    try:
        if under or cell.kind == "grape":
            kernel.prepare()
        try:
            kernel.execute(cell, magic_line=magic_line if under and cell.kind == "plain" else None)
        except CellRaised as error:
            raised = error
        report = None
        if wanted is not None:
            color = has_color(sys.stdout)
            report = kernel.collect(cell.number, notebook=notebook, width=width(), color=color, extra=wanted)
    finally:
        print(f" {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
    if report is not None:
        reports.append(report)
        print(f"{_heading(cell)}\n{report.text.rstrip()}\n", flush=True)
    if raised is not None:
        text = raised.traceback
        print(text if has_color(sys.stderr) else _ANSI.sub("", text), file=sys.stderr)
        raise CellRaised(f"cell {cell.number} raised {raised}; the cells after it did not run", text)


def _heading(cell: CodeCell) -> str:
    added = " (its line 1 is the added %%grape line)" if cell.kind == "plain" else ""
    return f"Code cell {cell.number}{added}"


def _write(
    arguments: argparse.Namespace,
    title: str,
    notebook: nbformat.NotebookNode,
    cells: Sequence[CodeCell],
    reports: Sequence[CellReport],
    magic_line: str,
) -> None:
    if arguments.json is not None and reports:
        write_text(arguments.json, json_text([one.report for one in reports]), "the reports")
    if arguments.html is not None and reports:
        sections = [
            Section(
                id=f"cell-{report.number}",
                title=f"Code cell {report.number}",
                source=_as_run(notebook, cells[report.number - 1], magic_line),
                html=report.html,
                view=read_view(report.view, title) if report.view is not None else None,
            )
            for report in reports
        ]
        write_text(arguments.html, html_page(title, sections), "the page")
    for report in reports:
        number = report.number if len(reports) > 1 else None
        write_drawn(arguments.view, "view", report.view, number)
        write_drawn(arguments.trace, "trace", report.trace, number)
        if not report.has_timeline and (arguments.view or arguments.trace):
            print(f"grape: {NO_TIMELINE.format(f'cell {report.number}')}", file=sys.stderr)
    if arguments.out is not None:
        drop_emptied(notebook)
        write_text(arguments.out, notebook_text(notebook), "the executed notebook")


def _as_run(notebook: nbformat.NotebookNode, cell: CodeCell, magic_line: str) -> str:
    """The cell's source with the lines that its report counts."""
    source: str = notebook.cells[cell.index].source
    return f"{magic_line}\n{source}" if cell.kind == "plain" else source


def _check_complete(
    notebook: nbformat.NotebookNode, cells: Sequence[CodeCell], chosen: frozenset[int], reports: Sequence[CellReport]
) -> None:
    """Raise where a chosen cell made no report, with what Grape said in that cell."""
    missing = sorted(chosen - {report.number for report in reports})
    if missing:
        outputs = notebook.cells[cells[missing[0] - 1].index].outputs
        lines = [line for output in outputs for line in output.get("text", "").splitlines()]
        said = next((line for line in lines if line.startswith(_GRAPE_SAYS)), "see grape doctor")
        raise _NotMeasured(f"cell {missing[0]} ran, but made no report: {said}")
