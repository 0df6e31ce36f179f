"""From a finding to the rewrite of the source that it is about. One fix per code."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection
from dataclasses import replace
from importlib import import_module

import libcst as cst

from ..model import Finding
from ..model.codes import REWRITES, REWRITTEN_IN_LIBRARIES
from .code import Code
from .result import Compared, Declined, Rewritten
from .source import is_python, mask, unified_diff

CodeFix = Callable[[Code, Finding], str | Compared | Declined]


def _fix_in(module: str) -> CodeFix:
    made: CodeFix = import_module(f".fixes.{module}", __package__).fix
    return made


FIXES: dict[str, CodeFix] = {code: _fix_in(module) for code, module in REWRITES.items()}


def fix(source: str, finding: Finding, *, elsewhere: Collection[str] = ()) -> Rewritten | Declined:
    """The rewrite that removes what `finding` is about, from the source of the cell or file that it names.

    `elsewhere` are the global names that functions of other cells use; what such a function may look at while the
    cell runs keeps its value at each moment.

    A pure function; the same source and finding give the same rewrite. What it offers has been parsed again, and
    fixing it once more changes nothing.
    """
    code_fix = FIXES.get(finding.code)
    if code_fix is None:
        return Declined(why=f"there is no rewrite for {finding.code}")
    if finding.at is None:
        return Declined(why="the finding names no line")
    if "in_library" in dict(finding.evidence) and finding.code not in REWRITTEN_IN_LIBRARIES:
        return Declined(why="it is a library's code")
    masked = mask(source)
    if isinstance(masked, Declined):
        return masked
    made = _applied(code_fix, masked.text, finding, elsewhere)
    if isinstance(made, Declined):
        return made
    text, tolerance = (made.text, made.tolerance) if isinstance(made, Compared) else (made, None)
    if (problem := is_python(text)) is not None:
        return Declined(why=f"the rewrite is no Python: {problem.why}")
    again = _again(code_fix, masked.text, text, finding)
    if again is not None:
        return again
    new = masked.restore(text)
    if new is None:
        return Declined(why="a magic or shell line stands in what would be rewritten")
    if new == source:
        return Declined(why="it is written that way already", line=finding.at.line)
    return Rewritten(source=new, diff=unified_diff(source, new, finding.at.file), tolerance=tolerance)


def _applied(code_fix: CodeFix, text: str, finding: Finding, elsewhere: Collection[str]) -> str | Compared | Declined:
    try:
        return code_fix(Code(text, elsewhere), finding)
    except cst.ParserSyntaxError as error:
        return Declined(why=f"the source cannot be parsed: {error.message}", line=error.raw_line)
    except RecursionError:
        return Declined(why="the source is nested too deeply")


def _again(code_fix: CodeFix, old: str, new: str, finding: Finding) -> Declined | None:
    """A fix that finds something to do in what it made is not offered."""
    there = moved(finding, old, new)
    if there is None:
        return None
    text = _applied(code_fix, new, there, ())
    if isinstance(text, Declined) or (text.text if isinstance(text, Compared) else text) == new:
        return None
    return Declined(why="one rewrite is not enough here", line=finding.at.line if finding.at else None)


def moved(finding: Finding, old: str, new: str) -> Finding | None:
    """`finding` with its line as it is in `new`; None where the line is gone."""
    if finding.at is None:
        return finding
    line = moved_line(finding.at.line, old, new)
    return None if line is None else replace(finding, at=replace(finding.at, line=line))


def moved_line(line: int, old: str, new: str) -> int | None:
    """Where the line numbered `line` of `old` stands in `new`; None where it is gone."""
    before, after = old.split("\n"), new.split("\n")
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if i1 < line <= i2:
            offset = line - 1 - i1
            if tag == "equal":
                return j1 + offset + 1
            return _most_alike(before[line - 1], after, j1, j2) if tag == "replace" else None
    return None


def _most_alike(line: str, after: list[str], first: int, end: int) -> int:
    ratios = [difflib.SequenceMatcher(None, line, after[index]).ratio() for index in range(first, end)]
    return first + ratios.index(max(ratios)) + 1
