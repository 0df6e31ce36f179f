"""From statements that jump and branch to calls of `_flow`: the order of a person's statements is kept.

A construct is *selected* when its condition may be a tensor's. Bodies of selected constructs become functions, so a
jump out of one cannot stay a jump. Three forms take its place, the simplest that is right:

- what follows an `if` with an arm that always jumps moves into the other arm;
- at the end of a function `return` stays, and the call's result is returned; at the end of an iteration `continue`
  is nothing;
- everywhere else a flag is set, and what follows is guarded by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from . import branches, loops
from .context import Context, Scope
from .facts.jumps import Jump, always_jumps
from .facts.names import bound_after, exposed
from .facts.scopes import is_compiled, own_names, plain_names, shared_names
from .guards import rest_moved
from .rewriter import Rewriter
from .tree import Statements, descendants


class Lowerer(Rewriter):
    """Lowers statements in their order."""

    def block(self, statements: Sequence[cst.BaseStatement], context: Context) -> Statements:
        made: Statements = []
        rest = list(statements)
        while rest:
            statement, rest = rest[0], rest[1:]
            if isinstance(statement, cst.SimpleStatementLine):
                made += self.simple(statement, context)
                if always_jumps([statement]):
                    return made
            elif isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
                made.append(self.definition(statement))
            else:
                here, rest, bound = self._compound(statement, rest, context)
                made += here
                context = replace(context, bound=bound)
                continue
            context = replace(context, bound=bound_after([statement], context.bound))
        return made

    def _compound(
        self, node: cst.BaseStatement, rest: Statements, context: Context
    ) -> tuple[Statements, Statements, frozenset[str]]:
        """The lowered statement, what is still to do after it, and the names bound by then."""
        needs = self.needs(node, context)
        if needs and isinstance(node, cst.If):
            node, rest = rest_moved(node, rest)
            needs = self.needs(node, context)
        if isinstance(node, (cst.For, cst.While)) and self.converted(node, context):
            return loops.lower_loop(self, node, rest, context)
        before: Statements = []
        inner = context
        live = exposed(rest, context.live, context.exits)
        if needs and not self._can_stay(needs, rest, context):
            before, inner, rest = self.with_flags(node, needs, rest, context)
            live = exposed(rest, context.live, context.exits)
        elif rest:
            inner = replace(inner, tail=False, iteration_tail=False)
        inner = replace(inner, live=live, bound=bound_after(before, context.bound))
        made = before + branches.lower_block_statement(self, node, inner, needs)
        bound = inner.bound if needs else bound_after([node], inner.bound)
        return made, rest, bound

    def _can_stay(self, needs: frozenset[Jump], rest: Statements, context: Context) -> bool:
        """True where nothing is left to skip after these jumps."""
        if rest:
            return False
        return (not needs & {"return"} or context.tail or context.result is not None) and (
            not needs & {"continue"} or context.iteration_tail or context.skip is not None
        )

    # -- scopes ------------------------------------------------------------------------------------------------------

    def definition(self, node: cst.FunctionDef | cst.ClassDef) -> cst.BaseStatement:
        """A function or class, with what is inside rewritten."""
        if not isinstance(node.body, cst.IndentedBlock) or is_compiled(node):
            return node
        if isinstance(node, cst.ClassDef):
            body = [
                self.definition(item) if isinstance(item, (cst.FunctionDef, cst.ClassDef)) else item
                for item in node.body.body
            ]
            return node.with_changes(body=node.body.with_changes(body=body))
        parameters = frozenset(item.name.value for item in descendants(node.params) if isinstance(item, cst.Param))
        own = own_names(node.body) | parameters | self._globals
        scope = Scope(module=False, shared=shared_names(node.body), plain=plain_names(node.body), own=own)
        made = self.block(node.body.body, Context(scope=scope, bound=parameters))
        return node.with_changes(body=node.body.with_changes(body=made))

    def module(self, module: cst.Module) -> cst.Module:
        self._globals = own_names(module)
        scope = Scope(module=True, plain=plain_names(module), own=self._globals)
        return module.with_changes(body=self.block(module.body, Context(scope=scope, tail=False)))
