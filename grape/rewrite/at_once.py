"""Several fixes of one source, one after the other: each finds its line where the ones before it have moved it."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ..model import Finding
from .control_flow import RewrittenFlow, rewrite_control_flow
from .registry import fix, moved, moved_line
from .result import Declined
from .source import mask

FROM_SOURCE = frozenset({"GR102", "GR302"})
"""Rewrites that mean the same whatever the values are, so that nothing has to be tried."""

VERIFIED = FROM_SOURCE | {"GR101", "GR401"}
"""Rewrites that may run unread once they were compared: the source shows that they are right, for all shapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenCell:
    """`source` with the `applied` fixes; `refused` are those that do not go together with the ones before them.

    `lines[i]` is the line of the cell as it was typed that line `i + 1` of `source` stands for.
    """

    source: str
    lines: tuple[int, ...]
    applied: tuple[Finding, ...]
    refused: tuple[tuple[Finding, Declined], ...]

    def __str__(self) -> str:
        return ", ".join(f"{one.code} (line {one.at.line})" for one in self.applied if one.at is not None)


def fix_all(source: str, findings: Iterable[Finding], *, elsewhere: Collection[str] = ()) -> RewrittenCell:
    """Fix `findings`, all about this source, in their order; `elsewhere` as for `fix`."""
    current = source
    lines = tuple(range(1, source.count("\n") + 2))
    applied: list[Finding] = []
    refused: list[tuple[Finding, Declined]] = []
    for finding in findings:
        there = moved(finding, source, current)
        made = Declined(why="its line is gone") if there is None else fix(current, there, elsewhere=elsewhere)
        if isinstance(made, Declined):
            refused.append((finding, made))
            continue
        step = _lowered_lines(current, there, made.source) or _lines(current, made.source)
        lines = tuple(lines[line - 1] for line in step)
        applied.append(finding)
        current = made.source
    return RewrittenCell(source=current, lines=lines, applied=tuple(applied), refused=tuple(refused))


def _lowered_lines(old: str, finding: Finding | None, new: str) -> tuple[int, ...] | None:
    """The rewriter of control flow knows where each of its lines comes from."""
    masked = mask(old)
    if finding is None or finding.at is None or finding.code != "GR102" or isinstance(masked, Declined):
        return None
    made = rewrite_control_flow(masked.text, filename="cell", only_lines=(finding.at.line,))
    return made.lines if isinstance(made, RewrittenFlow) and len(made.lines) == new.count("\n") + 1 else None


def _lines(old: str, new: str) -> tuple[int, ...]:
    """The line of `old` for each line of `new`; a line that is new has the one above it."""
    before, after = old.split("\n"), new.split("\n")
    found: list[int] = []
    for tag, i1, _, j1, j2 in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            found += range(i1 + 1, i1 + 1 + j2 - j1)
        elif tag == "insert":
            found += [max(1, i1)] * (j2 - j1)
        elif tag == "replace":
            found += [moved_line(j + 1, new, old) or max(1, i1) for j in range(j1, j2)]
    return tuple(found)
