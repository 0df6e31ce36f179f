"""Where the ``%%grape`` line stands in a cell, and the cell with that line turned into a comment.

Pure functions of text. What a person typed decides, every time anew: front ends transform a cell also to ask
whether it is complete or asynchronous, so that nothing may be remembered from one transformation to the next.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

from IPython.core.inputtransformer2 import cell_magic, leading_indent

from ..errors import UsageError

_MAGIC = re.compile(r"(?P<indent>[ \t]*)%%grape(?:[ \t]+(?P<options>.*))?$", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class MagicLine:
    """The ``%%grape`` line of a cell: `index` counts lines from 0, `options` is the text behind ``%%grape``."""

    index: int
    indent: str
    options: str
    body_is_blank: bool

    @property
    def is_help_over_code(self) -> bool:
        """``%%grape --help`` above code stays a cell magic: it prints the help and runs nothing."""
        return wants_help(self.options) and not self.body_is_blank


def wants_help(options: str) -> bool:
    return any(word in ("-h", "--help") for word in options.split())


def find_magic(lines: Sequence[str]) -> MagicLine | None:
    """The ``%%grape`` line, where it is the first line that is not blank; None for any other cell.

    ``%%grape?`` asks for help and is no such line; nor is ``%%grape`` inside a string further down.
    """
    for index, line in enumerate(lines):
        if line and not line.isspace():
            match = _MAGIC.match(line.rstrip())
            if match is None:
                return None
            return MagicLine(
                index=index,
                indent=match["indent"],
                options=(match["options"] or "").strip(),
                body_is_blank=all(not rest.strip() for rest in lines[index + 1 :]),
            )
    return None


def code_behind(line: str, commands: Container[str]) -> str | None:
    """The text behind ``%grape``, where that is code to run under Grape: statements with a call or an assignment in
    them, that do not begin with the name of a command. None for a command, and for a mistyped one.
    """
    words = line.split(None, 1)
    if not words or words[0] in commands or words[0].startswith("-"):
        return None
    try:
        tree = ast.parse(line.strip())
    except (SyntaxError, ValueError):
        return None
    runs = (ast.Call, ast.Await, ast.Assign, ast.AugAssign, ast.NamedExpr)
    return line.strip() if any(isinstance(node, runs) for node in ast.walk(tree)) else None


def broken_code(line: str) -> str | None:
    """The error in a line that looks like code and is none; None where it does not."""
    if not re.search(r"[(=\[]", line):
        return None
    try:
        ast.parse(line.strip())
    except SyntaxError as error:
        return error.msg
    return None


def lone_line(lines: Sequence[str], commands: Container[str]) -> str | None:
    """The code of a cell that is one line, ``%grape model(x)``: it runs as a cell under ``%%grape``. None else."""
    typed = [line.strip() for line in lines if line.strip()]
    if len(typed) != 1 or not re.match(r"%grape[ \t]", typed[0]):
        return None
    return code_behind(typed[0].removeprefix("%grape"), commands)


def comment_out(lines: list[str]) -> list[str]:
    """`lines` (with their line ends) with the ``%%grape`` line as a comment; any other cell as it is.

    Blank lines above it become comments too, since IPython would drop them and so shift every line number. Another
    cell magic directly below ``%%grape`` becomes the call that IPython would have made of it.
    """
    magic = find_magic(lines)
    if magic is None or magic.is_help_over_code:
        return lines
    above = [f"{magic.indent}#\n" for _ in range(magic.index)]
    typed = lines[magic.index]
    comment = f"{magic.indent}# {typed[len(magic.indent) :]}"
    return [*above, comment, *_inner_magic(lines[magic.index + 1 :])]


def _inner_magic(body: list[str]) -> list[str]:
    start = next((i for i, line in enumerate(body) if line.strip()), len(body))
    rest = body[start:]
    if not rest or not rest[0].lstrip().startswith("%%"):
        return body
    return [*body[:start], *cell_magic(leading_indent(rest))]


def call_in(code: str) -> ast.Call:
    """The one call that `code` is. Raises `UsageError`."""
    try:
        call = ast.parse(code.strip(), mode="eval").body
    except SyntaxError as error:
        raise UsageError(f"cannot read '{code}': {error.msg}") from None
    if not isinstance(call, ast.Call):
        raise UsageError(f"%grape whatif needs a call of a module, as in %grape whatif model(x), not '{code}'")
    return call


def evaluated(call: ast.Call, names: dict[str, object]) -> tuple[Any, tuple[object, ...], dict[str, object]]:
    """The callee, and the arguments that it would get."""
    given = ast.parse("lambda *args, **kwargs: (args, kwargs)", mode="eval").body
    collect = ast.Call(func=given, args=call.args, keywords=call.keywords)
    pair = ast.Tuple(elts=[call.func, collect], ctx=ast.Load())
    expression = ast.fix_missing_locations(ast.Expression(body=pair))
    try:
        code = compile(expression, "<whatif>", "eval")
    except SyntaxError as error:
        raise UsageError(f"cannot evaluate '{ast.unparse(call)}': {error.msg}") from None
    try:
        module, (args, kwargs) = eval(code, names)
    except NameError as error:
        raise UsageError(f"cannot evaluate '{ast.unparse(call)}': {error}") from None
    return module, args, kwargs
