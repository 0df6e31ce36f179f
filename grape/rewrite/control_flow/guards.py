"""Puts something in the place of a jump: flags, guards of what follows, and code that moves into the other arm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import libcst as cst

from .build import block_of, call, expression
from .facts.jumps import always_jumps
from .facts.plain import is_flow_call
from .lines import marker

__all__ = ["arms_of", "flags_set", "guard", "is_guard", "rest_moved", "small_statements"]

Statements = list[Any]


def is_guard(node: cst.If) -> bool:
    """True where this is no `if` of the person's, but the rest of a block under a flag."""
    test = node.test
    return is_flow_call(test) and isinstance(test, cst.Call) and bool(test.func.attr.value == "negate")  # type: ignore[attr-defined]


def guard(flags: Sequence[str], body: Statements, orelse: Statements, lines: tuple[int, int]) -> cst.If:
    """`body` where none of the flags is set, else `orelse`."""
    test = expression(flags[-1])
    for flag in reversed(flags[:-1]):
        test = call("either", flag, cst.Lambda(cst.Parameters(), test))
    return cst.If(
        call("negate", test),
        block_of(None, body),
        cst.Else(block_of(None, orelse)) if orelse else None,
        leading_lines=[marker(*lines)],
    )


def flags_set(code: str, lines: tuple[int, int]) -> cst.SimpleStatementLine:
    parsed = cst.parse_statement(code)
    assert isinstance(parsed, cst.SimpleStatementLine)
    return parsed.with_changes(leading_lines=[marker(*lines)])


def small_statements(code: str) -> list[cst.BaseSmallStatement]:
    parsed = cst.parse_statement(code)
    assert isinstance(parsed, cst.SimpleStatementLine)
    return list(parsed.body)


def arms_of(node: cst.If) -> list[Sequence[Any]]:
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


def _as_lines(statements: Sequence[Any]) -> Statements:
    """Small statements of a one-line suite, as a line of their own."""
    if statements and isinstance(statements[0], cst.BaseSmallStatement):
        return [cst.SimpleStatementLine(list(statements))]
    return list(statements)
