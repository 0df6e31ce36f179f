"""Loops whose test, `break`, `continue` or `return` depends on data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import libcst as cst

from .branches import as_block, global_names, places_argument, unbound_checks
from .build import assign, block_of, call, function, lambda_of, statement, tuple_of
from .facts.jumps import jumps
from .facts.names import Exits, exposed, uses_of
from .facts.safety import Leave, places_of, refuse_unsafe, with_memory
from .guards import guard
from .lines import lines_of
from .tree import Statements, contains

if TYPE_CHECKING:
    from .context import Context
    from .rewriter import Rewriter

_SEQUENCE_WRAPPERS = ("enumerate", "reversed", "zip")


def lower_loop(
    lowerer: Rewriter, node: cst.For | cst.While, rest: Statements, context: Context
) -> tuple[Statements, Statements, frozenset[str]]:
    """The lowered loop, what is still to do after it (its `else`, guarded), and the names bound by then."""
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
        made = _for(lowerer, node, body, inner, live, around)
    else:
        made = _while(lowerer, node, body, inner, live, around)
    first, *others = [*before, *made]
    return [first.with_changes(leading_lines=node.leading_lines), *others], rest, context.bound


def _for(
    lowerer: Rewriter, node: cst.For, body: Statements, inner: Context, live: frozenset[str], around: frozenset[str]
) -> Statements:
    lines = lines_of(node) or (1, 1)
    if node.asynchronous is not None:
        raise Leave(lines[0], lines[0], "the loop is suspended by an await")
    targets = list(uses_of(cst.AssignTarget(node.target)).stores)
    if inner.stop is not None and _only_counts(node, body, targets, live) and not inner.scope.module:
        return _repeat(lowerer, node, body, inner, live, around)
    lowerer.found.append(("for", lines[0]))
    inner = replace(inner, bound=inner.bound | set(targets))
    if inner.stop is None:
        return [node.with_changes(body=block_of(node.body, lowerer.block(body, inner)), orelse=None)]
    names: list[str] = []

    def fresh() -> str:
        names.append(lowerer.name("_items", lines[0]))
        return names[-1]

    iterated = _named_items(node.iter, fresh)
    step = lowerer.block([guard([inner.stop], body, [], lines)], inner)
    ended = statement(f"if _flow.ended({', '.join([inner.stop, *names])}):\n    break", lines)
    loop = node.with_changes(iter=iterated, body=block_of(None, [*step, ended]), orelse=None)
    made: Statements = [loop]
    lost = [name for name in targets if inner.scope.module or name in live]
    if lost:
        made.append(statement(f"if _flow.lost({inner.stop}):\n    del {', '.join(lost)}", lines))
    return made


def _only_counts(node: cst.For, body: Statements, targets: Sequence[str], live: frozenset[str]) -> bool:
    """True if the iterations of `for _ in range(...)` differ in nothing but what they find: nobody uses the counter."""
    iterated = node.iter
    if not (isinstance(iterated, cst.Call) and isinstance(iterated.func, cst.Name) and iterated.func.value == "range"):
        return False
    uses = uses_of(*body)
    return not set(targets) & (uses.reads | uses.stores.keys() | live)


def _named_items(iterated: cst.BaseExpression, fresh: Callable[[], str]) -> cst.BaseExpression:
    """`(name := iterable)`, inside of `enumerate`, `reversed` and `zip`, whose own items cannot be looked at."""
    if (
        isinstance(iterated, cst.Call)
        and isinstance(iterated.func, cst.Name)
        and iterated.func.value in _SEQUENCE_WRAPPERS
        and iterated.args
        and not any(item.star for item in iterated.args)
    ):
        every = iterated.func.value == "zip"
        arguments = [
            item.with_changes(value=_named_items(item.value, fresh))
            if item.keyword is None and (every or not i)
            else item
            for i, item in enumerate(iterated.args)
        ]
        return iterated.with_changes(args=arguments)
    return cst.NamedExpr(cst.Name(fresh()), iterated, lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _while(
    lowerer: Rewriter, node: cst.While, body: Statements, inner: Context, live: frozenset[str], around: frozenset[str]
) -> Statements:
    line = (lines_of(node) or (1, 1))[0]
    if contains(node.test, cst.NamedExpr, cst.Await, cst.Yield):
        raise Leave(line, line, "the condition of the loop binds a name or is suspended")
    loop = _Carried(lowerer, node, body, inner, live, around)
    if set(loop.doubtful) & uses_of(node.test).reads:
        raise Leave(line, line, "the condition of the loop reads a name that may be unbound")
    lowerer.found.append(("while", line))
    test = _test(lowerer.head(node.test, node, inner), inner.stop)
    return loop.emit(lambda name: ("loop", [lambda_of(test, loop.carried), cst.Name(name)], []))


def _repeat(
    lowerer: Rewriter, node: cst.For, body: Statements, inner: Context, live: frozenset[str], around: frozenset[str]
) -> Statements:
    """A `for` whose counter nobody uses: a call, so that the whole loop can become one node."""
    loop = _Carried(lowerer, node, body, inner, live, around)
    lowerer.found.append(("for", (lines_of(node) or (1, 1))[0]))
    assert inner.stop is not None
    stop = loop.carried.index(inner.stop)
    items = lowerer.head(node.iter, node, inner)
    return loop.emit(lambda name: ("repeat", [items, cst.Name(name)], [str(stop)]))


class _Carried:
    """A loop as a call of a function of the names that its body assigns."""

    def __init__(
        self,
        lowerer: Rewriter,
        node: cst.For | cst.While,
        body: Statements,
        inner: Context,
        live: frozenset[str],
        around: frozenset[str],
    ) -> None:
        lines = self._lines = lines_of(node) or (1, 1)
        line = lines[0]
        refuse_unsafe(body, line, line, inner.scope.own)
        module = self._module = inner.scope.module
        flags = self._flags = inner.flags(jumps(*body))
        stored = list(uses_of(*body).stores)
        shared = sorted(set(stored) & inner.scope.shared)
        if shared and not module:
            raise Leave(line, line, f"{shared[0]} is shared with a nested function or declared global")
        assigned = self._assigned = [*stored, *(flag for flag in flags if flag not in stored)]
        self._names = frozenset() if module else frozenset(assigned)
        self._places = places_of(body, self._names, line, line)
        wanted = around | set(flags) | exposed(body, frozenset(), Exits(through=True))
        self.carried = [] if module else [name for name in assigned if name in wanted]
        self._known = inner.bound | set(flags)
        self.doubtful = [name for name in self.carried if name not in self._known]
        self._lowerer, self._node, self._body, self._inner, self._live = lowerer, node, body, inner, live

    def emit(self, make: Callable[[str], tuple[str, list[cst.BaseExpression], list[str]]]) -> Statements:
        """The function, the call, and checks of names that may be unbound after it.

        `make` is told the function's name; it gives the name in `_flow`, and the arguments before and after the state.
        """
        lines, inner, carried, flags = self._lines, self._inner, self.carried, self._flags
        prelude = unbound_checks(self.doubtful, lines)
        entry = replace(inner, bound=((inner.bound - set(self._assigned)) | set(carried)) - set(self.doubtful))
        body = with_memory(self._body, self._names)
        end = self._lowerer.bound_at_end(body, entry) | set(flags)
        made = self._lowerer.block(body, entry)
        if self._module:
            prelude = global_names(made, lines)
        if carried:
            values = [item if item in end else f"_flow.maybe(lambda: {item})" for item in carried]
            made.append(statement(f"return {values[0] if len(values) == 1 else tuple_of(values)}", lines))
        name = self._lowerer.name("_body", lines[0])
        given = [item if item in self._known else f"_flow.maybe(lambda: {item})" for item in carried]
        wanted = ["True" if item in self._live or item in flags else "False" for item in carried]
        called, before, after = make(name)
        arguments: list[cst.BaseExpression | str] = [*before, tuple_of(given), tuple_of(wanted), *after]
        listed = places_argument(self._assigned if self._module else [], self._places.arguments())
        if listed:
            arguments.append(listed)
        statements: Statements = [
            function(name, carried, block_of(self._node.body, [*prelude, *made]), lines),
            assign(carried, call(called, *arguments), lines),
        ]
        return statements + unbound_checks([item for item in carried if item not in self._known], lines)


def _test(test: cst.BaseExpression, stop: str | None) -> cst.BaseExpression:
    if stop is None:
        return test
    going = call("negate", stop)
    if isinstance(test, cst.Name) and test.value == "True":
        return going
    return call("both", going, lambda_of(test))
