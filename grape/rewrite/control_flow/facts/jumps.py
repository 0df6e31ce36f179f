"""Where `break`, `continue` and `return` lead out of a piece of code."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import libcst as cst

from ..tree import children

Jump = Literal["break", "continue", "return"]
NONE: frozenset[Jump] = frozenset()
RETURN: frozenset[Jump] = frozenset(("return",))


def jumps(*nodes: cst.CSTNode) -> frozenset[Jump]:
    """The kinds of jump that lead out of these statements."""
    return NONE.union(*map(_jumps, nodes))


@lru_cache(maxsize=8192)
def _jumps(node: cst.CSTNode) -> frozenset[Jump]:
    if isinstance(node, cst.Break):
        return frozenset(("break",))
    if isinstance(node, cst.Continue):
        return frozenset(("continue",))
    if isinstance(node, cst.Return):
        return RETURN
    if isinstance(node, (cst.For, cst.While)):
        inside = jumps(*node.body.body) & RETURN
        return inside if node.orelse is None else inside | _jumps(node.orelse)
    if isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.BaseExpression)):
        return NONE
    return jumps(*children(node))


def always_jumps(statements: Sequence[cst.CSTNode]) -> bool:
    """True where these statements certainly do not come to their end."""
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
