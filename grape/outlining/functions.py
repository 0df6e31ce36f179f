"""A function's code with its loops outlined, made from its source where that is certainly its source."""

from __future__ import annotations
import __future__

import ast
import dis
import functools
import linecache
import types
from collections.abc import Iterator

from ..quiet import syntax_tree
from ..rewrite.outlining import Outlined, outline_function
from .code import compile_quietly
from .loop import Loop

_LOOPING = frozenset(number for name, number in dis.opmap.items() if name == "FOR_ITER" or "JUMP_BACKWARD" in name)
"""Code without any of these has no loop."""
_FUTURES = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)


def outlined_function(code: types.CodeType) -> tuple[Outlined, types.CodeType, int, str] | None:
    """The loops that were outlined in the function that `code` belongs to, its code with marks, compiler flags and the
    file's text.

    None where there is nothing to outline, or the file at hand is not what the code was compiled from.
    """
    if not _LOOPING.intersection(code.co_code[::2]):
        return None
    cell = "".join(linecache.getlines(code.co_filename))
    flags = code.co_flags & _FUTURES
    for module in _compiled_units(cell, code):
        found = _definition(module, code)
        outlined = outline_function(found) if found is not None else None
        if outlined is None or found is None:
            return None
        if _code_in(compile_quietly(module, code.co_filename, "exec", flags), code) == code:
            new = ast.fix_missing_locations(_Replaced(found, outlined.body[0]).visit(module))
            made = _code_in(compile_quietly(new, code.co_filename, "exec", flags), code)
            if made is not None and made.co_freevars == code.co_freevars:
                return outlined, made, flags, cell
    return None


def _definition(module: ast.Module, code: types.CodeType) -> ast.FunctionDef | None:
    """Where a function is defined that has this name and begins on this line."""
    named = (node for node in ast.walk(module) if isinstance(node, ast.FunctionDef) and node.name == code.co_name)
    return next((node for node in named if _first_line(node) == code.co_firstlineno), None)


def _compiled_units(text: str, code: types.CodeType) -> Iterator[ast.Module]:
    """Units that may have been compiled at once: the statement at the top that holds the code, as the shell does; the
    file.

    The same function gets other code where its imports are compiled with it.
    """
    lines = text.splitlines(keepends=True)
    for first, last in _statements(text):
        if first <= code.co_firstlineno <= last:
            module = syntax_tree("\n" * (first - 1) + "".join(lines[first - 1 : last]))
            if module is not None:
                yield module
    module = syntax_tree(text)
    if module is not None:
        yield module


@functools.lru_cache(maxsize=64)
def _statements(text: str) -> tuple[tuple[int, int], ...]:
    """First and last line of each definition at the top of a file or cell."""
    module = syntax_tree(text)
    kinds = (ast.FunctionDef, ast.ClassDef)
    found = [node for node in module.body if isinstance(node, kinds)] if module is not None else []
    return tuple([(_first_line(node), node.end_lineno or node.lineno) for node in found])


def loops_in(code: types.CodeType) -> Iterator[Loop]:
    """The loops among the constants of a function's code."""
    return (constant for constant in code.co_consts if isinstance(constant, Loop))


def _first_line(node: ast.FunctionDef | ast.ClassDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _code_in(module: types.CodeType, like: types.CodeType) -> types.CodeType | None:
    """The code inside of `module` of the same name at the same line as `like`."""
    for constant in module.co_consts:
        if isinstance(constant, types.CodeType):
            if (constant.co_qualname, constant.co_firstlineno) == (like.co_qualname, like.co_firstlineno):
                return constant
            inner = _code_in(constant, like)
            if inner is not None:
                return inner
    return None


class _Replaced(ast.NodeTransformer):
    """One statement in the place of another."""

    def __init__(self, old: ast.stmt, new: ast.stmt) -> None:
        self._old = old
        self._new = new

    def generic_visit(self, node: ast.AST) -> ast.AST:
        return self._new if node is self._old else super().generic_visit(node)
