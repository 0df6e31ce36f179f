"""The rewrites of a report, in the source that they are about: the cells of a notebook, or a script."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypedDict

from ...errors import RewriteError, UsageError
from ...model import CODES, Finding, Position
from ...render.json_types import FindingJson
from ...rewrite import Declined, digest, names_in_functions, split_magic
from ...rewrite.at_once import fix_all
from ...rewrite.registry import fix

_HEADER = re.compile(r"^--- (?P<file>[^\t]*)\t(?P<digest>sha256:[0-9a-f]+)(?P<below> below %%grape)?$")


class RawCell(TypedDict):
    cell_type: str
    source: str | list[str]


class RawNotebook(TypedDict):
    """A notebook as its file has it."""

    nbformat: int
    cells: list[RawCell]


class Findings(TypedDict):
    """Of a report."""

    findings: list[FindingJson]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """One fix of a report: `digest` names the body of the cell that it is about."""

    finding: Finding
    diff: str
    digest: str
    below_magic: bool


def findings_of(reports: Iterable[Findings]) -> Iterator[FindingJson]:
    for report in reports:
        yield from report["findings"]


def accepted(reports: Iterable[Findings], *, codes: list[str] | None, unverified: bool) -> Iterator[Accepted]:
    """Each fix once: verified ones, or all; of the named codes, or of all."""
    unknown = [code for code in codes or () if code not in CODES]
    if unknown:
        raise UsageError(f"unknown code '{unknown[0]}'; codes: {', '.join(CODES)}")
    seen: set[str] = set()
    try:
        for raw in findings_of(reports):
            offered = raw["fix"]
            if offered is None or offered["diff"] in seen or not (unverified or offered["verified"]):
                continue
            if codes and raw["code"] not in codes:
                continue
            seen.add(offered["diff"])
            header = _HEADER.match(offered["diff"].partition("\n")[0])
            if header is None:
                raise UsageError("the report has a fix without the digest of its cell; make the report again")
            yield Accepted(
                finding=_finding(raw),
                diff=offered["diff"],
                digest=header["digest"],
                below_magic=header["below"] is not None,
            )
    except (KeyError, TypeError) as error:
        raise UsageError(f"the report has a finding that cannot be read: {error!r}; make the report again") from None


def _finding(raw: FindingJson) -> Finding:
    return Finding(
        code=raw["code"],
        severity=raw["severity"],
        message=raw["message"],
        at=Position(file=raw["file"], line=raw["line"], function="<module>"),
        end_line=raw["end_line"],
        region=None if (region := raw["evidence"].get("region")) is None else str(region),
        evidence=tuple(raw["evidence"].items()),
    )


def cell_text(cell: RawCell) -> str:
    return cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])


def equal_cells(numbers: list[int], name: str) -> RewriteError:
    return RewriteError(f"cells {numbers[0]} and {numbers[1]} of {name} are the same; change one of them first")


def rewritten_notebook(notebook: RawNotebook, taken: list[Accepted], name: str) -> tuple[list[int], list[str]]:
    """Change the cells of `notebook`; their numbers among the code cells, and a line about each fix."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    bodies: dict[str, list[int]] = {}
    for number, cell in enumerate(cells, start=1):
        bodies.setdefault(digest(split_magic(cell_text(cell))[1]), []).append(number)
    wanted: dict[int, list[Accepted]] = {}
    said = []
    for item in taken:
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
            raise equal_cells(numbers, name)
        wanted.setdefault(numbers[0], []).append(item)
    changed = []
    for number, items in sorted(wanted.items()):
        cell = cells[number - 1]
        others = [names_in_functions(cell_text(other)) for other in cells if other is not cell]
        source, lines = _fixed(cell_text(cell), items, f"cell {number}", frozenset().union(*others))
        said += lines
        if source != cell_text(cell):
            changed.append(number)
            cell["source"] = source if isinstance(cell["source"], str) else source.splitlines(keepends=True)
    return changed, said


def rewritten_script(source: str, taken: list[Accepted], file: str, name: str) -> tuple[str, list[str]]:
    """The source of a script with its fixes, and a line about each. `file` is what the report calls the script, `name`
    what the person does. Raises `RewriteError` where it was edited since.
    """
    items, said = [], []
    for item in taken:
        if item.finding.at is None or item.finding.at.file != file:
            said.append(f"left: {item.finding.code} in {item.finding.at}: it is not in the script")
            continue
        if item.digest != digest(source):
            raise RewriteError(f"{name} was edited since the report; make the report again with grape run")
        items.append(item)
    if not items:
        return source, said
    new, lines = _fixed(source, items, name, frozenset())
    return new, said + lines


def _fixed(source: str, items: list[Accepted], where: str, elsewhere: frozenset[str]) -> tuple[str, list[str]]:
    """The cell with its fixes, one after the other, each checked to be the one that the report shows."""
    magic, body = split_magic(source)
    # `grape run` puts a line above cells without the magic, and the report counts it.
    reported = (magic or "%%grape\n") + body if items[0].below_magic else body
    for item in items:
        made = fix(reported, item.finding, elsewhere=elsewhere)
        if isinstance(made, Declined) or _comparable(made.diff) != _comparable(item.diff):
            raise RewriteError(
                f"{where}: this version of Grape would not make the rewrite that the report shows for "
                f"{item.finding.code}; make the report again with grape run"
            )
    combined = fix_all(reported, [item.finding for item in items], elsewhere=elsewhere)
    said = [f"{where}: {finding.code} {finding.name} ({finding.at})" for finding in combined.applied]
    said += [
        f"left: {where}: {finding.code} does not go together with the others ({refused})"
        for finding, refused in combined.refused
    ]
    new = split_magic(combined.source)[1] if items[0].below_magic else combined.source
    return magic + new if items[0].below_magic else combined.source, said


def _comparable(diff: str) -> list[str]:
    return [line for line in diff.splitlines() if not line.lstrip().startswith("%%grape") and line[:1] != "\\"]
