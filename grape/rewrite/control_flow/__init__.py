"""Control flow that may follow a tensor, rewritten to calls that move it to the device: a pure function of source.

The meaning of the calls is that of `grape.runtime.predication.flow`; docs/control-flow.md shows each construct.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import libcst as cst

from ..result import Refused
from .lines import marked, without_markers
from .lower import Lowerer
from .plain import FLOW
from .safety import Leave, descendants

__all__ = ["Construct", "Left", "Refused", "Rewritten", "rewrite_control_flow"]

_IMPORT = f"from grape import flow as {FLOW}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Construct:
    """What was rewritten: "if", "while", "for", "ternary", "and", "or", "not", "comparison", "assert"."""

    kind: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What stays as it is, and why."""

    line: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """`lines[i]` is the original line that line `i + 1` of `source` comes from. All lines count as in the file."""

    source: str
    constructs: tuple[Construct, ...]
    left: tuple[Left, ...]
    lines: tuple[int, ...]


def rewrite_control_flow(
    source: str, *, filename: str, first_line: int = 1, only_lines: Collection[int] | None = None
) -> Rewritten | Refused:
    """Rewrite the control flow of a module or cell whose conditions may be tensors.

    `source` is plain Python whose first line is line `first_line` of `filename`; `only_lines` limits the constructs
    to those whose head is on one of these lines (of the file). A source without anything to rewrite comes back
    unchanged. `Refused`: the source is no Python, or nothing that was asked for can be rewritten.
    """
    try:
        module = marked(source)
    except cst.ParserSyntaxError as error:
        return Refused(why=f"{filename} is no Python: {error.message}", line=error.raw_line + first_line - 1)
    offset = first_line - 1

    def wanted(first: int, last: int) -> bool:
        return only_lines is None or any(first + offset <= line <= last + offset for line in only_lines)

    names = {node.value for node in descendants(module) if isinstance(node, cst.Name)}
    refused: set[int] = set()
    reasons: list[Left] = []
    while True:
        lowerer = Lowerer(wanted, refused, names)
        try:
            lowered = lowerer.module(module)
            break
        except Leave as leave:
            culprits = lowerer.culprits.get(leave.construct, set()) | {leave.construct}
            if culprits <= refused:
                return Refused(why=leave.why, line=leave.line + offset)
            refused |= culprits
            reasons.append(Left(line=leave.line + offset, why=leave.why))
    left = [*reasons, *(Left(line=line + offset, why=why) for _, line, why in lowerer.left)]
    if not lowerer.found:
        if left:
            return Refused(why=left[0].why, line=left[0].line)
        lowered = module
    elif _IMPORT not in source:
        lowered = _with_import(lowered)
    text, lines = without_markers(lowered.code)
    return Rewritten(
        source=text,
        constructs=tuple(Construct(kind=kind, line=line + offset) for kind, line in _in_order(lowerer.found)),
        left=tuple(left),
        lines=tuple(line + offset for line in lines),
    )


def _in_order(found: list[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted(set(found), key=lambda item: (item[1], item[0]))


def _with_import(module: cst.Module) -> cst.Module:
    """The import of `_flow`, behind a docstring and `from __future__` imports."""
    position = 0
    for index, statement in enumerate(module.body):
        small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        docstring = index == 0 and isinstance(small, cst.Expr) and isinstance(small.value, cst.SimpleString)
        future = isinstance(small, cst.ImportFrom) and getattr(small.module, "value", None) == "__future__"
        if docstring or future:
            position = index + 1
    imported = cst.parse_statement(_IMPORT)
    return module.with_changes(body=[*module.body[:position], imported, *module.body[position:]])
