"""Control flow that may follow a tensor, rewritten to calls that move it to the device: a pure function of source.

The meaning of the calls is that of `grape.runtime.predication.flow`; docs/control-flow.md shows each construct.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import libcst as cst

from ..result import Declined
from .facts.plain import FLOW
from .facts.safety import Leave
from .lines import marked, without_markers
from .lower import Lowerer
from .tree import descendants

__all__ = ["FLOW_IMPORT", "Construct", "Declined", "Left", "RewrittenFlow", "rewrite_control_flow"]

_PASSES = 4
FLOW_IMPORT = f"from grape import flow as {FLOW}"
"""The first line of rewritten source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Construct:
    """A construct that was rewritten: "if", "while", "for", "ternary", "and", "or", "not", "comparison", "assert"."""

    kind: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A construct that stays as it is, and why."""

    line: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenFlow:
    """`lines[i]` is the original line that line `i + 1` of `source` comes from. All lines count as in the file."""

    source: str
    constructs: tuple[Construct, ...]
    left: tuple[Left, ...]
    lines: tuple[int, ...]


def rewrite_control_flow(
    source: str, *, filename: str, first_line: int = 1, only_lines: Collection[int] | None = None
) -> RewrittenFlow | Declined:
    """Rewrite the control flow of a module or cell whose conditions may be tensors.

    `source` is plain Python whose first line is line `first_line` of `filename`; `only_lines` limits the constructs
    to those whose head is on one of these lines (of the file). A source without anything to rewrite comes back
    unchanged. `Declined`: the source is no Python, or nothing that was asked for can be rewritten.
    """
    offset = first_line - 1
    made = _rewrite(source, filename, partial(_among, None, offset, only_lines))
    if isinstance(made, RewrittenFlow) and made.left:
        # What stays in the first pass may be free in the second: then it is done now, so that twice is once.
        for _ in range(_PASSES):
            origins = made.lines
            again = _rewrite(made.source, filename, partial(_among, origins, offset, only_lines))
            if isinstance(again, Declined) or not again.constructs:
                break
            made = RewrittenFlow(
                source=again.source,
                constructs=(
                    *made.constructs,
                    *(replace(item, line=origins[item.line - 1]) for item in again.constructs),
                ),
                left=tuple(Left(line=origins[item.line - 1], why=item.why) for item in again.left),
                lines=tuple(origins[line - 1] for line in again.lines),
            )
    if isinstance(made, Declined):
        return Declined(why=made.why, line=None if made.line is None else made.line + offset)
    return RewrittenFlow(
        source=made.source,
        constructs=tuple(
            Construct(kind=item.kind, line=item.line + offset)
            for item in sorted(set(made.constructs), key=lambda item: (item.line, item.kind))
        ),
        left=tuple(Left(line=item.line + offset, why=item.why) for item in made.left),
        lines=tuple(line + offset for line in made.lines),
    )


def _among(origins: Sequence[int] | None, offset: int, only_lines: Collection[int] | None, line: int) -> bool:
    original = line if origins is None else origins[line - 1]
    return only_lines is None or original + offset in only_lines


def _rewrite(source: str, filename: str, wanted: Callable[[int], bool]) -> RewrittenFlow | Declined:
    """One pass. Lines count in `source`."""
    try:
        module = marked(source)
    except cst.ParserSyntaxError as error:
        return Declined(why=f"{filename} is no Python: {error.message}", line=error.raw_line)

    def selects(first: int, last: int) -> bool:
        return any(wanted(line) for line in range(first, last + 1))

    names = {node.value for node in descendants(module) if isinstance(node, cst.Name)}
    if FLOW in names and FLOW_IMPORT not in source:
        return Declined(why=f"the source has a name {FLOW} of its own, which the rewrite would need")
    refused: set[int] = set()
    left: list[Left] = []
    while True:
        lowerer = Lowerer(selects, refused, names)
        try:
            lowered = lowerer.module(module)
            break
        except Leave as leave:
            culprits = lowerer.culprits.get(leave.construct, set()) | {leave.construct}
            if culprits <= refused:
                return Declined(why=leave.why, line=leave.line)
            refused |= culprits
            left.append(Left(line=leave.line, why=leave.why))
    left += [Left(line=line, why=why) for _, line, why in lowerer.left]
    if not lowerer.found:
        if left:
            return Declined(why=left[0].why, line=left[0].line)
        return RewrittenFlow(source=source, constructs=(), left=(), lines=tuple(range(1, source.count("\n") + 2)))
    if FLOW_IMPORT not in source:
        lowered = _with_import(lowered)
    text, lines = without_markers(lowered.code)
    constructs = tuple(Construct(kind=kind, line=line) for kind, line in set(lowerer.found))
    return RewrittenFlow(source=text, constructs=constructs, left=tuple(left), lines=lines)


def _with_import(module: cst.Module) -> cst.Module:
    """The import of `_flow`, behind a docstring and `from __future__` imports."""
    position = 0
    for index, statement in enumerate(module.body):
        small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        docstring = index == 0 and isinstance(small, cst.Expr) and isinstance(small.value, cst.SimpleString)
        future = isinstance(small, cst.ImportFrom) and getattr(small.module, "value", None) == "__future__"
        if docstring or future:
            position = index + 1
    imported = cst.parse_statement(FLOW_IMPORT)
    return module.with_changes(body=[*module.body[:position], imported, *module.body[position:]])
