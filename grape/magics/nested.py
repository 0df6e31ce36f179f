"""``%%grape`` as a real cell magic: below another cell magic (``%%time``), or behind a pasted prompt; and
``%grape CODE`` as a line among others.

What differs from ``%%grape`` on the first line: the report comes before the traceback of an error, the traceback
also shows the frames of the magics, and there is no top-level ``await``. Errors are raised, never swallowed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from IPython.core.error import UsageError as IPythonUsageError

from ..errors import UsageError
from ..options import parse_options
from .cell import GrapeCell
from .display import say
from .documentation import cell_help
from .source import comment_out, wants_help

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def run_nested(shell: InteractiveShell, outer: GrapeCell | None, line: str, body: str) -> object:
    """Run `body` and return the value of its last expression, or None. Raises what the body raises."""
    if wants_help(line):
        print(cell_help())
        return None
    if outer is not None:
        say("%%grape: the whole cell runs under Grape already; this line is ignored")
    return _run_source(shell, outer, f"%%grape {line}".rstrip() + "\n" + body, line)


def run_line(shell: InteractiveShell, outer: GrapeCell | None, code: str) -> object:
    """Run the `code` of a line of a cell, at its line; its value, where it is an expression. Raises what it raises."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals is not shell.user_ns:
        frame = frame.f_back
    above = frame.f_lineno - 1 if frame is not None and frame.f_code.co_name == "<module>" else 0
    return _run_source(shell, outer, "\n" * above + code + "\n", "")


def _run_source(shell: InteractiveShell, outer: GrapeCell | None, source: str, line: str) -> object:
    statements, filename = _parse(shell, source)
    cell = None
    if outer is None:
        try:
            cell = GrapeCell(shell, source=source, options=parse_options(line))
            if cell.options.rewrite:
                say("%%grape --rewrite works on the first line of a cell; this cell runs as written")
        except UsageError as error:
            say(f"UsageError: %%grape: {error} (the cell runs without Grape)")
    try:
        value = _run(shell, statements, filename, cell)
    except BaseException as error:
        if cell is not None:
            cell.finish(error)
        raise
    if cell is not None:
        cell.finish(None)
    return value


def _parse(shell: InteractiveShell, source: str) -> tuple[list[ast.stmt], str]:
    text = shell.transform_cell("".join(comment_out(source.splitlines(keepends=True))))
    filename = shell.compile.cache(text, shell.displayhook.prompt_count, raw_code=source)
    tree = shell.transform_ast(shell.compile.ast_parse(text, filename))
    return tree.body, filename


def _run(shell: InteractiveShell, statements: list[ast.stmt], filename: str, cell: GrapeCell | None) -> object:
    value = None
    for statement in statements:
        if cell is not None:
            cell.before_statement(filename)
        if statement is statements[-1] and isinstance(statement, ast.Expr):
            code = _compiled(shell, ast.Expression(statement.value), filename, "eval")
            value = eval(code, shell.user_global_ns, shell.user_ns)
        else:
            exec(_compiled(shell, ast.Module([statement], []), filename, "exec"), shell.user_global_ns, shell.user_ns)
    return value


def _compiled(shell: InteractiveShell, tree: ast.AST, filename: str, mode: str) -> CodeType:
    try:
        compiler: Callable[..., CodeType] = shell.compile
        return compiler(tree, filename, mode)
    except SyntaxError as error:
        if "await" in str(error):
            raise IPythonUsageError(
                "%%grape: top-level await works where %%grape is the first line of the cell"
            ) from None
        raise
