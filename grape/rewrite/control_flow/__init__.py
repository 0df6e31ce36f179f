"""Control flow that may follow a tensor, rewritten to calls that move it to the device: a pure function of source.

The meaning of the calls is that of `grape.runtime.predication.flow`; docs/control-flow.md shows each construct.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import libcst as cst

from ..code import with_import
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
    """`lines[i]` is the original line that line `i + 1` of `source` comes from."""

    source: str
    constructs: tuple[Construct, ...]
    left: tuple[Left, ...]
    lines: tuple[int, ...]


def rewrite_control_flow(
    source: str, *, filename: str, only_lines: Collection[int] | None = None
) -> RewrittenFlow | Declined:
    """Rewrite the control flow of a module or cell whose conditions may be tensors.

    `source` is plain Python; `only_lines` limits the constructs to those whose head is on one of these lines. A source
    without anything to rewrite comes back unchanged. `Declined`: the source is no Python, or nothing that was asked for
    can be rewritten.
    """
    made = _rewrite(source, filename, partial(_among, None, only_lines))
    if isinstance(made, Declined):
        return made
    # What stays in the first pass may be free in the second: then it is done now, so that twice is once.
    for _ in range(_PASSES if made.left else 0):
        origins = made.lines
        again = _rewrite(made.source, filename, partial(_among, origins, only_lines))
        if isinstance(again, Declined) or not again.constructs:
            break
        later = [replace(item, line=origins[item.line - 1]) for item in again.constructs]
        made = RewrittenFlow(
            source=again.source,
            constructs=(*made.constructs, *later),
            left=tuple(Left(line=origins[item.line - 1], why=item.why) for item in again.left),
            lines=tuple(origins[line - 1] for line in again.lines),
        )
    return replace(made, constructs=tuple(sorted(set(made.constructs), key=lambda item: (item.line, item.kind))))


def _among(origins: Sequence[int] | None, only_lines: Collection[int] | None, line: int) -> bool:
    return only_lines is None or (line if origins is None else origins[line - 1]) in only_lines


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
        lowered = with_import(lowered, FLOW_IMPORT)
    text, lines = without_markers(lowered.code)
    constructs = tuple(Construct(kind=kind, line=line) for kind, line in set(lowerer.found))
    return RewrittenFlow(source=text, constructs=constructs, left=tuple(left), lines=lines)
