"""One source as a syntax tree, walked through once: its functions, its calls, what stands on a line."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator
from functools import cached_property

_LONGEST = 48
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef
_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Assert)
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|$)")
_NOT_PYTHON = re.compile(r"^(\s*)[%!?].*$", re.MULTILINE)


class Parsed:
    """One source with its syntax tree, which is None where the source is no Python."""

    def __init__(self, source: str) -> None:
        self._source = _NOT_PYTHON.sub(r"\1pass", source)
        self.tree: ast.Module | None = None
        self._on_lines: dict[int, list[ast.expr | ast.stmt]] = {}
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):
            self.tree = ast.parse(self._source)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All of the tree, in the order of `ast.walk`."""
        return tuple(ast.walk(self.tree)) if self.tree is not None else ()

    @cached_property
    def calls(self) -> list[tuple[ast.Call, str, ast.AST | None]]:
        """All calls, with the function and the innermost loop statement around each."""
        return list(_calls_below(self.tree, "<module>", None)) if self.tree is not None else []

    @cached_property
    def functions(self) -> dict[str, list[Function]]:
        """The functions and methods of each name; of a class, what calling its instance runs."""
        found: dict[str, list[Function]] = {}
        for node in self.nodes:
            if isinstance(node, _FUNCTIONS):
                found.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.ClassDef):
                members = (member for member in node.body if isinstance(member, _FUNCTIONS))
                found.setdefault(node.name, []).extend(m for m in members if m.name in ("forward", "__call__"))
        return found

    def text(self, node: ast.AST, shorter: str | None = None) -> str | None:
        """The node as written; normalised where it spans lines; `shorter` where it is long."""
        text = self._written(node)
        if text is None or not _is_text_of(text, node):
            text = ast.unparse(node)
        return text if len(text) <= _LONGEST else shorter

    def _written(self, node: ast.AST) -> str | None:
        """The text that stands there, where it is on one line. The columns of a syntax tree count bytes."""
        line, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", None)
        if line != end or not 0 < line <= len(self._lines):
            return None
        return self._lines[line - 1][node.col_offset : node.end_col_offset].decode()  # type: ignore[attr-defined]

    @cached_property
    def _lines(self) -> list[bytes]:
        return [line.encode() for line in _LINE.findall(self._source)]

    def on_line(self, line: int) -> list[ast.expr | ast.stmt]:
        """Nodes whose own first line, or for statements whose test, covers the line; outermost first."""
        if line not in self._on_lines:
            self._on_lines[line] = [node for node, first, last in self._spans if first <= line <= last]
        return self._on_lines[line]

    @cached_property
    def _spans(self) -> list[tuple[ast.expr | ast.stmt, int, int]]:
        found: list[tuple[ast.expr | ast.stmt, int, int]] = []
        for node in self.nodes:
            if isinstance(node, (ast.If, ast.While)):
                found.append((node, node.lineno, node.test.end_lineno or node.lineno))
            elif isinstance(node, (ast.expr, *_SIMPLE)):
                found.append((node, node.lineno, node.end_lineno or node.lineno))
        return found


def last_name(func: ast.expr) -> str:
    """The name that is called: a plain one, or the last part of an attribute; empty for anything else."""
    if isinstance(func, ast.Attribute):
        return func.attr
    return func.id if isinstance(func, ast.Name) else ""


def _calls_below(node: ast.AST, function: str, loop: ast.AST | None) -> Iterator[tuple[ast.Call, str, ast.AST | None]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield child, function, loop
        if isinstance(child, _FUNCTIONS):
            yield from _calls_below(child, child.name, None)
        else:
            around = child if isinstance(child, (ast.For, ast.AsyncFor, ast.While)) else loop
            yield from _calls_below(child, function, around)


def _is_text_of(text: str, node: ast.AST) -> bool:
    """Python 3.11 misplaces what stands inside an f-string: then `text` is something else."""
    try:
        parsed = ast.parse(f"({text})", mode="eval").body
    except (SyntaxError, ValueError):
        return False
    return ast.unparse(parsed) == ast.unparse(node)
