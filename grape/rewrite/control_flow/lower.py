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
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import libcst as cst

from .build import block_of, call, expression
from .expressions import rewrite_expressions
from .jumps import NONE, Jump, always_jumps, jumps, returns_of
from .lines import line_of, lines_of, marker
from .names import Exits, bound_after, exposed, uses_of
from .plain import is_flow_call, is_plain
from .safety import Leave
from .tree import descendants

__all__ = ["Context", "Lowerer", "Scope"]

Statements = list[Any]


@dataclass(frozen=True)
class Scope:
    """One function, or the cell itself (`module`). `shared` names are seen by nested functions or declared global."""

    module: bool
    shared: frozenset[str] = frozenset()
    plain: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Context:
    """Where a block stands. `live` names are read after it, `bound` ones are certainly bound before it.

    `tail`: the function ends with the block. `iteration_tail`: the iteration does. `stops`: the flags of the loops
    around, innermost last; `skip`: the flag of a `continue`; `result`: the flag and the value of a `return`.
    """

    scope: Scope
    live: frozenset[str] = frozenset()
    bound: frozenset[str] = frozenset()
    exits: Exits = field(default_factory=Exits)
    tail: bool = True
    iteration_tail: bool = False
    step: bool = False
    stop: str | None = None
    stops: tuple[str, ...] = ()
    skip: str | None = None
    result: tuple[str, str] | None = None

    def flagged(self) -> frozenset[Jump]:
        """The jumps that cannot stay jumps here, whatever they leave."""
        found: set[Jump] = set()
        if self.step:
            found |= {"break", "continue"}
        if self.result is not None:
            found.add("return")
        return frozenset(found)

    def flags(self, kinds: frozenset[Jump]) -> list[str]:
        """The names that jumps of these kinds assign."""
        names: list[str] = []
        if "break" in kinds and self.stop is not None:
            names.append(self.stop)
        if "continue" in kinds and self.skip is not None:
            names.append(self.skip)
        if "return" in kinds and self.result is not None:
            names += [*self.result, *(stop for stop in self.stops if stop not in names)]
        return names


class Lowerer:
    """Rewrites one module. `selects(statement)` tells whether a construct on those lines is wanted."""

    def __init__(self, wanted: Callable[[int, int], bool], refused: Collection[int], taken: Collection[str]) -> None:
        self._wanted = wanted
        self._refused = refused
        self._taken = set(taken)
        self.found: list[tuple[str, int]] = []
        self.left: list[tuple[str, int, str]] = []
        self.culprits: dict[int, set[int]] = {}

    # -- what is selected --------------------------------------------------------------------------------------------

    def wants(self, statement: Any) -> bool:
        lines = lines_of(statement)
        return lines is not None and lines[0] not in self._refused and self._wanted(*lines)

    def selected(self, node: Any, scope: Scope) -> bool:
        if isinstance(node, cst.If) and is_guard(node):
            return True
        return isinstance(node, (cst.If, cst.While)) and not is_plain(node.test, scope.plain) and self.wants(node)

    def crosses(self, node: Any, scope: Scope) -> frozenset[Jump]:
        """The jumps out of `node` that leave a selected construct on their way."""
        if isinstance(node, cst.If):
            if self.selected(node, scope):
                return jumps(node)
            return self._any(_arms(node), scope)
        if isinstance(node, (cst.For, cst.While)):
            return returns_of(self.crosses_inside(node, scope)) | self._any(
                [node.orelse.body.body] if node.orelse is not None else [], scope
            )
        if isinstance(node, (cst.With, cst.Try, cst.TryStar)):
            return self._any([part.body.body for part in _parts(node)], scope)
        return frozenset()

    def crosses_inside(self, loop: cst.For | cst.While, scope: Scope) -> frozenset[Jump]:
        inside = self._any([loop.body.body], scope)
        return inside | jumps(*loop.body.body) if self.selected(loop, scope) else inside

    def _any(self, blocks: Sequence[Sequence[Any]], scope: Scope) -> frozenset[Jump]:
        return NONE.union(*(self.crosses(item, scope) for block in blocks for item in block))

    def converted(self, loop: cst.For | cst.While, context: Context) -> bool:
        """Whether the body of a loop becomes a function or its jumps flags."""
        if self.selected(loop, context.scope) or self.crosses_inside(loop, context.scope):
            return True
        return context.result is not None and "return" in jumps(*loop.body.body)

    def needs(self, node: Any, context: Context) -> frozenset[Jump]:
        """The jumps out of `node` that cannot stay jumps in `context`."""
        if isinstance(node, (cst.For, cst.While)):
            inside = returns_of(jumps(*node.body.body)) if self.converted(node, context) else NONE
            orelse = node.orelse
            if orelse is None:
                return inside
            outer = self._any([orelse.body.body], context.scope) | (jumps(*orelse.body.body) & context.flagged())
            return inside | outer
        return self.crosses(node, context.scope) | (jumps(node) & context.flagged())

    def bound_at_end(self, statements: Sequence[Any], context: Context) -> frozenset[str]:
        """The names certainly bound where the function made of these statements ends."""
        bound = context.bound
        for statement in statements:
            compound = not isinstance(statement, cst.SimpleStatementLine)
            if compound and self.needs(statement, context):
                break
            bound = bound_after([statement], bound)
        return bound

    def blame(self, line: int, node: Any, scope: Scope) -> None:
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

    # -- statements --------------------------------------------------------------------------------------------------

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
            node, rest = _rest_moved(node, rest)
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
        """Whether nothing is left to skip after these jumps."""
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
            before += [_set(f"{result[0]}, {result[1]} = False, _flow.NOTHING", lines)]
        if "continue" in needs and context.skip is None:
            inner = replace(inner, skip=self.name("_continue", lines[0]))
            before += [_set(f"{inner.skip} = False", lines)]
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
        orelse = [_set(f"return {inner.result[1]}", lines)] if returns_here and inner.result else []
        if rest or orelse:
            rest = [guard(tests, rest, orelse, lines)]
        return before, inner, rest

    def simple(self, line: cst.SimpleStatementLine, context: Context) -> Statements:
        """A line of small statements: decisions inside expressions, and jumps."""
        if self.wants(line):
            visited: Any = self.expressions(line, line, context.scope)
            line = visited.with_changes(body=[self._checked(small, line, context) for small in visited.body])
        last = line.body[-1]
        replaced = self._jump(last, context)
        if replaced is None:
            return [line]
        return [line.with_changes(body=[*line.body[:-1], *replaced])]

    def _jump(self, small: cst.BaseSmallStatement, context: Context) -> list[cst.BaseSmallStatement] | None:
        """What stands in place of a jump; None where it stays."""
        if isinstance(small, cst.Break) and context.step:
            assert context.stop is not None
            return _small(f"{context.stop} = True")
        if isinstance(small, cst.Continue) and context.step:
            return _small("pass" if context.skip is None else f"{context.skip} = True")
        if isinstance(small, cst.Return) and context.result is not None:
            done, value = context.result
            made = _small(" = ".join([*context.stops, done, "True"]))
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
        if isinstance(node.body, cst.SimpleStatementSuite) or _is_compiled(node):
            return node
        if isinstance(node, cst.ClassDef):
            body = [
                self.definition(item) if isinstance(item, (cst.FunctionDef, cst.ClassDef)) else item
                for item in node.body.body
            ]
            return node.with_changes(body=node.body.with_changes(body=body))
        scope = Scope(module=False, shared=_shared(node.body), plain=_plain_names(node.body))
        parameters = frozenset(item.name.value for item in descendants(node.params) if isinstance(item, cst.Param))
        made = self.block(node.body.body, Context(scope=scope, bound=parameters))
        return node.with_changes(body=node.body.with_changes(body=made))

    def module(self, module: cst.Module) -> cst.Module:
        scope = Scope(module=True, plain=_plain_names(module))
        return module.with_changes(body=self.block(module.body, Context(scope=scope, tail=False)))

    def name(self, stem: str, line: int) -> str:
        """A name that the person does not use."""
        name, count = f"{stem}_{line}", 1
        while name in self._taken:
            count += 1
            name = f"{stem}_{line}_{count}"
        self._taken.add(name)
        return name


def is_guard(node: cst.If) -> bool:
    """Whether this is no `if` of the person's, but the rest of a block under a flag."""
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


def _set(code: str, lines: tuple[int, int]) -> cst.SimpleStatementLine:
    parsed = cst.parse_statement(code)
    assert isinstance(parsed, cst.SimpleStatementLine)
    return parsed.with_changes(leading_lines=[marker(*lines)])


def _small(code: str) -> list[cst.BaseSmallStatement]:
    parsed = cst.parse_statement(code)
    assert isinstance(parsed, cst.SimpleStatementLine)
    return list(parsed.body)


def _arms(node: cst.If) -> list[Sequence[Any]]:
    if node.orelse is None:
        return [node.body.body]
    other = [node.orelse] if isinstance(node.orelse, cst.If) else node.orelse.body.body
    return [node.body.body, other]


def _rest_moved(node: cst.If, rest: Statements) -> tuple[cst.If, Statements]:
    """What follows, moved into the arm that comes to its end, where the other one never does."""
    if not rest:
        return node, rest
    body, other = node.body.body, _arms(node)[1] if node.orelse is not None else []
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


def _parts(node: Any) -> list[Any]:
    """The parts of a `with` or `try` that have blocks."""
    if isinstance(node, cst.With):
        return [node]
    return [part for part in (node, *node.handlers, node.orelse, node.finalbody) if part is not None]


def _is_compiled(node: cst.FunctionDef | cst.ClassDef) -> bool:
    """Whether a decorator hands the source to a compiler of its own."""
    words = {item.value for part in node.decorators for item in descendants(part) if isinstance(item, cst.Name)}
    return bool(words & {"compile", "cuda", "jit", "njit", "script", "triton", "vectorize"})


@lru_cache(maxsize=256)
def _shared(body: cst.CSTNode) -> frozenset[str]:
    declared = {
        item.name.value
        for node in descendants(body)
        if isinstance(node, (cst.Global, cst.Nonlocal))
        for item in node.names
    }
    return frozenset(uses_of(body).captured | declared)


@lru_cache(maxsize=256)
def _plain_names(body: cst.CSTNode) -> frozenset[str]:
    """Names that count: bound by `for` over `range` or `enumerate` and by nothing else."""
    counting: set[str] = set()
    others: set[str] = set()
    for node in descendants(body):
        if isinstance(node, cst.For):
            names = _counters(node)
            counting |= names
            others |= {item.value for item in descendants(node.target) if isinstance(item, cst.Name)} - names
        elif isinstance(node, (cst.AssignTarget, cst.AugAssign, cst.AnnAssign, cst.NamedExpr)):
            others |= {item.value for item in descendants(node.target) if isinstance(item, cst.Name)}
    return frozenset(counting - others)


def _counters(node: cst.For) -> set[str]:
    if not isinstance(node.iter, cst.Call) or not isinstance(node.iter.func, cst.Name):
        return set()
    if node.iter.func.value == "range" and isinstance(node.target, cst.Name):
        return {node.target.value}
    if node.iter.func.value == "enumerate" and isinstance(node.target, cst.Tuple):
        first = node.target.elements[0].value
        return {first.value} if isinstance(first, cst.Name) else set()
    return set()
