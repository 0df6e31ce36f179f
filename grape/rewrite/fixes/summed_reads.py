"""Reads whose values are only added up: the sum stays on the device."""

from __future__ import annotations

import libcst as cst

from ..code import Code, Loop, beside, descendants, edited
from ..effects import CONSTANTS, call_name, calls, moved_out_of
from ..host_reads import Read, kept_copy, sees
from ..result import Declined


def added(code: Code, read: Read, small: cst.AugAssign, statement: cst.CSTNode, loops: list[Loop]) -> str | Declined:
    line = code.line(statement)
    if not isinstance(small.target, cst.Name):
        return Declined(why=f"`{code.text(small.target)}` may be read elsewhere at each step", line=line)
    name = small.target.value
    others = _factors(code, read, small.value)
    if isinstance(others, Declined):
        return others
    loop = None
    for candidate in loops:
        if [use for use in code.uses(name, candidate) if use is not small.target]:
            break
        loop = candidate
    if loop is None:
        return Declined(why=f"`{name}` is used in the loop", line=line)
    home = code.function(loop)
    if code.is_shared(name, home):
        return Declined(why=f"`{name}` is shared between functions", line=line)
    for use in code.uses(name):
        if code.function(use) is not home and sees(code, use, home):
            return Declined(why=f"a function that may run in the loop uses `{name}`", line=code.line(use))
    refused = moved_out_of(code, statement, loop)
    if refused is not None:
        return refused
    return _summed_later(code, read, small, loop, others)


def _summed_later(code: Code, read: Read, small: cst.AugAssign, loop: Loop, others: list[cst.BaseExpression]) -> str:
    target = code.text(small.target)
    parts, value = code.fresh(f"{target}_parts"), code.fresh("part")
    names = [code.fresh(f"factor_{number}" if number else "factor") for number in range(len(others))]
    kept = ", ".join([code.text(kept_copy(read)), *map(code.text, others)])
    edits: dict[cst.CSTNode, cst.CSTNode] = {read.node: read.of(cst.Name(value))}
    edits.update({other: cst.Name(name) for other, name in zip(others, names, strict=True)})
    later = edited(small, edits)
    bound = ", ".join([value, *names])
    append = f"{parts}.append({f'({kept})' if others else kept})"
    after = cst.parse_statement(f"for {bound} in {parts}:\n    {code.text(later)}\n", code.module.config_for_parsing)
    before = cst.parse_statement(f"{parts} = []", code.module.config_for_parsing)
    return code.replaced({small: cst.Expr(cst.parse_expression(append)), loop: beside(before, [after])})


def _factors(code: Code, read: Read, value: cst.BaseExpression) -> list[cst.BaseExpression] | Declined:
    """Factors that the value is multiplied with or divided by, apart from constants; each is kept with the value."""
    if value is read.node:
        return []
    if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, (cst.Multiply, cst.Divide)):
        for inner, other in ((value.left, value.right), (value.right, value.left)):
            if any(node is read.node for node in descendants(inner)):
                more = _factors(code, read, inner)
                if isinstance(more, Declined) or isinstance(other, CONSTANTS):
                    return more
                if _is_number(other):
                    return [*more, other]
                return Declined(why=f"`{code.text(other)}` may change before the loop ends", line=code.line(other))
    return Declined(why="something else is computed from the value at each step", line=code.line(value))


def _is_number(node: cst.BaseExpression) -> bool:
    """A size: a Python number that nothing can change in place."""
    name = call_name(node).rpartition(".")[2]
    if name in ("len", "size", "numel") and not any(call is not node for call in calls(node)):
        return name == "len" or bool(name == "numel" or (isinstance(node, cst.Call) and node.args))
    return (
        isinstance(node, cst.Subscript)
        and isinstance(node.value, cst.Attribute)
        and node.value.attr.value == "shape"
        and not list(calls(node))
    )
