"""`grape apply`: the accepted rewrites of a report, in a copy of the notebook or the script."""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from pathlib import Path

import nbformat

from ..errors import UsageError
from ..render.files import write_bytes, write_text
from ..render.json_types import ReportJson
from ..rewrite import split_magic
from .files import ScriptText, read_json
from .notebooks.notebook import read_notebook
from .parser import is_script
from .written.rewriting import (
    RawNotebook,
    accepted,
    cell_text,
    equal_cells,
    findings_of,
    rewritten_notebook,
    rewritten_script,
)


def apply(arguments: argparse.Namespace) -> int:
    """Write the copy, print what was rewritten. Raises a `GrapeError` where anything stands in the way.

    The report is the one of ``--report`` or of a run made now. Nothing is written where a target cell was edited since
    the report, where the copy exists, or where nothing was accepted.
    """
    path = Path(arguments.notebook)
    if is_script(path.name):
        return _apply_to_script(path, arguments)
    read_notebook(path)
    target = _target(path, arguments.output)
    notebook = raw_notebook(path)
    if arguments.report is None:
        _check_places(notebook, arguments, path.name)
    reports = _reports(arguments)
    taken = list(accepted(reports, codes=arguments.code, unverified=arguments.unverified))
    changed, said = rewritten_notebook(notebook, taken, path.name)
    for line in said:
        print(line)
    if not changed:
        return _nothing(path, reports, arguments)
    write_text(target, checked(notebook), "the copy")
    print(f"wrote {target}: {len(changed)} cell{'s' if len(changed) > 1 else ''} rewritten, {path.name} is as it was")
    return 0


def _apply_to_script(path: Path, arguments: argparse.Namespace) -> int:
    """The same for a script, of a report that is there: who knows what a run of it needs?"""
    if arguments.report is None:
        file = f"{path.stem}.json"
        raise UsageError(f"name a report of '{path}' with --report: grape run --json {file} {path} writes one")
    for flag in ("cell", "all", "timeout", "kernel"):
        if getattr(arguments, flag):
            raise UsageError(f"--{flag} is for notebooks, and '{path}' is a script")
    script, target = ScriptText.read(path), _target(path, arguments.output)
    reports = _reports(arguments)
    taken = list(accepted(reports, codes=arguments.code, unverified=arguments.unverified))
    source, said = rewritten_script(script.text, taken, reports[0]["cell"]["file"], path.name)
    for line in said:
        print(line)
    if source == script.text:
        return _nothing(path, reports, arguments)
    write_bytes(target, script.encoded(source), "the copy")
    print(f"wrote {target}: {path.name} is as it was")
    return 0


def _nothing(path: Path, reports: list[ReportJson], arguments: argparse.Namespace) -> int:
    left = sum(1 for finding in findings_of(reports) if finding.get("fix"))
    hint = f"; {left} not verified, take them with --unverified" if left and not arguments.unverified else ""
    print(f"nothing to apply to {path.name}{hint}; no file was written")
    return 0


def checked(notebook: RawNotebook) -> str:
    """The text of a notebook, which is one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of cells without ids, which are left as they are
        nbformat.validate(nbformat.from_dict(notebook))
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _target(path: Path, output: str | None) -> Path:
    target = Path(output).expanduser() if output is not None else path.with_name(f"{path.stem}.grape{path.suffix}")
    if target.suffix != path.suffix:
        kind = "script" if is_script(path.name) else "notebook"
        raise UsageError(f"'{target}' is no name for a {kind}; end it in {path.suffix}")
    if target.exists() or target.is_symlink():
        raise UsageError(f"'{target}' exists and is not overwritten; name another file with -o")
    if not target.parent.is_dir():
        raise UsageError(f"cannot write '{target}': there is no folder '{target.parent}'; create it first")
    return target


def _check_places(notebook: RawNotebook, arguments: argparse.Namespace, name: str) -> None:
    """Raise before a run whose fixes would have no certain place: a cell that was picked for it is there twice.

    Where nobody picked any, nothing is known yet: two equal cells may well have no fix.
    """
    texts = [cell_text(cell) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    marked = [number for number, text in enumerate(texts, start=1) if split_magic(text)[0]]
    bodies = [split_magic(text)[1] for text in texts]
    for number in arguments.cell or ([] if arguments.all else marked):
        same = [other for other, body in enumerate(bodies, start=1) if [body] == bodies[number - 1 : number]]
        if len(same) > 1:
            raise equal_cells(same, name)


def _reports(arguments: argparse.Namespace) -> list[ReportJson]:
    """The reports of ``--report``, or of a run of the notebook."""
    if arguments.report is not None:
        return _read_reports(Path(arguments.report))
    from .parser import build_parser, parse
    from .run import run

    words = ["run", arguments.notebook]
    for number in arguments.cell or ():
        words += ["--cell", str(number)]
    words += ["--all"] if arguments.all else []
    words += ["--timeout", str(arguments.timeout)] if arguments.timeout is not None else []
    words += ["--kernel", arguments.kernel] if arguments.kernel is not None else []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        run(parse(build_parser(), [*words, "--json", str(file)]))
        return _read_reports(file)


def _read_reports(path: Path) -> list[ReportJson]:
    content = read_json(str(path))
    reports = content.get("cells", [content]) if isinstance(content, dict) else []
    if not reports or not all(isinstance(report, dict) and "findings" in report for report in reports):
        raise UsageError(f"'{path}' is not a report; write one with grape run NOTEBOOK --json {path.name}")
    return reports


def raw_notebook(path: Path) -> RawNotebook:
    """The file's own JSON, so that everything but the sources of rewritten cells stays as it is."""
    notebook: RawNotebook = json.loads(path.read_text(encoding="utf-8"))
    if notebook["nbformat"] != 4:
        raise UsageError(
            f"'{path}' has notebook format {notebook['nbformat']}; convert it first: "
            f"jupyter nbconvert --to notebook {path.name}"
        )
    return notebook
