"""Where a function changes Python state outside of itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_WRITES = frozenset({"append", "extend", "insert", "add", "update", "pop", "setdefault", "remove", "clear"})


def state_writes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[ast.stmt, str]]:
    """Statements that change a global, an attribute of something from outside, or a container from outside; and the
    name of what they change.
    """
    given = {arg.arg for arg in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}
    bound = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    outer = {name for node in ast.walk(function) if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names}
    local = (given | bound) - outer - {"self"}
    for node in ast.walk(function):
        if isinstance(node, ast.AugAssign) or (isinstance(node, ast.Assign) and len(node.targets) == 1):
            target = node.target if isinstance(node, ast.AugAssign) else node.targets[0]
            owner = root_name(target)
            if isinstance(target, ast.Name) and target.id in outer:
                yield node, target.id
            elif owner is None or owner in local:
                continue
            elif isinstance(target, ast.Attribute) or (isinstance(target, ast.Subscript) and _is_plain_key(target)):
                yield node, ast.unparse(target)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            func = node.value.func
            owner = root_name(func)
            if isinstance(func, ast.Attribute) and func.attr in _WRITES and owner is not None and owner not in local:
                yield node, ast.unparse(func.value)


def root_name(node: ast.expr) -> str | None:
    """``a`` of ``a.b[0].c``."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _is_plain_key(target: ast.Subscript) -> bool:
    """A key of a dict; an index may be a write into a tensor, which a replay repeats."""
    return isinstance(target.slice, ast.Constant) and isinstance(target.slice.value, str)
