"""`if`, `with`, `try` and other compound statements that are no loops; and the call that a selected `if` becomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import libcst as cst

from .build import assign, block_of, call, function, lambda_of, statement, tuple_of
from .facts.jumps import Jump
from .facts.names import Exits, exposed, uses_of
from .facts.safety import Leave, places_of, refuse_unsafe, with_memory
from .guards import is_guard
from .lines import lines_of, marker
from .tree import Statements, contains

if TYPE_CHECKING:
    from .context import Context
    from .rewriter import Rewriter


def as_block(suite: cst.BaseSuite, lines: tuple[int, int]) -> Statements:
    """The statements of a suite; those of a one-line suite as a line of their own."""
    if isinstance(suite, cst.SimpleStatementSuite):
        return [cst.SimpleStatementLine(list(suite.body), leading_lines=[marker(*lines)])]
    assert isinstance(suite, cst.IndentedBlock)
    return list(suite.body)


def lower_block_statement(
    lowerer: Rewriter, node: cst.BaseStatement, context: Context, needs: frozenset[Jump]
) -> Statements:
    """A compound statement whose jumps `context` provides for."""
    lines = lines_of(node) or (1, 1)
    if isinstance(node, cst.If):
        if lowerer.selected(node, context.scope):
            return _selected_if(lowerer, node, context, needs)
        return [_plain_if(lowerer, node, context)]
    if isinstance(node, cst.With):
        items = [
            item.with_changes(item=lowerer.head(item.item, node, context)) if lowerer.wants(node) else item
            for item in node.items
        ]
        bound = context.bound | frozenset(uses_of(*node.items).stores)
        body = lowerer.block(as_block(node.body, lines), replace(context, bound=bound))
        return [node.with_changes(items=items, body=block_of(node.body, body))]
    if isinstance(node, (cst.For, cst.While)):
        return [_plain_loop(lowerer, node, context)]
    if needs:
        raise Leave(lines[0], lines[0], "a jump out of a try or match statement")
    if isinstance(node, (cst.Try, cst.TryStar)):
        return [_try(lowerer, node, context)]
    return [node]


def _try(lowerer: Rewriter, node: cst.Try | cst.TryStar, context: Context) -> cst.BaseStatement:
    """Blocks of a `try` may end anywhere, so everything that the function reads counts as read after them."""
    reads = frozenset(uses_of(node).reads) | context.live
    inner = replace(context, live=reads, tail=False, iteration_tail=False)
    lines = lines_of(node) or (1, 1)

    def lowered(suite: cst.BaseSuite) -> cst.IndentedBlock:
        return block_of(suite, lowerer.block(as_block(suite, lines), inner))

    last = {name: part for name in ("orelse", "finalbody") if (part := getattr(node, name)) is not None}
    return node.with_changes(
        body=lowered(node.body),
        handlers=[handler.with_changes(body=lowered(handler.body)) for handler in node.handlers],
        **{name: part.with_changes(body=lowered(part.body)) for name, part in last.items()},
    )


def _plain_loop(lowerer: Rewriter, node: cst.For | cst.While, context: Context) -> cst.BaseStatement:
    lines = lines_of(node) or (1, 1)
    # Over-approximates what the next iteration and the code behind the loop read.
    around = exposed([node], context.live, context.exits) | context.live
    targets = uses_of(cst.AssignTarget(node.target)).stores if isinstance(node, cst.For) else ()
    inner = replace(
        context,
        live=around,
        bound=context.bound | frozenset(targets),
        exits=Exits(on_break=context.live, on_continue=around),
        tail=False,
        iteration_tail=False,
        step=False,
        stop=None,
        skip=None,
    )
    head = "iter" if isinstance(node, cst.For) else "test"
    changes: dict[str, object] = {head: lowerer.head(getattr(node, head), node, context)}
    changes["body"] = block_of(node.body, lowerer.block(as_block(node.body, lines), inner))
    if node.orelse is not None:
        body = lowerer.block(as_block(node.orelse.body, lines), replace(context, tail=False, iteration_tail=False))
        changes["orelse"] = node.orelse.with_changes(body=block_of(node.orelse.body, body))
    return node.with_changes(**changes)


def _plain_if(lowerer: Rewriter, node: cst.If, context: Context) -> cst.If:
    lines = lines_of(node) or (1, 1)
    body = block_of(node.body, lowerer.block(as_block(node.body, lines), context))
    orelse = node.orelse
    if isinstance(orelse, cst.If):
        made = lowerer.block([orelse], context)
        only = made[0] if len(made) == 1 else None
        # An `elif` whose test is still an `if` stays an `elif`.
        orelse = only if isinstance(only, cst.If) else cst.Else(block_of(None, made))
    elif orelse is not None:
        made = lowerer.block(as_block(orelse.body, lines), context)
        orelse = orelse.with_changes(body=block_of(orelse.body, made))
    return node.with_changes(test=lowerer.head(node.test, node, context), body=body, orelse=orelse)


def _selected_if(lowerer: Rewriter, node: cst.If, context: Context, needs: frozenset[Jump]) -> Statements:
    lines = lines_of(node) or (1, 1)
    synthetic = is_guard(node)
    if contains(node.test, cst.Await, cst.Yield):
        raise Leave(lines[0], lines[0], "the condition is suspended")
    body = as_block(node.body, lines)
    other: Statements = []
    if isinstance(node.orelse, cst.If):
        other = [node.orelse]
    elif node.orelse is not None:
        other = as_block(node.orelse.body, lines)
    if not synthetic:
        lowerer.found.append(("if", lines[0]))
    test = node.test if synthetic else lowerer.head(node.test, node, context)
    returning = "return" in needs and context.result is None
    made = _Branch(lowerer, context, lines, [body, other], context.flags(needs))
    stem = "_rest" if synthetic else "_then"
    suites = [node.body, node.orelse.body if isinstance(node.orelse, cst.Else) else None]
    return _with_comments(node, made.emit(test, stem, suites, returning=returning))


def _with_comments(node: cst.If, statements: Statements) -> Statements:
    """The comments above the construct, above the first statement that it becomes."""
    first = statements[0]
    return [first.with_changes(leading_lines=node.leading_lines), *statements[1:]]


class _Branch:
    """One `if` as a call. `arms` are the person's statements, `flags` what their jumps assign."""

    def __init__(
        self, lowerer: Rewriter, context: Context, lines: tuple[int, int], arms: list[Statements], flags: list[str]
    ) -> None:
        self._lowerer = lowerer
        self._context = context
        self._lines = lines
        self._module = context.scope.module
        uses = uses_of(*arms[0], *arms[1])
        names = [*uses.stores]
        line = lines[0]
        for arm in arms:
            refuse_unsafe(arm, line, line, context.scope.own)
        shared = sorted(set(names) & context.scope.shared)
        if shared and not self._module:
            raise Leave(line, line, f"{shared[0]} is shared with a nested function or declared global")
        self._assigned = [*names, *(flag for flag in flags if flag not in names)]
        bound = frozenset() if self._module else frozenset(self._assigned)
        self._places = places_of([*arms[0], *arms[1]], bound, line, line)
        self._arms = [with_memory(arm, bound) for arm in arms]
        self._flags = flags

    def emit(
        self, test: cst.BaseExpression, stem: str, suites: Sequence[cst.BaseSuite | None], *, returning: bool
    ) -> Statements:
        """The functions, the call, and what becomes of names that it may leave unbound."""
        context, lines = self._context, self._lines
        read = [exposed(arm, frozenset(), Exits(through=True)) for arm in self._arms]
        live = context.live | set(self._flags)
        results = [] if returning or self._module else [name for name in self._assigned if name in live]
        ends = [self._lowerer.bound_at_end(arm, context) for arm in self._arms]
        sure = context.bound | (ends[0] & ends[1]) | set(self._flags)
        nothing = replace(context, bound=frozenset())
        settled = [self._lowerer.bound_at_end(arm, nothing) for arm in self._arms]
        wanted = read[0] | read[1] | set(self._flags) | (set(results) - (settled[0] & settled[1]))
        operands = [] if self._module else [name for name in self._assigned if name in wanted]
        known = context.bound | set(self._flags)
        doubtful = [name for name in operands if name not in known]
        made: Statements = []
        functions: list[cst.BaseExpression] = []
        for arm, suite, kind, end in zip(self._arms, suites, (stem, "_else"), ends, strict=True):
            if not arm and not returning:
                functions.append(lambda_of(cst.parse_expression(_value(results) if results else "None"), operands))
                continue
            name = self._lowerer.name(kind, lines[0])
            inner = replace(context, bound=((context.bound - set(self._assigned)) | set(operands)) - set(doubtful))
            inner = replace(inner, tail=returning)
            prelude = unbound_checks(doubtful, lines)
            body = self._lowerer.block(arm, inner)
            if self._module:
                prelude = global_names(body, lines)
            if results:
                sure_here = end | set(self._flags)
                values = [item if item in sure_here else f"_flow.maybe(lambda: {item})" for item in results]
                body = [*body, statement(f"return {_value(values)}", lines)]
            functions.append(cst.Name(name))
            made.append(function(name, operands, block_of(suite, [*prelude, *body]), lines))
        given = [item if item in known else f"_flow.maybe(lambda: {item})" for item in operands]
        arguments: list[cst.BaseExpression | str] = [test, *functions]
        places = places_argument(self._assigned if self._module else [], self._places.arguments())
        if operands or places:
            arguments.append(tuple_of(given))
        if places:
            arguments.append(places)
        value = call("branch", *arguments)
        if returning:
            made.append(cst.SimpleStatementLine([cst.Return(value)], leading_lines=[marker(*lines)]))
            return made
        made.append(assign(results, value, lines))
        return made + unbound_checks([name for name in results if name not in sure], lines)


def global_names(body: Statements, lines: tuple[int, int]) -> Statements:
    """The declaration of what a body of a cell assigns: the person's names, and flags that functions in it share."""
    functions = {item.name.value for item in body if isinstance(item, cst.FunctionDef)}
    names = [name for name in uses_of(*body).stores if name not in functions]
    return [statement(f"global {', '.join(names)}", lines)] if names else []


def _value(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else tuple_of(items)


def places_argument(names: Sequence[str], places: Sequence[str]) -> str:
    """The tuple of places: global names, attributes, items. Empty text where there are none."""
    if not names:
        return tuple_of(places) if places else ""
    listed = f"_flow.names(globals(), {', '.join(repr(name) for name in names)})"
    return listed if not places else f"(*{listed}, {', '.join(places)})"


def unbound_checks(names: Sequence[str], lines: tuple[int, int]) -> Statements:
    return [statement(f"if {name} is _flow.UNBOUND:\n    del {name}", lines) for name in names]
