"""Loops whose test, `break`, `continue` or `return` depends on data."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import libcst as cst

from .branches import as_block, global_names, places_argument, unbound_checks
from .build import assign, block_of, call, function, lambda_of, statement, tuple_of
from .jumps import jumps
from .lines import lines_of
from .names import Exits, exposed, uses_of
from .safety import Leave, places_of, refuse_unsafe, with_memory
from .tree import contains

if TYPE_CHECKING:
    from .lower import Context, Lowerer

__all__ = ["lower_loop"]

Statements = list[Any]
_SEQUENCE_WRAPPERS = ("enumerate", "reversed")


def lower_loop(
    lowerer: Lowerer, node: Any, rest: Statements, context: Context
) -> tuple[Statements, Statements, frozenset[str]]:
    """The lowered loop, what is still to do after it (its `else`, guarded), and the names bound by then."""
    from .lower import guard

    lines = lines_of(node) or (1, 1)
    body = as_block(node.body, lines)
    kinds = jumps(*body)
    before: Statements = []
    inner = context
    stop = lowerer.name("_break", lines[0]) if kinds & {"break", "return"} else None
    if node.orelse is not None:
        orelse = as_block(node.orelse.body, lines)
        # Without a jump out of the loop its `else` simply comes next.
        rest = [guard([stop], orelse, [], lines), *rest] if stop is not None else [*orelse, *rest]
    if "return" in kinds:
        if context.result is None:
            before, inner, rest = lowerer.with_flags(node, frozenset({"return"}), rest, context)
        elif rest:
            rest = [guard([context.result[0]], rest, [], lines)]
    if kinds:
        lowerer.blame(lines[0], node, context.scope)
    live = exposed(rest, context.live, context.exits)
    around = exposed([node.with_changes(orelse=None)], live, context.exits) | live
    if stop is not None:
        before = [*before, statement(f"{stop} = False", lines)]
    inner = replace(
        inner,
        live=around,
        exits=Exits(on_break=live, on_continue=around),
        tail=False,
        iteration_tail=True,
        step=True,
        stop=stop,
        stops=(*context.stops, stop) if stop is not None else context.stops,
        skip=None,
    )
    if isinstance(node, cst.For):
        made = _for(lowerer, node, body, inner, live)
    else:
        made = _while(lowerer, node, body, inner, live, around)
    first, *others = [*before, *made]
    return [first.with_changes(leading_lines=node.leading_lines), *others], rest, context.bound


def _for(lowerer: Lowerer, node: cst.For, body: Statements, inner: Context, live: frozenset[str]) -> Statements:
    from .lower import guard

    lines = lines_of(node) or (1, 1)
    if node.asynchronous is not None:
        raise Leave(lines[0], lines[0], "the loop is suspended by an await")
    lowerer.found.append(("for", lines[0]))
    targets = list(uses_of(cst.AssignTarget(node.target)).stores)
    inner = replace(inner, bound=inner.bound | set(targets))
    if inner.stop is None:
        made = lowerer.block(body, inner)
        return [node.with_changes(body=block_of(node.body, made), orelse=None)]
    items = lowerer.name("_items", lines[0])
    step = lowerer.block([guard([inner.stop], body, [], lines)], inner)
    ended = statement(f"if _flow.ended({inner.stop}, {items}):\n    break", lines)
    loop = node.with_changes(iter=_named_items(node.iter, items), body=block_of(None, [*step, ended]), orelse=None)
    made = [loop]
    lost = [name for name in targets if inner.scope.module or name in live]
    if lost:
        made.append(statement(f"if _flow.lost({inner.stop}):\n    del {', '.join(lost)}", lines))
    return made


def _named_items(iterated: Any, name: str) -> Any:
    """`(name := iterable)`, inside of `enumerate` and `reversed`, whose own items cannot be looked at."""
    if (
        isinstance(iterated, cst.Call)
        and isinstance(iterated.func, cst.Name)
        and iterated.func.value in _SEQUENCE_WRAPPERS
        and iterated.args
        and not iterated.args[0].star
    ):
        first = iterated.args[0]
        named = first.with_changes(value=_named_items(first.value, name))
        return iterated.with_changes(args=[named, *iterated.args[1:]])
    return cst.NamedExpr(cst.Name(name), iterated, lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _while(
    lowerer: Lowerer, node: cst.While, body: Statements, inner: Context, live: frozenset[str], around: frozenset[str]
) -> Statements:
    lines = lines_of(node) or (1, 1)
    line = lines[0]
    if contains(node.test, cst.NamedExpr, cst.Await, cst.Yield):
        raise Leave(line, line, "the condition of the loop binds a name or is suspended")
    refuse_unsafe(body, line, line)
    lowerer.found.append(("while", line))
    module = inner.scope.module
    flags = inner.flags(jumps(*body))
    stored = list(uses_of(*body).stores)
    shared = sorted(set(stored) & inner.scope.shared)
    if shared and not module:
        raise Leave(line, line, f"{shared[0]} is shared with a nested function or declared global")
    assigned = [*stored, *(flag for flag in flags if flag not in stored)]
    names = frozenset() if module else frozenset(assigned)
    places = places_of(body, names, line, line)
    wanted_names = around | set(flags) | exposed(body, frozenset(), Exits(through=True))
    carried = [] if module else [name for name in assigned if name in wanted_names]
    known = inner.bound | set(flags)
    doubtful = [name for name in carried if name not in known]
    if set(doubtful) & uses_of(node.test).reads:
        raise Leave(line, line, "the condition of the loop reads a name that may be unbound")
    prelude = unbound_checks(doubtful, lines)
    entry = replace(inner, bound=((inner.bound - set(assigned)) | set(carried)) - set(doubtful))
    body = list(with_memory(body, names))
    end = lowerer.bound_at_end(body, entry) | set(flags)
    made_body = lowerer.block(body, entry)
    if module:
        prelude = global_names(made_body, lines)
    if carried:
        values = [item if item in end else f"_flow.maybe(lambda: {item})" for item in carried]
        made_body.append(statement(f"return {values[0] if len(values) == 1 else tuple_of(values)}", lines))
    name = lowerer.name("_body", line)
    test = _test(lowerer.head(node.test, node, inner), inner.stop)
    given = [item if item in known else f"_flow.maybe(lambda: {item})" for item in carried]
    wanted = ["True" if item in live or item in flags else "False" for item in carried]
    arguments: list[Any] = [lambda_of(test, carried), cst.Name(name), tuple_of(given), tuple_of(wanted)]
    listed = places_argument(assigned if module else [], places.arguments())
    if listed:
        arguments.append(listed)
    statements = [
        function(name, carried, block_of(node.body, [*prelude, *made_body]), lines),
        assign(carried, call("loop", *arguments), lines),
    ]
    return statements + unbound_checks([item for item in carried if item not in known], lines)


def _test(test: cst.BaseExpression, stop: str | None) -> cst.BaseExpression:
    if stop is None:
        return test
    going = call("negate", stop)
    if isinstance(test, cst.Name) and test.value == "True":
        return going
    return call("both", going, lambda_of(test))
