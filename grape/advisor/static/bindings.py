"""Which names a statement binds, and to what kind of value."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Literal, Protocol

Kind = Literal["tensor", "mask", "module", "batches", "range", "other", "torch"]
"""`mask` is a boolean tensor, `module` something that gives tensors when called, `batches` something that gives
tensors when iterated, `range` the number of an iteration, `torch` a name of the library itself."""


class Inference(Protocol):
    """The kinds of expressions, as `Kinds` knows them."""

    def of(self, node: ast.expr) -> Kind | None: ...

    def combined(self, kinds: Iterable[Kind | None], *, masks: bool) -> Kind | None: ...


def bindings(node: ast.AST, kinds: Inference) -> Iterator[tuple[ast.expr, Kind | None]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _unpacked(target, node.value, kinds)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield node.target, kinds.of(node.value)
    elif isinstance(node, ast.AugAssign):
        both = (kinds.of(node.target), kinds.of(node.value))
        yield node.target, kinds.combined(both, masks=isinstance(node.op, (ast.BitAnd, ast.BitOr)))
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        yield from _iterated(node.target, node.iter, kinds)
    elif isinstance(node, ast.NamedExpr):
        yield node.target, kinds.of(node.value)


def _unpacked(target: ast.expr, value: ast.expr, kinds: Inference) -> Iterator[tuple[ast.expr, Kind | None]]:
    lists = (ast.Tuple, ast.List)
    if isinstance(target, lists) and isinstance(value, lists) and len(target.elts) == len(value.elts):
        for one, other in zip(target.elts, value.elts, strict=True):
            yield from _unpacked(one, other, kinds)
        return
    kind = kinds.of(value)
    if isinstance(target, (ast.Tuple, ast.List)):
        shape = isinstance(value, ast.Attribute) and value.attr == "shape"
        for item in target.elts:
            yield item, "other" if shape else "tensor" if kind in ("tensor", "mask", "batches") else None
    else:
        yield target, kind


def _iterated(target: ast.expr, iterable: ast.expr, kinds: Inference) -> Iterator[tuple[ast.expr, Kind | None]]:
    if isinstance(iterable, ast.Call) and isinstance(iterable.func, ast.Name):
        name, given = iterable.func.id, iterable.args
        if name in ("range", "trange"):
            yield target, "range"
            return
        if name == "enumerate" and isinstance(target, ast.Tuple) and len(target.elts) == 2 and given:
            yield target.elts[0], "range"
            yield from _iterated(target.elts[1], given[0], kinds)
            return
        if name == "zip" and isinstance(target, ast.Tuple) and len(target.elts) == len(given):
            for one, other in zip(target.elts, given, strict=True):
                yield from _iterated(one, other, kinds)
            return
        if name in ("tqdm", "iter", "reversed", "list", "islice") and given:
            yield from _iterated(target, given[0], kinds)
            return
    kind = kinds.of(iterable)
    of_item: Kind | None = "tensor" if kind in ("tensor", "mask", "batches") else None
    for item in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
        yield item, of_item
