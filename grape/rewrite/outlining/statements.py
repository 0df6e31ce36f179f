"""Which statements may be part of a run, as far as their syntax tells. What their values are is seen when they run."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_EFFECTS = frozenset(
    {"print", "input", "open", "next", "exec", "eval", "compile", "locals", "globals", "vars", "dir", "setattr"}
    | {"delattr", "breakpoint", "exit", "quit", "display", "__import__", "super", "get_ipython", "iter", "reversed"}
)
"""Built-in functions with effects, or whose meaning depends on the scope in which they are called."""
_READS = frozenset({"item", "tolist", "numpy"})
_REPEATS = 32
"""A loop inside a run is part of it where it runs at most so many times, which must stand in the source."""
_STAYS = (
    *(ast.Return, ast.Raise, ast.Delete, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.AnnAssign),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Try, ast.TryStar, ast.While, ast.Match),
    *(ast.AsyncFor, ast.AsyncWith, ast.Await, ast.Yield, ast.YieldFrom, ast.Lambda, ast.GeneratorExp),
    *(ast.Break, ast.Continue, ast.JoinedStr),
)


def is_left_alone(loop: ast.stmt) -> bool:
    """True where a loop stays exactly as it is: what awaits or yields cannot leave its frame."""
    return any(
        isinstance(node, (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Yield, ast.YieldFrom))
        or (isinstance(node, ast.comprehension) and bool(node.is_async))
        for node in _own_nodes(loop)
    )


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below `node` in its own scope."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield from _own_nodes(child)


def may_run(statement: ast.stmt) -> bool:
    """True where a statement may be part of a run: it stays in its place, jumps nowhere and has no obvious effect."""
    if isinstance(statement, ast.Expr) and not isinstance(statement.value, ast.Call):
        return False
    return _allowed(statement)


def _allowed(node: ast.AST) -> bool:
    if isinstance(node, _STAYS):
        return False
    if isinstance(node, ast.For):
        if not _is_short(node.iter) or not isinstance(node.target, (ast.Name, ast.Tuple)) or node.orelse:
            return False
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id in _EFFECTS:
            return False
        if isinstance(node.func, ast.Attribute) and node.func.attr in _READS:
            return False
    elif isinstance(node, ast.Attribute):
        if not isinstance(node.ctx, ast.Load):
            return False
    elif isinstance(node, ast.Name) and node.id.startswith("__"):
        return False
    return all(_allowed(child) for child in ast.iter_child_nodes(node))


def _is_short(iterable: ast.expr) -> bool:
    """True where the number of iterations stands in the source, and is small."""
    if isinstance(iterable, (ast.Tuple, ast.List)):
        return len(iterable.elts) <= _REPEATS and not any(isinstance(item, ast.Starred) for item in iterable.elts)
    if not isinstance(iterable, ast.Call) or not isinstance(iterable.func, ast.Name) or iterable.keywords:
        return False
    if iterable.func.id in ("enumerate", "zip"):
        return (
            bool(iterable.args)
            and any(_is_short(argument) for argument in iterable.args)
            and all(isinstance(argument, (ast.Name, ast.Constant)) or _is_short(argument) for argument in iterable.args)
        )
    if iterable.func.id != "range" or not all(map(_is_integer, iterable.args)) or not 1 <= len(iterable.args) <= 3:
        return False
    values = [ast.literal_eval(argument) for argument in iterable.args]
    return not (len(values) == 3 and values[2] == 0) and len(range(*values)) <= _REPEATS


def _is_integer(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and type(node.value) is int
