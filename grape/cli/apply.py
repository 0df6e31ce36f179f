"""`grape apply`: the accepted rewrites of a report, in a copy of the notebook."""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from ..errors import RewriteError, UsageError
from ..model import CODES, Finding, Position
from ..render.files import write_text
from ..rewrite import Declined, digest, fix, fix_all, names_in_functions, split_magic
from .files import read_json
from .notebook import read_notebook

__all__ = ["apply"]

_HEADER = re.compile(r"^--- (?P<file>[^\t]*)\t(?P<digest>sha256:[0-9a-f]+)(?P<below> below %%grape)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Accepted:
    """One fix of a report: `digest` names the body of the cell that it is about."""

    finding: Finding
    diff: str
    digest: str
    below_magic: bool


def apply(arguments: argparse.Namespace) -> int:
    """Write the copy, print what was rewritten. Raises a `GrapeError` where anything stands in the way.

    The report is the one of ``--report`` or of a run made now. Nothing is written where a target cell was edited since
    the report, where the copy exists, or where nothing was accepted.
    """
    path = Path(arguments.notebook)
    read_notebook(path)
    target = _target(path, arguments.output)
    notebook = _raw(path)
    if arguments.report is None:
        _check_places(notebook, arguments, path.name)
    reports = _reports(arguments)
    accepted = list(_accepted(reports, codes=arguments.code, unverified=arguments.unverified))
    changed, said = _rewritten(notebook, accepted, path.name)
    for line in said:
        print(line)
    if not changed:
        left = sum(1 for finding in _findings(reports) if finding.get("fix"))
        hint = f"; {left} not verified, take them with --unverified" if left and not arguments.unverified else ""
        print(f"nothing to apply to {path.name}{hint}; no file was written")
        return 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of cells without ids, which are left as they are
        nbformat.validate(nbformat.from_dict(notebook))
    write_text(target, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "the copy")
    print(f"wrote {target}: {len(changed)} cell{'s' if len(changed) > 1 else ''} rewritten, {path.name} is as it was")
    return 0


def _target(path: Path, output: str | None) -> Path:
    target = Path(output).expanduser() if output is not None else path.with_name(f"{path.stem}.grape.ipynb")
    if target.suffix != ".ipynb":
        raise UsageError(f"'{target}' is no name for a notebook; end it in .ipynb")
    if target.exists() or target.is_symlink():
        raise UsageError(f"'{target}' exists and is not overwritten; name another file with -o")
    if not target.parent.is_dir():
        raise UsageError(f"cannot write '{target}': there is no folder '{target.parent}'; create it first")
    return target


def _check_places(notebook: dict[str, Any], arguments: argparse.Namespace, name: str) -> None:
    """Raise before a run whose fixes would have no certain place: a cell that was picked for it is there twice.

    Where nobody picked any, nothing is known yet: two equal cells may well have no fix.
    """
    texts = [_text(cell) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    marked = [number for number, text in enumerate(texts, start=1) if split_magic(text)[0]]
    bodies = [split_magic(text)[1] for text in texts]
    for number in arguments.cell or ([] if arguments.all else marked):
        same = [other for other, body in enumerate(bodies, start=1) if [body] == bodies[number - 1 : number]]
        if len(same) > 1:
            raise _equal_cells(same, name)


def _equal_cells(numbers: list[int], name: str) -> RewriteError:
    return RewriteError(f"cells {numbers[0]} and {numbers[1]} of {name} are the same; change one of them first")


def _reports(arguments: argparse.Namespace) -> list[dict[str, Any]]:
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


def _read_reports(path: Path) -> list[dict[str, Any]]:
    content = read_json(str(path))
    reports = content.get("cells", [content]) if isinstance(content, dict) else []
    if not reports or not all(isinstance(report, dict) and "findings" in report for report in reports):
        raise UsageError(f"'{path}' is not a report; write one with grape run NOTEBOOK --json {path.name}")
    return reports


def _findings(reports: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for report in reports:
        yield from report["findings"]


def _accepted(reports: list[dict[str, Any]], *, codes: list[str] | None, unverified: bool) -> Iterator[_Accepted]:
    """Each fix once: verified ones, or all; of the named codes, or of all."""
    unknown = [code for code in codes or () if code not in CODES]
    if unknown:
        raise UsageError(f"unknown code '{unknown[0]}'; codes: {', '.join(CODES)}")
    seen: set[str] = set()
    try:
        for raw in _findings(reports):
            offered = raw["fix"]
            if offered is None or offered["diff"] in seen or not (unverified or offered["verified"]):
                continue
            if codes and raw["code"] not in codes:
                continue
            seen.add(offered["diff"])
            header = _HEADER.match(offered["diff"].partition("\n")[0])
            if header is None:
                raise UsageError("the report has a fix without the digest of its cell; make the report again")
            yield _Accepted(
                finding=_finding(raw),
                diff=offered["diff"],
                digest=header["digest"],
                below_magic=header["below"] is not None,
            )
    except (KeyError, TypeError) as error:
        raise UsageError(f"the report has a finding that cannot be read: {error!r}; make the report again") from None


def _finding(raw: dict[str, Any]) -> Finding:
    return Finding(
        code=raw["code"],
        severity=raw["severity"],
        message=raw["message"],
        at=Position(file=raw["file"], line=raw["line"], function="<module>"),
        end_line=raw["end_line"],
        region=raw["evidence"].get("region"),
        evidence=tuple(raw["evidence"].items()),
    )


def _raw(path: Path) -> dict[str, Any]:
    """The file's own JSON, so that everything but the sources of rewritten cells stays as it is."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if notebook["nbformat"] != 4:
        raise UsageError(
            f"'{path}' has notebook format {notebook['nbformat']}; convert it first: "
            f"jupyter nbconvert --to notebook {path.name}"
        )
    return notebook


def _text(cell: dict[str, Any]) -> str:
    return cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])


def _rewritten(notebook: dict[str, Any], accepted: list[_Accepted], name: str) -> tuple[list[int], list[str]]:
    """Change the cells of `notebook`; their numbers among the code cells, and a line about each fix."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    bodies: dict[str, list[int]] = {}
    for number, cell in enumerate(cells, start=1):
        bodies.setdefault(digest(split_magic(_text(cell))[1]), []).append(number)
    wanted: dict[int, list[_Accepted]] = {}
    said = []
    for item in accepted:
        at = item.finding.at
        assert at is not None
        if not at.file.startswith("In["):
            said.append(f"left: {item.finding.code} in {at}: it is not in the notebook")
            continue
        numbers = bodies.get(item.digest, [])
        if not numbers:
            raise RewriteError(
                f"the cell of {item.finding.code} ({at}) was edited since the report, or is not in {name}; "
                "make the report again with grape run"
            )
        if len(numbers) > 1:
            raise _equal_cells(numbers, name)
        wanted.setdefault(numbers[0], []).append(item)
    changed = []
    for number, items in sorted(wanted.items()):
        cell = cells[number - 1]
        others = [names_in_functions(_text(other)) for other in cells if other is not cell]
        source, lines = _fixed(_text(cell), items, number, frozenset().union(*others))
        said += lines
        if source != _text(cell):
            changed.append(number)
            cell["source"] = source if isinstance(cell["source"], str) else source.splitlines(keepends=True)
    return changed, said


def _fixed(source: str, items: list[_Accepted], number: int, elsewhere: frozenset[str]) -> tuple[str, list[str]]:
    """The cell with its fixes, one after the other, each checked to be the one that the report shows."""
    magic, body = split_magic(source)
    # `grape run` puts a line above cells without the magic, and the report counts it.
    reported = (magic or "%%grape\n") + body if items[0].below_magic else body
    for item in items:
        made = fix(reported, item.finding, elsewhere=elsewhere)
        if isinstance(made, Declined) or _comparable(made.diff) != _comparable(item.diff):
            raise RewriteError(
                f"cell {number}: this version of Grape would not make the rewrite that the report shows for "
                f"{item.finding.code}; make the report again with grape run"
            )
    combined = fix_all(reported, [item.finding for item in items], elsewhere=elsewhere)
    said = [f"cell {number}: {finding.code} {finding.name} ({finding.at})" for finding in combined.applied]
    said += [
        f"left: cell {number}: {finding.code} does not go together with the others ({refused})"
        for finding, refused in combined.refused
    ]
    new = split_magic(combined.source)[1] if items[0].below_magic else combined.source
    return magic + new if items[0].below_magic else combined.source, said


def _comparable(diff: str) -> list[str]:
    return [line for line in diff.splitlines() if not line.lstrip().startswith("%%grape") and line[:1] != "\\"]
