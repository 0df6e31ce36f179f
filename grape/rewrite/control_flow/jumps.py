"""Where `break`, `continue` and `return` lead out of a piece of code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import libcst as cst

__all__ = ["NONE", "Jump", "always_jumps", "jumps", "returns_of"]

Jump = Literal["break", "continue", "return"]
NONE: frozenset[Jump] = frozenset()


def returns_of(kinds: frozenset[Jump]) -> frozenset[Jump]:
    """ "return", if it is among them."""
    return frozenset(kind for kind in kinds if kind == "return")


def jumps(*nodes: cst.CSTNode) -> frozenset[Jump]:
    """The kinds of jump that lead out of these statements."""
    return frozenset(kind for node in nodes for kind in _jumps(node))


def _jumps(node: cst.CSTNode) -> Iterator[Jump]:
    if isinstance(node, cst.Break):
        yield "break"
    elif isinstance(node, cst.Continue):
        yield "continue"
    elif isinstance(node, cst.Return):
        yield "return"
    elif isinstance(node, (cst.For, cst.While)):
        if "return" in jumps(*node.body.body):
            yield "return"
        if node.orelse is not None:
            yield from _jumps(node.orelse)
    elif not isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.BaseExpression)):
        for child in node.children:
            yield from _jumps(child)


def always_jumps(statements: Sequence[cst.CSTNode]) -> bool:
    """Whether these statements certainly do not come to their end."""
    return any(_always(statement) for statement in statements)


def _always(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.SimpleStatementLine):
        return always_jumps(node.body)
    if isinstance(node, (cst.Break, cst.Continue, cst.Return)):
        return True
    if isinstance(node, cst.If):
        if node.orelse is None:
            return False
        other = _always(node.orelse) if isinstance(node.orelse, cst.If) else always_jumps(node.orelse.body.body)
        return other and always_jumps(node.body.body)
    return False  # a with may swallow the exception that ends its body
