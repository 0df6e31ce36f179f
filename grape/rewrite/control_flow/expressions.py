"""Expressions that decide: ternaries, `and`, `or`, `not`, chained comparisons."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from .build import call, lambda_of
from .facts.plain import is_plain
from .tree import contains

_ORDER = (cst.LessThan, cst.LessThanEqual, cst.GreaterThan, cst.GreaterThanEqual, cst.Equal, cst.NotEqual)
_STUCK = (cst.NamedExpr, cst.Await, cst.Yield)


class _Expressions(cst.CSTTransformer):
    def __init__(self, plain: frozenset[str], found: Callable[[str], None], left: Callable[[str, str], None]) -> None:
        self._plain = plain
        self._found = found
        self._left = left

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        return False

    def leave_IfExp(self, original_node: cst.IfExp, updated_node: cst.IfExp) -> cst.BaseExpression:
        if is_plain(original_node.test, self._plain):
            return updated_node
        if self._stuck("ternary", original_node.body, original_node.orelse):
            return updated_node
        self._found("ternary")
        return call("branch", updated_node.test, lambda_of(updated_node.body), lambda_of(updated_node.orelse))

    def leave_BooleanOperation(
        self, original_node: cst.BooleanOperation, updated_node: cst.BooleanOperation
    ) -> cst.BaseExpression:
        if is_plain(original_node.left, self._plain):
            return updated_node
        name = "and" if isinstance(original_node.operator, cst.And) else "or"
        if self._stuck(name, original_node.right):
            return updated_node
        self._found(name)
        return call("both" if name == "and" else "either", updated_node.left, lambda_of(updated_node.right))

    def leave_UnaryOperation(
        self, original_node: cst.UnaryOperation, updated_node: cst.UnaryOperation
    ) -> cst.BaseExpression:
        if not isinstance(original_node.operator, cst.Not) or is_plain(original_node.expression, self._plain):
            return updated_node
        self._found("not")
        return call("negate", updated_node.expression)

    def leave_Comparison(self, original_node: cst.Comparison, updated_node: cst.Comparison) -> cst.BaseExpression:
        targets = updated_node.comparisons
        if len(targets) < 2 or is_plain(original_node, self._plain):
            return updated_node
        between = [target.comparator for target in targets[:-1]]
        if not all(isinstance(target.operator, _ORDER) for target in targets) or not all(
            isinstance(node, (cst.Name, cst.BaseNumber)) for node in between
        ):
            self._left("comparison", "a chained comparison whose middle is more than a name")
            return updated_node
        if self._stuck("comparison", original_node):
            return updated_node
        self._found("comparison")
        lefts = [updated_node.left, *between]
        parts = [cst.Comparison(left, [target]) for left, target in zip(lefts, targets, strict=True)]
        made: cst.BaseExpression = parts[-1]
        for part in reversed(parts[:-1]):
            made = call("both", part, lambda_of(made))
        return made

    def _stuck(self, construct: str, *nodes: cst.CSTNode) -> bool:
        stuck = any(contains(node, *_STUCK) for node in nodes)
        if stuck:
            self._left(construct, "the expression binds a name or is suspended")
        return stuck


def rewrite_expressions(
    node: cst.CSTNode, plain: frozenset[str], found: Callable[[str], None], left: Callable[[str, str], None]
) -> cst.CSTNode:
    """`node` with every decision in it that may be a tensor's written as a call; `found` is told of each."""
    if not contains(node, cst.IfExp, cst.BooleanOperation, cst.UnaryOperation, cst.Comparison):
        return node
    visited = node.visit(_Expressions(plain, found, left))
    assert isinstance(visited, cst.CSTNode)
    return visited
