"""Which constructs are wanted, and which jumps cannot stay jumps because of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import libcst as cst

from .context import Context, Scope
from .facts.jumps import NONE, RETURN, Jump, jumps
from .facts.names import bound_after
from .facts.plain import is_plain
from .guards import arms_of, is_guard
from .lines import line_of, lines_of
from .tree import Statements, descendants


class Selection:
    """The constructs of one module that are rewritten.

    `wanted(first, last)` tells whether a construct whose head is on those lines is asked for; those on `refused` lines
    stay. `culprits[line]` are the lines of what is left as it is if what the construct on `line` needs is refused.
    """

    def __init__(self, wanted: Callable[[int, int], bool], refused: Collection[int]) -> None:
        self._wanted = wanted
        self._refused = refused
        self.culprits: dict[int, set[int]] = {}

    def wants(self, statement: object) -> bool:
        lines = lines_of(statement)
        return lines is not None and lines[0] not in self._refused and self._wanted(*lines)

    def selected(self, node: object, scope: Scope) -> bool:
        if isinstance(node, cst.If) and is_guard(node):
            return True
        return isinstance(node, (cst.If, cst.While)) and not is_plain(node.test, scope.plain) and self.wants(node)

    def crosses(self, node: object, scope: Scope) -> frozenset[Jump]:
        """The jumps out of `node` that leave a selected construct on their way."""
        if isinstance(node, cst.If):
            if self.selected(node, scope):
                return jumps(node)
            return self._any(arms_of(node), scope)
        if isinstance(node, (cst.For, cst.While)):
            return (self.crosses_inside(node, scope) & RETURN) | self._any(
                [node.orelse.body.body] if node.orelse is not None else [], scope
            )
        if isinstance(node, (cst.With, cst.Try, cst.TryStar)):
            return self._any([block.body for block in _blocks(node)], scope)
        return frozenset()

    def crosses_inside(self, loop: cst.For | cst.While, scope: Scope) -> frozenset[Jump]:
        inside = self._any([loop.body.body], scope)
        return inside | jumps(*loop.body.body) if self.selected(loop, scope) else inside

    def _any(self, blocks: Sequence[Sequence[object]], scope: Scope) -> frozenset[Jump]:
        return NONE.union(*(self.crosses(item, scope) for block in blocks for item in block))

    def converted(self, loop: cst.For | cst.While, context: Context) -> bool:
        """True where the body of a loop becomes a function or its jumps flags."""
        if self.selected(loop, context.scope) or self.crosses_inside(loop, context.scope):
            return True
        return context.result is not None and "return" in jumps(*loop.body.body)

    def needs(self, node: cst.CSTNode, context: Context) -> frozenset[Jump]:
        """The jumps out of `node` that cannot stay jumps in `context`."""
        if isinstance(node, (cst.For, cst.While)):
            inside = jumps(*node.body.body) & RETURN if self.converted(node, context) else NONE
            orelse = node.orelse
            if orelse is None:
                return inside
            outer = self._any([orelse.body.body], context.scope) | (jumps(*orelse.body.body) & context.flagged())
            return inside | outer
        return self.crosses(node, context.scope) | (jumps(node) & context.flagged())

    def bound_at_end(self, statements: Statements, context: Context) -> frozenset[str]:
        """The names certainly bound where the function made of these statements ends."""
        bound = context.bound
        for statement in statements:
            compound = not isinstance(statement, cst.SimpleStatementLine)
            if compound and self.needs(statement, context):
                break
            bound = bound_after([statement], bound)
        return bound

    def blame(self, line: int, node: cst.CSTNode, scope: Scope) -> None:
        """The constructs that are left as they are if what `node` on `line` needs is refused."""
        found = self.culprits.setdefault(line, set())
        for item in descendants(node):
            if self.selected(item, scope) and not (isinstance(item, cst.If) and is_guard(item)) and jumps(item):
                found.add(line_of(item))
            if isinstance(item, (cst.For, cst.While)) and self.crosses_inside(item, scope):
                found |= {
                    line_of(part)
                    for part in descendants(item.body)
                    if self.selected(part, scope) and self.crosses(part, scope)
                }


def _blocks(node: cst.With | cst.Try | cst.TryStar) -> list[cst.BaseSuite]:
    if isinstance(node, cst.With):
        return [node.body]
    last = [part.body for part in (node.orelse, node.finalbody) if part is not None]
    return [node.body, *(handler.body for handler in node.handlers), *last]
