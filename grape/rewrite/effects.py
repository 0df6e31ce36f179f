"""Effects of a piece of code that a rewrite has to know before it moves anything."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from .code import Code, descendants, dotted
from .result import Declined

CONSTANTS = (cst.Integer, cst.Float, cst.SimpleString, cst.Imaginary)

_OPAQUE = frozenset({"eval", "exec", "globals", "locals", "vars", "breakpoint"})
_KEEPS_ERRORS = ("suppress", "raises")


def call_name(node: cst.CSTNode) -> str:
    """The dotted name of what is called, the last part alone where the rest is an expression; else ""."""
    if not isinstance(node, cst.Call):
        return ""
    name = dotted(node.func)
    return name or (node.func.attr.value if isinstance(node.func, cst.Attribute) else "")


def calls(node: cst.CSTNode) -> Iterator[cst.Call]:
    return (item for item in descendants(node) if isinstance(item, cst.Call))


def only_statement(line: cst.CSTNode | None) -> cst.BaseSmallStatement | None:
    """The statement of a line that holds one."""
    if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1:
        return line.body[0]
    return None


def value_of(code: Code, name: str) -> cst.BaseExpression | None:
    """The value of a variable that the source binds once, by an assignment of its own."""
    stores = [use for use in code.uses(name) if code.is_stored(use)]
    statement = only_statement(code.statement(stores[0])) if len(stores) == 1 else None
    return statement.value if isinstance(statement, cst.Assign) else None


def moved_out_of(code: Code, statement: cst.CSTNode, loop: cst.CSTNode) -> Declined | None:
    """Why `statement` may not be moved from inside `loop` to behind it; None where it may.

    What stands behind a loop does not run where an exception leaves the loop and is caught, and runs at another time
    where the loop suspends.
    """
    for above in code.ancestors(statement):
        if isinstance(above, (cst.FunctionDef, cst.ClassDef)):
            break
        if isinstance(above, (cst.Try, cst.TryStar)):
            return Declined(why="an exception of the loop may be caught around it", line=code.line(above))
        if isinstance(above, cst.With) and any(
            word in call_name(item.item) for item in above.items for word in _KEEPS_ERRORS
        ):
            return Declined(why="an exception of the loop may be caught around it", line=code.line(above))
    for node in descendants(loop):
        if isinstance(node, (cst.Yield, cst.Await, cst.Asynchronous)):
            return Declined(why="the loop is suspended by a yield or an await", line=code.line(node))
        if isinstance(node, cst.Call) and call_name(node) in _OPAQUE:
            return Declined(why=f"what `{call_name(node)}` does cannot be known", line=code.line(node))
        if isinstance(node, cst.Name) and node.value.startswith("_grape_masked_"):
            return Declined(why="a magic or shell line stands in the loop", line=code.line(node))
    return None


def mutates(code: Code, name: str, within: cst.CSTNode) -> cst.CSTNode | None:
    """A place where the object `name` is written in place, or where something is reached that could do it later."""
    for use in code.uses(name, within):
        if code.is_stored(use):
            continue
        parent = code.parent(use)
        above = code.parent(parent) if parent is not None else None
        if isinstance(parent, (cst.Attribute, cst.Subscript)) and code.is_stored(parent):
            return use
        if isinstance(parent, cst.AugAssign) and parent.target is use:
            return use
        if isinstance(parent, cst.Attribute) and isinstance(above, cst.Call) and above.func is parent:
            method = parent.attr.value
            if method.endswith("_") and not method.endswith("__"):
                return use
        if isinstance(parent, cst.Arg) and parent.keyword is not None and parent.keyword.value == "out":
            return use
    return None
