"""What lowering any statement needs: flags in the place of jumps, expressions that decide, names that nobody uses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import libcst as cst

from .build import call, statement
from .context import Context, Scope
from .expressions import rewrite_expressions
from .facts.jumps import Jump
from .facts.plain import flow_call, is_plain
from .facts.safety import Leave
from .guards import guard, small_statements
from .lines import line_of, lines_of
from .selection import Selection
from .tree import Statements


class Rewriter(Selection):
    """Rewrites one module. `found` and `left` tell what became of its constructs, with their lines."""

    def __init__(self, wanted: Callable[[int, int], bool], refused: Collection[int], taken: Collection[str]) -> None:
        super().__init__(wanted, refused)
        self._taken = set(taken)
        self.found: list[tuple[str, int]] = []
        self.left: list[tuple[str, int, str]] = []
        self._globals: frozenset[str] = frozenset()

    def block(self, statements: Sequence[cst.BaseStatement], context: Context) -> Statements:
        """The statements with what is in them lowered; `Lowerer` does it."""
        raise NotImplementedError

    def with_flags(
        self, node: cst.BaseStatement, needs: frozenset[Jump], rest: Statements, context: Context
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
            before += [statement(f"{result[0]}, {result[1]} = False, _flow.NOTHING", lines)]
        if "continue" in needs and context.skip is None:
            inner = replace(inner, skip=self.name("_continue", lines[0]))
            before += [statement(f"{inner.skip} = False", lines)]
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
        orelse = [statement(f"return {inner.result[1]}", lines)] if returns_here and inner.result else []
        if rest or orelse:
            rest = [guard(tests, rest, orelse, lines)]
        return before, inner, rest

    def simple(self, line: cst.SimpleStatementLine, context: Context) -> Statements:
        """A line of small statements: decisions inside expressions, and jumps."""
        if self.wants(line):
            visited = self.expressions(line, line, context.scope)
            assert isinstance(visited, cst.SimpleStatementLine)
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

    def _checked(self, small: cst.BaseSmallStatement, line: object, context: Context) -> cst.BaseSmallStatement:
        if not isinstance(small, cst.Assert):
            return small
        if is_plain(small.test, context.scope.plain) and flow_call(small.test) in ("", "check"):
            return small
        self.found.append(("assert", line_of(line)))
        text = [small.msg] if isinstance(small.msg, cst.SimpleString) else []
        return small.with_changes(test=call("check", small.test, *text))

    def expressions(self, node: cst.CSTNode, statement: object, scope: Scope) -> cst.CSTNode:
        line = line_of(statement)
        return rewrite_expressions(
            node,
            scope.plain,
            lambda construct: self.found.append((construct, line)),
            lambda construct, why: self.left.append((construct, line, why)),
        )

    def head(self, node: cst.BaseExpression, statement: object, context: Context) -> cst.BaseExpression:
        """The expression in the head of a compound statement."""
        made = self.expressions(node, statement, context.scope) if self.wants(statement) else node
        assert isinstance(made, cst.BaseExpression)
        return made

    def name(self, stem: str, line: int) -> str:
        """A name that the person does not use."""
        name, count = f"{stem}_{line}", 1
        while name in self._taken:
            count += 1
            name = f"{stem}_{line}_{count}"
        self._taken.add(name)
        return name
