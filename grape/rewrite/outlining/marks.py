"""Constants that stand in a tree for objects that no tree can hold; the compiled code gets the objects instead."""

from __future__ import annotations

import ast
from typing import Any

LOOP = "loop"
RUN = "run"
_TOKEN = "\0grape outlining"


def mark_of(constant: object) -> tuple[str, int] | None:
    """The kind and number of a mark; None for any other constant."""
    if type(constant) is tuple and len(constant) == 3 and constant[0] == _TOKEN:
        return constant[1], constant[2]
    return None


def attribute_of(kind: str, number: int, name: str, at: ast.AST) -> ast.expr:
    """``<mark>.name``, at the position of `at`."""
    constant: Any = (_TOKEN, kind, number)
    mark = ast.copy_location(ast.Constant(constant), at)
    return ast.copy_location(ast.Attribute(mark, name, ast.Load()), at)


def call_of(kind: str, number: int, name: str, at: ast.AST, *arguments: ast.expr) -> ast.Call:
    """``<mark>.name(arguments)``, at the position of `at`."""
    return ast.copy_location(ast.Call(attribute_of(kind, number, name, at), list(arguments), []), at)
