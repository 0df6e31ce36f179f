"""GR103: write through a mask without asking how many elements it has.

    x[mask] = 0.0            x.masked_fill_(mask, 0.0)
    x[mask] = y[mask]        x.copy_(torch.where(mask, y, x))

Each element becomes what it was going to be, and no shape depends on data. The forms agree where mask and tensors
have one shape: where every traced execution showed that, or the mask is a comparison of the tensor itself with a
number. What is reduced through a mask (``x[mask].mean()``) stays: the dense form would add in another order.
"""

from __future__ import annotations

import ast

import libcst as cst

from ...model import Finding
from ..code import Code, importing, same
from ..effects import call_name, calls, only_statement
from ..padded_edges import at_line
from ..result import Compared, Declined

_HALF, _WIDE = 65504.0, 3e38
_WIDE_TYPES = {"float32", "float64", "bfloat16"}
_TESTS = ("isnan", "isinf", "isfinite", "isneginf", "isposinf")
_COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
_JOINS = (cst.BitAnd, cst.BitOr, cst.BitXor)


def fix(code: Code, finding: Finding) -> str | Compared | Declined:
    assert finding.at is not None
    line = finding.at.line
    edges = at_line(code, finding)
    if edges is not None:
        return edges
    for statement in code.on_line(line, cst.SimpleStatementLine):
        small = only_statement(statement)
        if isinstance(small, cst.Assign) and (target := _item(small)) is not None:
            return _write(code, finding, small, target)
        if isinstance(small, cst.AugAssign) and isinstance(small.target, cst.Subscript):
            return Declined(why="write it as two steps: the new values, then `torch.where`", line=line)
    return Declined(
        why="no write through a mask stands on the line; a dense read would add in another order", line=line
    )


def filled(code: Code, finding: Finding) -> str | Declined | None:
    """The same for a number that is written through a mask; None where nothing of that kind stands on the line."""
    assert finding.at is not None
    for statement in code.on_line(finding.at.line, cst.SimpleStatementLine):
        small = only_statement(statement)
        if isinstance(small, cst.Assign) and _is_number(small.value) and (target := _item(small)) is not None:
            return _write(code, finding, small, target)
    return None


def _item(small: cst.Assign) -> cst.Subscript | None:
    """The item that a statement writes, where it writes nothing else."""
    target = small.targets[0].target if len(small.targets) == 1 else None
    return target if isinstance(target, cst.Subscript) else None


def _write(code: Code, finding: Finding, small: cst.Assign, target: cst.Subscript) -> str | Declined:
    line = code.line(small)
    mask, tensor = _index(target), target.value
    if mask is None:
        return Declined(why="the index is more than one mask", line=line)
    if list(calls(tensor)) or any(call_name(call).endswith("_") for call in calls(mask)):
        return Declined(why="evaluating the tensor or the mask may do something", line=line)
    if not _same_shape(finding) and not _is_about(mask, tensor):
        return Declined(why="mask and tensor were not seen to have the same shape", line=line)
    if _is_number(small.value):
        if not _fits(code, small.value, finding):
            return Declined(why="`masked_fill_` takes no number that the dtype may not hold", line=line)
        filled = cst.Call(
            cst.Attribute(value=tensor, attr=cst.Name("masked_fill_")),
            [cst.Arg(mask, comma=_COMMA), cst.Arg(small.value)],
        )
        return code.replaced({small: cst.Expr(filled, semicolon=small.semicolon)})
    other = small.value
    if not isinstance(other, cst.Subscript) or not isinstance(index := _index(other), cst.CSTNode):
        return Declined(why="the written values are neither a number nor another tensor at the same mask", line=line)
    if not same(index, mask) or list(calls(mask)) or list(calls(other.value)):
        return Declined(why="the two masks are not one variable", line=line)
    if not _same_shape(finding):
        return Declined(why="the tensors were not seen to have the same shape", line=line)
    where = f"torch.where({code.text(mask)}, {code.text(other.value)}, {code.text(tensor)})"
    copied = cst.parse_expression(f"{code.text(tensor)}.copy_({where})")
    return importing(code, code.replaced({small: cst.Expr(copied, semicolon=small.semicolon)}))


def _index(node: cst.Subscript) -> cst.BaseExpression | None:
    if len(node.slice) != 1 or not isinstance(node.slice[0].slice, cst.Index):
        return None
    index = node.slice[0].slice
    return None if index.star or isinstance(index.value, (cst.Tuple, cst.List)) else index.value


def _is_number(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        return _is_number(node.expression)
    if isinstance(node, cst.Call) and call_name(node) == "float" and len(node.args) == 1:
        return isinstance(node.args[0].value, (cst.SimpleString, cst.Integer, cst.Float))
    if isinstance(node, cst.Attribute):
        return (
            isinstance(node.value, cst.Name)
            and node.value.value in ("math", "torch")
            and (node.attr.value in ("inf", "nan", "pi"))
        )
    return isinstance(node, (cst.Integer, cst.Float)) or (
        isinstance(node, cst.Name) and node.value in ("True", "False")
    )


def _fits(code: Code, node: cst.BaseExpression, finding: Finding) -> bool:
    """`masked_fill_` raises where an assignment rounds to infinity."""
    text = code.text(node)
    if not any(character.isdigit() for character in text):
        return True
    dtypes = set(dict(finding.evidence).get("operand_dtypes") or ())
    try:
        return abs(float(ast.literal_eval(text))) <= (_WIDE if dtypes and dtypes <= _WIDE_TYPES else _HALF)
    except (ValueError, TypeError, SyntaxError):
        return False


def _is_about(mask: cst.BaseExpression, tensor: cst.BaseExpression) -> bool:
    """A mask that has the tensor's shape whatever it holds: ``x < 0``, ``x.isnan()``, ``~(x > 1) & (x < 3)``."""
    if isinstance(mask, cst.Comparison):
        sides = [mask.left, *(item.comparator for item in mask.comparisons)]
        return len(sides) == 2 and any(
            same(_bare(one), tensor) and _is_number(other) for one, other in (sides, reversed(sides))
        )
    if isinstance(mask, cst.UnaryOperation) and isinstance(mask.operator, cst.BitInvert):
        return _is_about(mask.expression, tensor)
    if isinstance(mask, cst.BinaryOperation) and isinstance(mask.operator, _JOINS):
        return _is_about(mask.left, tensor) and _is_about(mask.right, tensor)
    if isinstance(mask, cst.Call) and isinstance(mask.func, cst.Attribute) and mask.func.attr.value in _TESTS:
        subject = mask.func.value if not mask.args else mask.args[0].value
        owner = isinstance(mask.func.value, cst.Name) and mask.func.value.value == "torch"
        return len(mask.args) == (1 if owner else 0) and same(_bare(subject), tensor)
    return False


def _bare(node: cst.BaseExpression) -> cst.BaseExpression:
    """Without parentheses around it."""
    return node.with_changes(lpar=[], rpar=[])


def _same_shape(finding: Finding) -> bool:
    """True where each execution that was traced had a mask of the tensors' own shape."""
    shapes = dict(finding.evidence).get("operand_shapes") or ()
    return bool(shapes) and all(len({tuple(shape) for shape in operands}) == 1 for operands in shapes)
