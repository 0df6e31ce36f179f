"""Rules about what makes the CPU wait: values read (GR101), branches on them (GR102), shapes that depend on them
(GR103).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from typing import TypeGuard

from ..code.source import Parsed, has_remainder, last_name
from .context import Context, StaticFinding
from .kinds import Kinds

__all__ = ["branches", "dynamic_shapes", "host_reads", "reads_by_syntax"]

_PRINTS = frozenset({"print", "display", "write", "info", "debug", "warning", "set_postfix", "set_description"})
_TO_HOST = frozenset({"item", "tolist", "numpy", "cpu"})
_DYNAMIC = frozenset({"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount"})


@lru_cache(maxsize=64)
def reads_by_syntax(source: str) -> frozenset[str]:
    """The kinds of `host_reads` that a source could have at all, whatever its names stand for."""
    tree, found = Parsed(source).tree, set()
    for node in ast.walk(tree) if tree is not None else ():
        name = last_name(node.func) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.JoinedStr) or name in _PRINTS:
            found.add("print")
        elif name in _TO_HOST:
            found.add(name)
    return frozenset(found)


def host_reads(context: Context) -> Iterator[StaticFinding]:
    """GR101: a value or a tensor goes to the CPU, or is printed."""
    kinds = context.kinds
    for node in context.hot.nodes:
        if _is_seldom(context, node):
            continue
        if isinstance(node, ast.JoinedStr) and not _is_printed(context, node):
            shown = next(_formatted(kinds, node), None)
            if shown is not None:
                yield _printed(context, node, shown)
        if not isinstance(node, ast.Call):
            continue
        func = node.func
        if isinstance(func, ast.Attribute) and func.attr == "synchronize" and kinds.of(func) == "torch":
            yield context.at(
                "GR101", node, node, "`{}` makes the CPU wait for the GPU", "synchronize once after the loop"
            )
        elif isinstance(func, ast.Attribute) and func.attr in _TO_HOST and not node.args:
            owner = kinds.of(func.value)
            read = func.attr == "item" or (func.attr == "tolist" and kinds.reads_tell)
            if owner in ("tensor", "mask") or (read and owner is None):
                if _is_test(context, node):
                    continue
                advice = "keep the value as a tensor (`x.detach()`), and read it once after the loop"
                yield context.at("GR101", node, node, "`{}` makes the CPU wait for the GPU", advice, func.attr)
        elif isinstance(func, ast.Name) and func.id in ("float", "int") and node.args and kinds.is_tensor(node.args[0]):
            advice = "keep the value as a tensor, and read it once after the loop"
            yield context.at("GR101", node, node, "`{}` makes the CPU wait for the GPU", advice)
        elif last_name(func) in _PRINTS:
            shown = next(_shown(kinds, node), None)
            if shown is not None:
                yield _printed(context, node, shown)


def _printed(context: Context, node: ast.expr, shown: ast.expr) -> StaticFinding:
    advice = "print after the loop, or every n-th iteration; keep detached tensors in a list until then"
    return context.at("GR101", node, shown, "printing `{}` makes the CPU wait for the GPU", advice, "print")


def _is_printed(context: Context, node: ast.AST) -> bool:
    parent = context.kinds.parents.get(node)
    return isinstance(parent, ast.Call) and last_name(parent.func) in _PRINTS


def _shown(kinds: Kinds, call: ast.Call) -> Iterator[ast.expr]:
    for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
        if kinds.is_tensor(argument):
            yield argument
        elif isinstance(argument, ast.JoinedStr):
            yield from _formatted(kinds, argument)


def _formatted(kinds: Kinds, text: ast.JoinedStr) -> Iterator[ast.expr]:
    for part in text.values:
        if isinstance(part, ast.FormattedValue) and kinds.is_tensor(part.value):
            yield part.value


def _is_seldom(context: Context, node: ast.AST) -> bool:
    """True where the code does it only every n-th time already: behind ``if i % n == 0``."""
    parents = context.kinds.parents
    child, parent = node, parents.get(node)
    while parent is not None and not isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.For, ast.While)):
        if isinstance(parent, (ast.If, ast.IfExp)) and child is not parent.test and has_remainder(parent.test):
            return True
        if isinstance(parent, ast.BoolOp) and any(has_remainder(one) for one in parent.values if one is not child):
            return True
        child, parent = parent, parents.get(parent)
    return False


def _is_test(context: Context, node: ast.AST) -> bool:
    """True where the value only decides a branch: that is GR102."""
    return any(node in ast.walk(test) for test in _tests_above(context, node))


def _tests_above(context: Context, node: ast.AST) -> Iterator[ast.expr]:
    parent = context.kinds.parents.get(node)
    while parent is not None:
        if isinstance(parent, (ast.If, ast.While, ast.Assert, ast.IfExp)):
            yield parent.test
        if isinstance(parent, ast.stmt):
            return
        parent = context.kinds.parents.get(parent)


def branches(context: Context) -> Iterator[StaticFinding]:
    """GR102: a tensor's value decides."""
    advice = {
        "if": "compute both sides and select with `torch.where({}, a, b)`, or test only every n-th iteration",
        "while": "test `{}` only every n-th iteration, or run a fixed number of iterations with masked updates",
        "assert": "drop the assert from the hot path, or use `torch._assert_async({})`, which does not wait",
        "ternary": "select with `torch.where({}, a, b)`",
    }
    for node in context.hot.nodes:
        if _is_seldom(context, node):
            continue
        kind = {ast.If: "if", ast.While: "while", ast.Assert: "assert", ast.IfExp: "ternary"}.get(type(node))
        if kind is not None and isinstance(node, (ast.If, ast.While, ast.Assert, ast.IfExp)):
            if _decides(context.kinds, node.test):
                message = (
                    f"`{'' if kind == 'ternary' else kind + ' '}{{}}` needs a tensor's value: the CPU waits for the GPU"
                )
                yield context.at("GR102", node, node.test, message, advice[kind])
        elif _is_value(node, context):
            advice_here = "use `&`, `|`, `~` so that the result stays a tensor"
            yield context.at("GR102", node, node, "`{}` needs a tensor's value: the CPU waits for the GPU", advice_here)


def _is_value(node: ast.AST, context: Context) -> TypeGuard[ast.BoolOp]:
    """True for `and`/`or` on tensors whose result is kept, not tested."""
    if not isinstance(node, ast.BoolOp) or not any(map(context.kinds.is_tensor, node.values)):
        return False
    return not any(True for _ in _tests_above(context, node))


def _decides(kinds: Kinds, test: ast.expr) -> bool:
    """True where the truth of `test` is that of a tensor, or of a number read from one."""
    if isinstance(test, ast.BoolOp):
        return any(_decides(kinds, value) for value in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _decides(kinds, test.operand)
    if kinds.is_tensor(test) or kinds.root_call(test) in ("equal", "allclose"):
        return True
    reads = (node for node in ast.walk(test) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
    return any(node.func.attr in ("item", "tolist") and kinds.is_tensor(node.func.value) for node in reads)  # type: ignore[attr-defined]


def dynamic_shapes(context: Context) -> Iterator[StaticFinding]:
    """GR103: the shape of a result depends on values."""
    kinds = context.kinds
    message = "the output shape of `{}` depends on data: the CPU waits for the GPU"
    for node in context.hot.nodes:
        if isinstance(node, ast.Call):
            method = isinstance(node.func, ast.Attribute) and kinds.is_tensor(node.func.value)
            name = last_name(node.func) if method else kinds.root_call(node)
            if name in _DYNAMIC or (name == "where" and len(node.args) == (0 if method else 1)):
                yield context.at(
                    "GR103", node, node, message, "use a form whose result has a fixed size (a mask, `nonzero_static`)"
                )
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and kinds.is_tensor(node.value):
            index = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if any(kinds.of(part) == "mask" for part in index):
                yield context.at(
                    "GR103", node, node, message, "keep the full tensor and select with `torch.where(mask, x, 0)`"
                )
