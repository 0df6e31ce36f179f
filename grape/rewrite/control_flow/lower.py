"""From statements that jump and branch to calls of `_flow`: the order of a person's statements is kept.

A construct is *selected* when its condition may be a tensor's. Bodies of selected constructs become functions, so a
jump out of one cannot stay a jump. Three forms take its place, the simplest that is right:

- what follows an `if` with an arm that always jumps moves into the other arm;
- at the end of a function `return` stays, and the call's result is returned; at the end of an iteration `continue`
  is nothing;
- everywhere else a flag is set, and what follows is guarded by it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import libcst as cst

from .build import call
from .context import Context, Scope
from .expressions import rewrite_expressions
from .facts.jumps import Jump, always_jumps
from .facts.names import bound_after, exposed
from .facts.plain import is_flow_call, is_plain
from .facts.safety import Leave
from .facts.scopes import is_compiled, own_names, plain_names, shared_names
from .guards import flags_set, guard, rest_moved, small_statements
from .lines import line_of, lines_of
from .selection import Selection
from .tree import descendants

__all__ = ["Lowerer"]

Statements = list[Any]


class Lowerer(Selection):
    """Rewrites one module. `found` and `left` tell what became of its constructs, with their lines."""

    def __init__(self, wanted: Callable[[int, int], bool], refused: Collection[int], taken: Collection[str]) -> None:
        super().__init__(wanted, refused)
        self._taken = set(taken)
        self.found: list[tuple[str, int]] = []
        self.left: list[tuple[str, int, str]] = []
        self._globals: frozenset[str] = frozenset()

    def block(self, statements: Sequence[Any], context: Context) -> Statements:
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

    def _compound(self, node: Any, rest: Statements, context: Context) -> tuple[Statements, Statements, frozenset[str]]:
        """The lowered statement, what is still to do after it, and the names bound by then."""
        from . import branches, loops

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
        by_tail = (not needs & {"return"} or context.tail or context.result is not None) and (
            not needs & {"continue"} or context.iteration_tail or context.skip is not None
        )
        return by_tail

    def with_flags(
        self, node: Any, needs: frozenset[Jump], rest: Statements, context: Context
    ) -> tuple[Statements, Context, Statements]:
        """Flags for the jumps out of `node`: their initialization, the context for `node`, and `rest` guarded."""
        lines = lines_of(node) or (1, 1)
        before: Statements = []
        inner = replace(context, tail=False, iteration_tail=False)
        returns_here = "return" in needs and context.result is None
        if returns_here:
            if not context.tail:
                raise Leave(lines[0], lines[0], "a return out of a construct that Grape cannot split")
            result = (self.name("_return", lines[0]), self.name("_value", lines[0]))
            inner = replace(inner, result=result)
            before += [flags_set(f"{result[0]}, {result[1]} = False, _flow.NOTHING", lines)]
        if "continue" in needs and context.skip is None:
            inner = replace(inner, skip=self.name("_continue", lines[0]))
            before += [flags_set(f"{inner.skip} = False", lines)]
        if "break" in needs and context.stop is None:
            raise Leave(lines[0], lines[0], "a break out of a construct that Grape cannot split")
        self.blame(lines[0], node, context.scope)
        tests: list[str] = []
        if inner.stop is not None and needs & {"break", "return"}:
            tests.append(inner.stop)  # a return sets it too
        elif inner.result is not None and "return" in needs:
            tests.append(inner.result[0])
        if inner.skip is not None and "continue" in needs:
            tests.append(inner.skip)
        orelse = [flags_set(f"return {inner.result[1]}", lines)] if returns_here and inner.result else []
        if rest or orelse:
            rest = [guard(tests, rest, orelse, lines)]
        return before, inner, rest

    def simple(self, line: cst.SimpleStatementLine, context: Context) -> Statements:
        """A line of small statements: decisions inside expressions, and jumps."""
        if self.wants(line):
            visited: Any = self.expressions(line, line, context.scope)
            line = visited.with_changes(body=[self._checked(item, line, context) for item in visited.body])
        last = line.body[-1]
        replaced = self._jump(last, context)
        if replaced is None:
            return [line]
        return [line.with_changes(body=[*line.body[:-1], *replaced])]

    def _jump(self, small: cst.BaseSmallStatement, context: Context) -> list[cst.BaseSmallStatement] | None:
        """The statements in the place of a jump; None where it stays."""
        if isinstance(small, cst.Break) and context.step:
            assert context.stop is not None
            return small_statements(f"{context.stop} = True")
        if isinstance(small, cst.Continue) and context.step:
            return small_statements("pass" if context.skip is None else f"{context.skip} = True")
        if isinstance(small, cst.Return) and context.result is not None:
            done, value = context.result
            made = small_statements(" = ".join([*context.stops, done, "True"]))
            target = cst.AssignTarget(cst.Name(value))
            return [*made, cst.Assign([target], small.value or cst.Name("None"))]
        return None

    def _checked(self, small: Any, line: Any, context: Context) -> Any:
        if not isinstance(small, cst.Assert) or is_plain(small.test, context.scope.plain):
            if not (isinstance(small, cst.Assert) and is_flow_call(small.test)):
                return small
            assert isinstance(small.test, cst.Call) and isinstance(small.test.func, cst.Attribute)
            if small.test.func.attr.value == "check":
                return small
        self.found.append(("assert", line_of(line)))
        text = [small.msg] if isinstance(small.msg, cst.SimpleString) else []
        return small.with_changes(test=call("check", small.test, *text))

    def expressions(self, node: Any, statement: Any, scope: Scope) -> Any:
        line = line_of(statement)
        return rewrite_expressions(
            node,
            scope.plain,
            lambda construct: self.found.append((construct, line)),
            lambda construct, why: self.left.append((construct, line, why)),
        )

    def head(self, node: cst.BaseExpression, statement: Any, context: Context) -> Any:
        """The expression in the head of a compound statement."""
        return self.expressions(node, statement, context.scope) if self.wants(statement) else node

    # -- scopes ------------------------------------------------------------------------------------------------------

    def definition(self, node: Any) -> Any:
        """A function or class, with what is inside rewritten."""
        if isinstance(node.body, cst.SimpleStatementSuite) or is_compiled(node):
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

    def name(self, stem: str, line: int) -> str:
        """A name that the person does not use."""
        name, count = f"{stem}_{line}", 1
        while name in self._taken:
            count += 1
            name = f"{stem}_{line}_{count}"
        self._taken.add(name)
        return name
