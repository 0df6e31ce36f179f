"""Two versions of a loop: one whose body hands its runs over, and the person's own, which goes on where that one ends.

``for x in xs: body`` becomes::

    for x in <loop>.head(xs):      # <loop> is an object among the constants of the compiled code
        if <run>.live:
            try:
                <run>.run()
            except:
                <run>.mend()
                raise
        else:
            ...                    # the statements of the run
    else:
        for x in <loop>.rest():    # the same iterator; nothing is left where the head saw its end
            body

The head may end at any iteration, so that a loop without tensors runs as written, at its own speed. A `break` of the
person's leaves both and skips the ``else`` of both. A loop inside a loop stands once more as written, under
``if <loop>.live``, because it is entered often.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from dataclasses import dataclass

from .marks import LOOP, RUN, attribute_of, call_of
from .names import names_of
from .statements import is_left_alone, may_run

__all__ = ["Hoisted", "LoopSource", "RunSource", "hoist_loops"]

_DEPTH = 2
"""Each level of a nest multiplies the compiled code: the loops deepest inside are hoisted, and those around them."""
_WORK = (ast.Call, ast.BinOp, ast.AugAssign, ast.Compare)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSource:
    """Consecutive statements of a loop body. `changing`: names that the outermost loop around them binds."""

    statements: tuple[ast.stmt, ...]
    changing: frozenset[str]
    loop: int
    loop_line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSource:
    """One loop. `key` is equal for loops of equal source at equal positions; `runs` are numbers of runs."""

    key: str
    line: int
    runs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hoisted:
    """Statements with marks for their loops and runs, numbered as in `loops` and `runs`."""

    body: tuple[ast.stmt, ...]
    loops: tuple[LoopSource, ...]
    runs: tuple[RunSource, ...]


def hoist_loops(statements: Sequence[ast.stmt]) -> Hoisted | None:
    """The top-level statements of a cell with their loops hoisted; None where there is nothing to hoist.

    The given trees are not changed. Loops in functions and classes stay as they are.
    """
    hoister = _Hoister()
    body = hoister.block(statements)
    if not hoister.loops:
        return None
    return Hoisted(body=tuple(body), loops=tuple(hoister.loops), runs=tuple(hoister.runs))


class _Hoister:
    def __init__(self) -> None:
        self.loops: list[LoopSource] = []
        self.runs: list[RunSource] = []
        self._changing: frozenset[str] | None = None

    def block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Statements that run as written, but for the loops in them."""
        return [self.statement(statement) for statement in statements]

    def statement(self, node: ast.stmt) -> ast.stmt:
        if isinstance(node, (ast.For, ast.While)):
            return self.loop(node)
        return self._with_blocks(node, self.block)

    def _with_blocks(self, node: ast.stmt, make: object) -> ast.stmt:
        """`node` with its blocks made anew; functions and classes are no blocks."""
        assert callable(make)
        if not isinstance(node, (ast.If, ast.With, ast.Try, ast.TryStar)):
            return node
        new = copy.copy(node)
        new.body = make(node.body)
        if not isinstance(new, ast.With):
            new.orelse = make(new.orelse)
        if isinstance(new, (ast.Try, ast.TryStar)):
            new.finalbody = make(new.finalbody)
            new.handlers = [self._handler(handler, make) for handler in new.handlers]
        return new

    def _handler(self, handler: ast.ExceptHandler, make: object) -> ast.ExceptHandler:
        assert callable(make)
        new = copy.copy(handler)
        new.body = make(handler.body)
        return new

    # -- loops -------------------------------------------------------------------------------------------------------

    def loop(self, node: ast.For | ast.While) -> ast.stmt:
        if is_left_alone(node):
            return node
        if self._changing is not None:
            return self._loop(node, inner=True)
        self._changing = frozenset(names_of([node]).stores)
        try:
            return self._loop(node, inner=False)
        finally:
            self._changing = None

    def _loop(self, node: ast.For | ast.While, *, inner: bool) -> ast.stmt:
        plain = copy.copy(node)
        plain.body = self.block(node.body)
        plain.orelse = self.block(node.orelse)
        if _depth(node) > _DEPTH:
            return plain
        number = len(self.loops)
        first = len(self.runs)
        key = ast.dump(node, include_attributes=True)
        self.loops.append(LoopSource(key=key, line=node.lineno, runs=()))
        head = self._parts(node.body, number, node.lineno)
        runs = tuple(n for n in range(first, len(self.runs)) if self.runs[n].loop == number)
        if not runs:
            del self.loops[number:], self.runs[first:]
            return plain
        self.loops[number] = LoopSource(key=key, line=node.lineno, runs=runs)
        made = _for(plain, head, number) if isinstance(plain, ast.For) else _while(plain, head, number)
        if not inner:
            return made
        return ast.copy_location(ast.If(attribute_of(LOOP, number, "live", node), [made], [plain]), node)

    def _parts(self, statements: Sequence[ast.stmt], loop: int, line: int) -> list[ast.stmt]:
        """A block of the head: its runs handed over, everything else in its place."""
        made: list[ast.stmt] = []
        pending: list[ast.stmt] = []

        def close() -> None:
            if _is_work(pending):
                made.append(self._run(tuple(pending), loop, line))
            else:
                made.extend(pending)
            pending.clear()

        for statement in statements:
            if may_run(statement):
                pending.append(statement)
                continue
            close()
            if isinstance(statement, (ast.For, ast.While)):
                made.append(self.loop(statement))
            else:
                made.append(self._with_blocks(statement, lambda block: self._parts(block, loop, line)))
        close()
        return made

    def _run(self, statements: tuple[ast.stmt, ...], loop: int, line: int) -> ast.stmt:
        number = len(self.runs)
        assert self._changing is not None
        self.runs.append(RunSource(statements=statements, changing=self._changing, loop=loop, loop_line=line))
        at = statements[0]

        call = ast.copy_location(ast.Expr(call_of(RUN, number, "run", at)), at)
        mend = ast.copy_location(ast.Expr(call_of(RUN, number, "mend", at)), at)
        again = ast.copy_location(ast.Raise(None, None), at)
        handler = ast.copy_location(ast.ExceptHandler(None, None, [mend, again]), at)
        handed = ast.copy_location(ast.Try([call], [handler], [], []), at)
        live = attribute_of(RUN, number, "live", at)
        return ast.copy_location(ast.If(live, [handed], self.block(statements)), at)


def _for(plain: ast.For, head: list[ast.stmt], number: int) -> ast.stmt:
    rest = copy.copy(plain)
    rest.iter = call_of(LOOP, number, "rest", plain.iter)
    made = ast.For(plain.target, call_of(LOOP, number, "head", plain.iter, plain.iter), head, [rest])
    return ast.copy_location(made, plain)


def _while(plain: ast.While, head: list[ast.stmt], number: int) -> ast.stmt:
    test = plain.test

    def here(node: ast.expr) -> ast.expr:
        return ast.copy_location(node, test)

    go_on = here(ast.BoolOp(ast.Or(), [test, call_of(LOOP, number, "ends", test)]))
    stays = here(ast.BoolOp(ast.And(), [call_of(LOOP, number, "stays", test), go_on]))
    rest = ast.copy_location(ast.If(call_of(LOOP, number, "left", test), [plain], plain.orelse), plain)
    return ast.copy_location(ast.While(stays, head, [rest]), plain)


def _is_work(statements: Sequence[ast.stmt]) -> bool:
    """Whether this is more than one call or one operation: what a single call does, its callee's region does."""
    return sum(isinstance(node, _WORK) for item in statements for node in ast.walk(item)) >= 2


def _depth(node: ast.AST) -> int:
    """How many loops are nested in each other, at most."""
    inner = max((_depth(child) for child in ast.iter_child_nodes(node)), default=0)
    return inner + isinstance(node, (ast.For, ast.While))
