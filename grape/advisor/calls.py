"""Where a cell calls a region, and what it hands over there."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TypeGuard

from ..model import Position
from .code.parsed import last_name
from .code.source import CellSource


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSite:
    """One call in the cell, its arguments as text ("" where that is long). `starred` marks unpacked ones.

    `carried` are the names that hold what the call returned when its loop comes round to it again.
    """

    at: Position
    arguments: tuple[str, ...]
    keywords: tuple[tuple[str, str], ...]
    carried: frozenset[str]
    starred: bool


def call_sites(source: CellSource, name: str) -> tuple[CallSite, ...]:
    """The calls in the cell to `name`: a plain name, or the last part of an attribute."""
    parsed = source.parsed(source.file)
    if parsed is None or parsed.tree is None:
        return ()
    return tuple(
        CallSite(
            at=Position(file=source.file, line=call.lineno, function=function),
            arguments=tuple(parsed.text(arg) or "" for arg in call.args),
            keywords=tuple((k.arg, parsed.text(k.value) or "") for k in call.keywords if k.arg),
            carried=_carried(call, loop),
            starred=any(isinstance(arg, ast.Starred) for arg in call.args),
        )
        for call, function, loop in parsed.calls
        if last_name(call.func) == name
    )


def parameters(source: CellSource, at: Position, name: str) -> tuple[str, ...]:
    """The positional parameters of the function `name` that is defined there; empty where its source is not known."""
    parsed = source.parsed(at.file)
    for node in parsed.functions.get(name, ()) if parsed is not None else ():
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        if node.name == name and first <= at.line <= node.body[0].lineno:
            return tuple(arg.arg for arg in (*node.args.posonlyargs, *node.args.args))
    return ()


def _carried(call: ast.Call, loop: ast.AST | None) -> frozenset[str]:
    """Names that the statement of `call` binds to its very result, and that nothing else in `loop` binds."""
    nodes = list(ast.walk(loop)) if loop is not None else []
    targets = [t for node in nodes if isinstance(node, ast.Assign) and node.value is call for t in node.targets]
    bound = {name.id for target in targets for name in ast.walk(target) if _binds(name)}
    stored = [name.id for name in nodes if _binds(name)]
    return frozenset(name for name in bound if stored.count(name) == 1)


def _binds(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
