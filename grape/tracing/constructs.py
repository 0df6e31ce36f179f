"""Which statement asked for a value on the host: an `if`, a `while`, a `print`, ..."""

from __future__ import annotations

import ast
import dis
from collections.abc import Iterable
from types import CodeType, FrameType

import executing

from ..quiet import without_warnings
from .positions import is_own_code

_cache: dict[tuple[int, int], tuple[CodeType, str | None]] = {}
_KEEPING = frozenset({"append", "appendleft", "extend", "add", "insert", "update"})
"""What these give back does not follow from the value that they are given."""
_OUTPUT = frozenset({"print", "display", "format", "str", "repr", "write", "info", "warning", "debug"})


def construct_of(frame: FrameType) -> str | None:
    """The construct around the expression that `frame` executes; None where the source is not available.

    One of "if", "while", "assert", "ternary", "bool-op", "print", "call".
    """
    key = (id(frame.f_code), frame.f_lasti)
    known = _cache.get(key)
    if known is None:
        known = _cache[key] = (frame.f_code, _classify(frame))
    return known[1]


def _classify(frame: FrameType) -> str | None:
    if not is_own_code(frame.f_code.co_filename):
        return _by_instruction(frame)  # parsing a library's source takes tens of milliseconds
    try:
        with without_warnings():  # it parses the file again
            found = executing.Source.executing(frame)
    except Exception:  # executing reads foreign source; whatever it meets, the cell goes on
        return None
    node: ast.AST | None = found.node
    if node is None:
        return _by_line(found.statements, frame.f_lineno)
    child = node
    while node is not None:
        name = _of_node(node, child)
        if name is not None:
            return name
        if isinstance(node, ast.stmt) or _keeps(node, child):
            break
        child, node = node, getattr(node, "parent", None)
    return "call" if isinstance(found.node, ast.Call) else None


def _by_instruction(frame: FrameType) -> str | None:
    """A conditional jump is a branch; a call may be anything."""
    instructions = iter(dis.get_instructions(frame.f_code))
    name = next((one.opname for one in instructions if one.offset == frame.f_lasti), "")
    if name == "TO_BOOL":  # since CPython 3.13 what the jump asks is asked by an instruction before it; so does `not`
        name = next(instructions).opname
    return "if" if "JUMP" in name else None


def _of_node(node: ast.AST, child: ast.AST) -> str | None:
    if isinstance(node, ast.If):
        return "if"
    if isinstance(node, ast.While):
        return "while"
    if isinstance(node, ast.Assert):
        return "assert"
    if isinstance(node, ast.IfExp) and child is node.test:
        return "ternary"
    if isinstance(node, ast.BoolOp) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)):
        return "bool-op"
    if isinstance(node, (ast.FormattedValue, ast.JoinedStr)):
        return "print"
    if isinstance(node, ast.Call) and child is not node:
        return "print" if _name(node) in _OUTPUT else None
    return None


def _keeps(node: ast.AST, child: ast.AST) -> bool:
    return isinstance(node, ast.Call) and child in node.args and _name(node) in _KEEPING


def _name(call: ast.Call) -> str:
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def _by_line(statements: Iterable[object] | None, line: int | None) -> str | None:
    """Jumps of `if tensor:` have no expression node of their own; the statement tells."""
    for statement in statements or ():
        if isinstance(statement, (ast.If, ast.While, ast.Assert)) and statement.lineno == line:
            return _of_node(statement, statement)
        if isinstance(statement, ast.stmt) and any(isinstance(node, ast.IfExp) for node in ast.walk(statement)):
            return "ternary"
    return None
