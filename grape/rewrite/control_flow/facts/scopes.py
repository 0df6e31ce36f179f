"""Facts about a whole function or cell: its shared names, its counters, whether a compiler takes it."""

from __future__ import annotations

from functools import lru_cache

import libcst as cst

from ..tree import descendants
from .names import uses_of


def is_compiled(node: cst.FunctionDef | cst.ClassDef) -> bool:
    """True where a decorator hands the source to a compiler of its own."""
    words = {item.value for part in node.decorators for item in descendants(part) if isinstance(item, cst.Name)}
    return bool(words & {"compile", "cuda", "jit", "njit", "script", "triton", "vectorize"})


@lru_cache(maxsize=256)
def shared_names(body: cst.CSTNode) -> frozenset[str]:
    declared = {
        item.name.value
        for node in descendants(body)
        if isinstance(node, (cst.Global, cst.Nonlocal))
        for item in node.names
    }
    return frozenset(uses_of(body).captured | declared)


@lru_cache(maxsize=256)
def own_names(body: cst.CSTNode) -> frozenset[str]:
    """Names that this code binds itself, so that they stand for no module: `time` may be a tensor."""
    imported = {
        name
        for node in descendants(body)
        if isinstance(node, (cst.Import, cst.ImportFrom, cst.Global, cst.Nonlocal))
        for name in uses_of(node).stores
    }
    return frozenset(uses_of(body).stores) - imported


@lru_cache(maxsize=256)
def plain_names(body: cst.CSTNode) -> frozenset[str]:
    """Names that count: bound by `for` over `range` or `enumerate` and by nothing else."""
    counting: set[str] = set()
    others: set[str] = set()
    for node in descendants(body):
        if isinstance(node, cst.For):
            names = _counters(node)
            counting |= names
            others |= {item.value for item in descendants(node.target) if isinstance(item, cst.Name)} - names
        elif isinstance(node, (cst.AssignTarget, cst.AugAssign, cst.AnnAssign, cst.NamedExpr)):
            others |= {item.value for item in descendants(node.target) if isinstance(item, cst.Name)}
    return frozenset(counting - others)


def _counters(node: cst.For) -> set[str]:
    if not isinstance(node.iter, cst.Call) or not isinstance(node.iter.func, cst.Name):
        return set()
    if node.iter.func.value == "range" and isinstance(node.target, cst.Name):
        return {node.target.value}
    if node.iter.func.value == "enumerate" and isinstance(node.target, cst.Tuple):
        first = node.target.elements[0].value
        return {first.value} if isinstance(first, cst.Name) else set()
    return set()
