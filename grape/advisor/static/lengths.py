"""GR201: a length comes again after others, so that each of its shapes would be captured, or padded to a few."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .context import Context, StaticFinding, shown

__all__ = ["repeated_lengths"]

_MADE = frozenset({"zeros", "ones", "full", "empty", "rand", "randn", "arange", "randint"})
_FEWEST = 2


def repeated_lengths(context: Context) -> Iterator[StaticFinding]:
    """GR201: a model is called with a tensor that is as long as the number of the loop says, and the numbers repeat."""
    for node in context.model_calls():
        for loop in _loops_around(context, node):
            if not isinstance(loop.target, ast.Name) or not _repeats(context, loop):
                continue
            cut = next((part for part in node.args if _is_as_long_as(context, part, loop.target.id, loop)), None)
            if cut is not None:
                message = (
                    f"`{shown(node.func)}` is called with `{{}}`, whose lengths come again: a graph serves one each"
                )
                advice = "pad or bucket `{}` to a few sizes, so that calls share graphs"
                yield context.at("GR201", node, cut, message, advice)
                break


def _loops_around(context: Context, node: ast.AST) -> Iterator[ast.For]:
    """The `for` loops around it in the same function, innermost first."""
    loop = context.hot.loop(node)
    while loop is not None:
        if isinstance(loop, ast.For):
            yield loop
        loop = context.hot.loop(loop)


def _repeats(context: Context, loop: ast.For) -> bool:
    """Several lengths, each of them more than once: the list is written twice, or a loop around goes over it again."""
    lengths = loop.iter
    if isinstance(lengths, ast.BinOp) and isinstance(lengths.op, ast.Mult):
        factors = (lengths.left, lengths.right)
        again = any(isinstance(one, ast.Constant) and isinstance(one.value, int) and one.value > 1 for one in factors)
        return again and any(map(_are_several, factors))
    if isinstance(lengths, (ast.List, ast.Tuple)):
        values = [one.value for one in lengths.elts if isinstance(one, ast.Constant) and type(one.value) is int]
        if _FEWEST <= len(set(values)) < len(values):
            return True
    return _are_several(lengths) and context.hot.loop(loop) is not None


def _are_several(lengths: ast.expr) -> bool:
    """A range or a list of different numbers, perhaps in a list, a tuple or sorted."""
    if isinstance(lengths, (ast.List, ast.Tuple)):
        values = [one.value for one in lengths.elts if isinstance(one, ast.Constant) and type(one.value) is int]
        return len(values) == len(lengths.elts) and len(set(values)) >= _FEWEST
    if not isinstance(lengths, ast.Call) or not isinstance(lengths.func, ast.Name):
        return False
    if lengths.func.id in ("list", "tuple", "sorted", "reversed") and len(lengths.args) == 1:
        return _are_several(lengths.args[0])
    if lengths.func.id != "range":
        return False
    last = lengths.args[-1] if len(lengths.args) == 1 else None
    return not (isinstance(last, ast.Constant) and isinstance(last.value, int) and last.value < _FEWEST)


def _is_as_long_as(context: Context, given: ast.expr, number: str, loop: ast.For) -> bool:
    """``x[:, :n]``, ``torch.randn(n, 8)``, and a name that the loop gives to one of them."""
    if isinstance(given, ast.Name):
        made = [
            node.value
            for node in ast.walk(loop)
            if isinstance(node, ast.Assign) and any(ast.unparse(target) == given.id for target in node.targets)
        ]
        return len(made) == 1 and not isinstance(made[0], ast.Name) and _is_as_long_as(context, made[0], number, loop)
    if isinstance(given, ast.Subscript) and context.kinds.is_tensor(given.value):
        parts = given.slice.elts if isinstance(given.slice, ast.Tuple) else [given.slice]
        return any(isinstance(part, ast.Slice) and _ends_at(part, number) for part in parts)
    if isinstance(given, ast.Call) and context.kinds.root_call(given) in _MADE:
        sizes = [one for part in given.args for one in (part.elts if isinstance(part, ast.Tuple) else [part])]
        return any(_names(size, number) for size in sizes)
    return False


def _ends_at(part: ast.Slice, number: str) -> bool:
    """A slice whose length is another one with each number: one of its ends moves, and not both."""
    ends = [end for end in (part.lower, part.upper) if end is not None and _names(end, number)]
    return len(ends) == 1


def _names(node: ast.expr, number: str) -> bool:
    return any(isinstance(part, ast.Name) and part.id == number for part in ast.walk(node))
