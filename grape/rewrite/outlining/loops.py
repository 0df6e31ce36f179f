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
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .marks import LOOP, RUN, attribute_of, call_of
from .names import names_of
from .scopes import FunctionScope, LocalNames
from .statements import is_left_alone, may_run

_DEPTH = 2
"""Each level of a nest multiplies the compiled code: the loops deepest inside are outlined, and those around them."""
_PLACED = (ast.stmt, ast.expr)
_WORK = (ast.Call, ast.BinOp, ast.AugAssign, ast.Compare)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSource:
    """Consecutive statements of a loop body. `changing`: names that the outermost loop around them binds.

    In a function `local` is what they read and what is read of them; the rest of the function's names are its own.
    """

    statements: tuple[ast.stmt, ...]
    changing: frozenset[str]
    loop: int
    loop_line: int
    local: LocalNames | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSource:
    """One loop. `key` is equal for loops of equal source at equal positions; `runs` are numbers of runs.

    `local`: in a function.
    """

    key: str
    line: int
    runs: tuple[int, ...]
    local: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlined:
    """Statements (of a function: the function) with marks for loops and runs, numbered as in `loops` and `runs`."""

    body: tuple[ast.stmt, ...]
    loops: tuple[LoopSource, ...]
    runs: tuple[RunSource, ...]


def outline_function(function: ast.FunctionDef) -> Outlined | None:
    """A function with its loops outlined; None where there is nothing to outline, or where its names are not its own.

    Its runs take and return values, for no code but the function's own can see its names.
    """
    scope = FunctionScope.of(function)
    if scope is None:
        return None
    outliner = _Outliner(scope)
    new = copy.copy(function)
    new.body = outliner.block(function.body)
    if not outliner.loops:
        return None
    return Outlined(body=(new,), loops=tuple(outliner.loops), runs=tuple(outliner.runs))


def outline_loops(statements: Sequence[ast.stmt]) -> Outlined | None:
    """The top-level statements of a cell with their loops outlined; None where there is nothing to outline.

    The given trees are not changed. Loops in functions and classes stay as they are.
    """
    outliner = _Outliner()
    body = outliner.block(statements)
    if not outliner.loops:
        return None
    return Outlined(body=tuple(body), loops=tuple(outliner.loops), runs=tuple(outliner.runs))


class _Outliner:
    def __init__(self, scope: FunctionScope | None = None) -> None:
        self.loops: list[LoopSource] = []
        self.runs: list[RunSource] = []
        self._changing: frozenset[str] | None = None
        self._scope = scope
        self._bound = frozenset(scope.parameters) if scope is not None else frozenset()

    def block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Statements that run as written, but for the loops in them."""
        before, made = self._bound, []
        for statement in statements:
            made.append(self.statement(statement))
            self._passed(statement)
        self._bound = before
        return made

    def _passed(self, *statements: ast.AST) -> None:
        """These have run: what they bind for certain is bound."""
        if self._scope is not None:
            self._bound = frozenset(names_of(statements, self._bound).sure)

    def statement(self, node: ast.stmt) -> ast.stmt:
        if isinstance(node, (ast.For, ast.While)):
            return self.loop(node)
        return self._with_blocks(node, self.block)

    def _with_blocks(self, node: ast.stmt, make: Callable[[Sequence[ast.stmt]], list[ast.stmt]]) -> ast.stmt:
        """`node` with its blocks made anew; functions and classes are no blocks."""
        if not isinstance(node, (ast.If, ast.With, ast.Try, ast.TryStar)):
            return node
        new = copy.copy(node)
        before = self._bound
        if isinstance(node, ast.With):
            self._passed(*node.items)
        new.body = make(node.body)
        self._bound = before
        if not isinstance(new, ast.With):
            new.orelse = make(new.orelse)
        if isinstance(new, (ast.Try, ast.TryStar)):
            new.finalbody = make(new.finalbody)
            new.handlers = [copy.copy(handler) for handler in new.handlers]
            for handler in new.handlers:
                handler.body = make(handler.body)
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
        before = self._bound
        self._passed(*([node.iter, node.target] if isinstance(node, ast.For) else [node.test]))
        inside = self._bound
        plain.body = self.block(node.body)
        self._bound = before
        plain.orelse = self.block(node.orelse)
        if _depth(node) > _DEPTH:
            return plain
        number = len(self.loops)
        first = len(self.runs)
        key = ast.dump(node, include_attributes=True)
        if self._scope is not None:
            key = f"{self._scope.name}: {key}"
        self.loops.append(LoopSource(key=key, line=node.lineno, runs=()))
        self._bound = inside
        head = self._parts(node.body, number, node.lineno)
        self._bound = before
        runs = tuple(n for n in range(first, len(self.runs)) if self.runs[n].loop == number)
        if not runs:
            del self.loops[number:], self.runs[first:]
            return plain
        self.loops[number] = LoopSource(key=key, line=node.lineno, runs=runs, local=self._scope is not None)
        made = _for(plain, head, number) if isinstance(plain, ast.For) else _while(plain, head, number)
        if not inner:
            return made
        return ast.copy_location(ast.If(attribute_of(LOOP, number, "live", node), [made], [plain]), node)

    def _parts(self, statements: Sequence[ast.stmt], loop: int, line: int) -> list[ast.stmt]:
        """A block of the head: its runs handed over, everything else in its place."""
        made: list[ast.stmt] = []
        pending: list[ast.stmt] = []
        before = self._bound

        def close() -> None:
            made.extend(self._run(tuple(pending), loop, line) if is_work(pending) else self.block(pending))
            self._passed(*pending)
            pending.clear()

        for statement in statements:
            if may_run(statement) and (self._scope is None or self._scope.allows(statement)):
                pending.append(statement)
                continue
            close()
            if isinstance(statement, (ast.For, ast.While)):
                made.append(self.loop(statement))
            else:
                made.append(self._with_blocks(statement, lambda block: self._parts(block, loop, line)))
            self._passed(statement)
        close()
        self._bound = before
        return made

    def _run(self, statements: tuple[ast.stmt, ...], loop: int, line: int) -> list[ast.stmt]:
        assert self._changing is not None
        local = None
        if self._scope is not None:
            local = self._scope.names_of_run(statements, self._bound)
            if local is None:
                return self.block(statements)
        number, at = len(self.runs), statements[0]
        source = RunSource(statements=statements, changing=self._changing, loop=loop, loop_line=line, local=local)
        self.runs.append(source)
        plain = self.block(statements)

        inputs, outputs = (local.inputs, local.outputs) if local is not None else ((), ())
        call = ast.copy_location(_assigned(outputs, call_of(RUN, number, "run", at, *map(_read, inputs))), at)
        mend = ast.copy_location(ast.Expr(call_of(RUN, number, "mend", at)), at)
        again = ast.copy_location(ast.Raise(None, None), at)
        back = [_taken_back(number, name, at) for name in outputs]
        raised = [_raised_at(number, line, at) for line in _lines(statements)]
        handler = ast.copy_location(ast.ExceptHandler(None, None, [mend, *back, *raised, again]), at)
        handed: list[ast.stmt] = [ast.copy_location(ast.Try([call], [handler], [], []), at)]
        if local is not None and local.temporaries:  # what an iteration as written left there would live on
            stores: list[ast.expr] = [ast.Name(name, ast.Store()) for name in local.temporaries]
            handed.insert(0, ast.copy_location(ast.Assign(stores, ast.Constant(None)), at))
        live = attribute_of(RUN, number, "live", at)
        return [ast.copy_location(ast.If(live, handed, plain), at)]


def _read(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _assigned(names: Sequence[str], value: ast.expr) -> ast.stmt:
    if not names:
        return ast.Expr(value)
    return ast.Assign([ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store())], value)


def _taken_back(number: int, name: str, at: ast.AST) -> ast.stmt:
    """``if <run>.has(name): name = <run>.take(name)``: what was bound before an exception is bound."""
    quoted = ast.Constant(name)
    taken = ast.Assign([ast.Name(name, ast.Store())], call_of(RUN, number, "take", at, quoted))
    return ast.copy_location(ast.If(call_of(RUN, number, "has", at, quoted), [taken], []), at)


def _lines(statements: Sequence[ast.stmt]) -> list[int]:
    """The lines on which an instruction of these statements may stand."""
    return sorted({node.lineno for item in statements for node in ast.walk(item) if isinstance(node, _PLACED)})


def _raised_at(number: int, line: int, at: ast.stmt) -> ast.stmt:
    """``if <run>.raised_at(line): raise``, on that line: IPython shows where a frame stands, not what entries say."""
    test = call_of(RUN, number, "raised_at", at, ast.Constant(line))
    made = ast.If(test, [ast.Raise(None, None)], [])
    for node in ast.walk(made):
        ast.copy_location(node, at)
        if isinstance(node, _PLACED):
            node.lineno = node.end_lineno = line
            node.col_offset = node.end_col_offset = 0
    return made


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


def is_work(statements: Sequence[ast.stmt]) -> bool:
    """True where this is more than one call or one operation: what a single call does, its callee's region does."""
    return sum(isinstance(node, _WORK) for item in statements for node in ast.walk(item)) >= 2


def _depth(node: ast.AST) -> int:
    """How many loops are nested in each other, at most."""
    inner = max((_depth(child) for child in ast.iter_child_nodes(node)), default=0)
    return inner + isinstance(node, (ast.For, ast.While))
