"""What the cell's own source says about a line: the expression that stands there, and whether it is in a loop."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from functools import lru_cache

from ..model import CellEvidence, Position

__all__ = ["CellSource", "cell_source"]

_LONGEST = 48
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_TESTS = {"if": ast.If, "while": ast.While, "assert": ast.Assert, "ternary": ast.IfExp}
_TESTED = (ast.If, ast.While, ast.Assert, ast.IfExp)
_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Assert)
_NOT_PYTHON = re.compile(r"^(\s*)[%!?].*$", re.MULTILINE)


class CellSource:
    """Look-ups in one cell's source. Every answer is None where the line is not in the cell or cannot be parsed."""

    def __init__(self, file: str, source: str) -> None:
        self._file = file
        try:
            self._tree: ast.Module | None = ast.parse(_NOT_PYTHON.sub(r"\1pass", source))
        except (SyntaxError, ValueError):
            self._tree = None

    def in_loop(self, at: Position | None) -> bool | None:
        """True where a loop of the same function (or of the cell's top level) encloses the line."""
        if self._tree is None or at is None or at.file != self._file:
            return None
        return _in_loop(self._tree, at.line, looping=False)

    def call(self, at: Position | None, names: Collection[str]) -> str | None:
        """The one call on that line to one of `names` (a method, an attribute or a plain name), as written.

        Of nested calls the innermost one counts; None where several stand side by side.
        """
        found = [node for node in self._on_line(at) if isinstance(node, ast.Call) and _last_name(node.func) in names]
        innermost = [node for node in found if not any(other in found for other in ast.walk(node) if other is not node)]
        texts = {ast.unparse(node) for node in innermost}
        return _text(innermost[0], f"{_last_name(innermost[0].func)}(...)") if len(texts) == 1 else None

    def subscript(self, at: Position | None) -> str | None:
        """The first indexing expression on that line whose index is no constant."""
        for node in self._on_line(at):
            if isinstance(node, ast.Subscript) and not isinstance(node.slice, (ast.Constant, ast.Slice)):
                return _text(node, None)
        return None

    def condition(self, at: Position | None, construct: str) -> str | None:
        """The test of the `if`, `while`, `assert` or ternary on that line, or the whole `and`/`or`/`not`."""
        for node in self._on_line(at):
            if isinstance(node, _TESTED) and isinstance(node, _TESTS.get(construct, ())):
                return _text(node.test, None)
            if construct == "bool-op" and isinstance(node, (ast.BoolOp, ast.UnaryOp)):
                return _text(node, None)
        return None

    def target(self, at: Position | None) -> str | None:
        """The name that the statement on that line assigns to."""
        for node in self._on_line(at):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                return _text(node.targets[0], None)
            if isinstance(node, (ast.AnnAssign, ast.AugAssign)):
                return _text(node.target, None)
        return None

    def _on_line(self, at: Position | None) -> Iterator[ast.expr | ast.stmt]:
        """Nodes whose own first line, or for statements whose test, covers the line; outermost first."""
        if self._tree is None or at is None or at.file != self._file:
            return
        for node in ast.walk(self._tree):
            if isinstance(node, (ast.If, ast.While)):
                if node.lineno <= at.line <= (node.test.end_lineno or node.lineno):
                    yield node
            elif isinstance(node, (ast.expr, *_SIMPLE)) and node.lineno <= at.line <= (node.end_lineno or node.lineno):
                yield node


@lru_cache(maxsize=8)
def _parsed(file: str, source: str) -> CellSource:
    return CellSource(file, source)


def cell_source(evidence: CellEvidence) -> CellSource:
    return _parsed(evidence.file, evidence.source)


def _in_loop(node: ast.AST, line: int, *, looping: bool) -> bool:
    """True where any expression on the line is in a loop; a function begins outside of the loops around it."""
    found = []
    for child in ast.iter_child_nodes(node):
        first, last = getattr(child, "lineno", None), getattr(child, "end_lineno", None)
        if first is None or last is None or not first <= line <= last:
            continue
        if isinstance(child, _SCOPES):
            inside = False
        elif isinstance(child, (ast.For, ast.AsyncFor)):
            inside = looping or child.body[0].lineno <= line <= (child.body[-1].end_lineno or line)
        else:
            inside = looping or isinstance(child, _LOOPS)
        found.append(_in_loop(child, line, looping=inside))
    return any(found) if found else looping


def _last_name(func: ast.expr) -> str:
    if isinstance(func, ast.Attribute):
        return func.attr
    return func.id if isinstance(func, ast.Name) else ""


def _text(node: ast.AST, shorter: str | None) -> str | None:
    text = ast.unparse(node)
    return text if len(text) <= _LONGEST else shorter
