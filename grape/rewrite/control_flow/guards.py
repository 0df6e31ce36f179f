"""Puts something in the place of a jump: flags, guards of what follows, and code that moves into the other arm."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from .build import block_of, call
from .facts.jumps import always_jumps
from .facts.names import Statement
from .facts.plain import flow_call
from .lines import marker
from .tree import Statements


def is_guard(node: cst.If) -> bool:
    """True where this is no `if` of the person's, but the rest of a block under a flag."""
    return flow_call(node.test) == "negate"


def guard(flags: Sequence[str], body: Statements, orelse: Statements, lines: tuple[int, int]) -> cst.If:
    """`body` where none of the flags is set, else `orelse`."""
    test = cst.parse_expression(flags[-1])
    for flag in reversed(flags[:-1]):
        test = call("either", flag, cst.Lambda(cst.Parameters(), test))
    return cst.If(
        call("negate", test),
        block_of(None, body),
        cst.Else(block_of(None, orelse)) if orelse else None,
        leading_lines=[marker(*lines)],
    )


def small_statements(code: str) -> list[cst.BaseSmallStatement]:
    parsed = cst.parse_statement(code)
    assert isinstance(parsed, cst.SimpleStatementLine)
    return list(parsed.body)


def arms_of(node: cst.If) -> list[Sequence[Statement]]:
    if node.orelse is None:
        return [node.body.body]
    other = [node.orelse] if isinstance(node.orelse, cst.If) else node.orelse.body.body
    return [node.body.body, other]


def rest_moved(node: cst.If, rest: Statements) -> tuple[cst.If, Statements]:
    """The statements that follow, moved into the arm that comes to its end, where the other one never does."""
    if not rest:
        return node, rest
    body, other = node.body.body, arms_of(node)[1] if node.orelse is not None else []
    ends, other_ends = always_jumps(body), always_jumps(other)
    if ends and not other_ends:
        suite = node.orelse.body if isinstance(node.orelse, cst.Else) else None
        lines = node.orelse.leading_lines if isinstance(node.orelse, cst.Else) else ()
        moved = cst.Else(block_of(suite, [*_as_lines(other), *rest]), leading_lines=lines)
        return node.with_changes(orelse=moved), []
    if other_ends and not ends:
        return node.with_changes(body=block_of(node.body, [*_as_lines(body), *rest])), []
    return (node, []) if ends and other_ends else (node, rest)


def _as_lines(statements: Sequence[Statement]) -> Statements:
    """Small statements of a one-line suite, as a line of their own."""
    small = [item for item in statements if isinstance(item, cst.BaseSmallStatement)]
    if small:
        return [cst.SimpleStatementLine(small)]
    return [item for item in statements if isinstance(item, cst.BaseStatement)]
