"""GR401: make a constant once, outside of the loop or of the function.

    for x in batches:                                       scale = torch.tensor(0.5, device="cuda")
        y = x * torch.tensor(0.5, device="cuda")            for x in batches:
                                                                y = x * scale

``x[mask] = 0.0`` sends its number too; `masked_fill_` does not (see `masked_writes`).

The value must be the same each time: made from literals and from names that the loop does not bind. It must only
ever be read: an operand, or an argument of a function of torch that makes a new tensor.
"""

from __future__ import annotations

import re

import libcst as cst

from ...model import Finding
from ..code import Code, Loop, descendants, dotted
from ..effects import CONSTANTS, call_name, only_statement, value_of
from ..likely import MAKERS
from ..result import Declined
from . import masked_writes

_MOVES = ("to", "cuda")
_NEW_RESULT = frozenset(
    re.findall(
        r"\w+",
        """
        where add sub mul div true_divide floor_divide remainder maximum minimum clamp pow eq ne lt le gt ge cat stack
        lerp addcmul addcdiv matmul mm bmm isclose fmod atan2 logical_and logical_or logical_xor outer dot
        """,
    )
)
_CHANGES_MEANING = ("device", "set_default_dtype", "set_default_device", "DeviceContext")


def fix(code: Code, finding: Finding) -> str | Declined:
    assert finding.at is not None
    line = finding.at.line
    found = [call for call in code.on_line(line, cst.Call) if _makes_constant(call)]
    if not found and (filled := masked_writes.filled(code, finding)) is not None:
        return filled
    if not found:
        return Declined(why="no tensor is made from a literal on the line (`torch.tensor(...)`)", line=line)
    if len(found) > 1:
        return Declined(why="several constants are made on the line", line=line)
    made = _with_moves(code, found[0])
    place = _place(code, made)
    if isinstance(place, Declined):
        return place
    statement = code.statement(made)
    small = only_statement(statement)
    if isinstance(small, cst.Assign) and small.value is made and _is_literal(code, made):
        return _bound_before(code, small, statement, place)
    if not _is_literal(code, made):
        return Declined(why="what it is made from is not written beside it", line=line)
    if not _is_only_read(code, made):
        return Declined(why="who gets the tensor might write to it", line=line)
    return _named_before(code, made, place)


def _makes_constant(call: cst.Call) -> bool:
    if call_name(call) not in MAKERS or not call.args:
        return False
    names = {arg.keyword.value for arg in call.args if arg.keyword is not None}
    return not names & {"requires_grad", "out", "pin_memory"}


def _with_moves(code: Code, call: cst.Call) -> cst.Call:
    """The call with the ``.to(device)`` behind it."""
    while True:
        method = code.parent(call)
        outer = code.parent(method) if isinstance(method, cst.Attribute) and method.attr.value in _MOVES else None
        if not isinstance(outer, cst.Call) or outer.func is not method:
            return call
        call = outer


def _place(code: Code, made: cst.Call) -> Loop | cst.FunctionDef | Declined:
    """The outermost loop of this function or, where there is none, the function that the constant can stand before."""
    line = code.line(made)
    names = [node for node in descendants(made) if isinstance(node, cst.Name) and _is_value(code, node)]
    place: Loop | None = None
    for loop in code.loops(made):
        bound = code.stored(loop)
        if any(name.value in bound for name in names):
            break
        if _meaning_changes(code, made, loop):
            return Declined(why="a block around it chooses the device or the dtype", line=line)
        place = loop
    if place is not None:
        return place
    home = code.function(made)
    if home is None or code.loops(made):
        return Declined(why="what it is made from changes in the loop" if names else "it is in no loop", line=line)
    if not isinstance(code.parent(home), cst.Module):
        return Declined(why=f"`{home.name.value}` is a method or an inner function; keep the tensor there", line=line)
    if any(name.value != "torch" for name in names):
        return Declined(why=f"what it is made from is known only inside `{home.name.value}`", line=line)
    if not any(isinstance(arg.value, cst.SimpleString) for arg in made.args):
        return Declined(why="its device is not written beside it", line=line)
    if _meaning_changes(code, made, home):
        return Declined(why="a block around it chooses the device or the dtype", line=line)
    return home


def _is_value(code: Code, name: cst.Name) -> bool:
    parent = code.parent(name)
    if isinstance(parent, cst.Attribute):
        return parent.attr is not name
    return not (isinstance(parent, cst.Arg) and parent.keyword is name) and name.value not in ("torch", "True", "False")


def _meaning_changes(code: Code, made: cst.Call, outside: cst.CSTNode) -> bool:
    """True where a ``with torch.device(...)`` stands between, or the loop sets a default."""
    for above in code.ancestors(made):
        if isinstance(above, cst.With) and any(
            call_name(item.item).rpartition(".")[2] in _CHANGES_MEANING for item in above.items
        ):
            return True
        if above is outside:
            break
    return any(
        isinstance(node, cst.Call) and call_name(node).rpartition(".")[2] in _CHANGES_MEANING[1:]
        for node in descendants(code.module)
    )


def _is_literal(code: Code, made: cst.Call) -> bool:
    """True where nothing but literals says what the tensor holds, and names at most its device and dtype."""
    if isinstance(made.func, cst.Attribute) and made.func.attr.value in _MOVES and call_name(made) not in MAKERS:
        inner = made.func.value
        return isinstance(inner, cst.Call) and _is_literal(code, inner) and all(map(_is_place, made.args))
    for arg in made.args:
        named = arg.keyword is not None and arg.keyword.value in ("device", "dtype")
        if arg.star or not (_is_place(arg) if named else _is_value_literal(code, arg.value)):
            return False
    return True


def _is_place(arg: cst.Arg) -> bool:
    """A device or a dtype: a string, a variable, ``x.device``, ``torch.float16``."""
    value = arg.value
    if isinstance(value, cst.Attribute):
        return dotted(value).startswith("torch.") or value.attr.value in ("device", "dtype")
    return isinstance(value, (cst.SimpleString, cst.Name, cst.Integer)) and not arg.star


def _is_value_literal(code: Code, value: cst.BaseExpression) -> bool:
    """A number, a list of numbers, or a variable that is bound once in the source, to a number."""
    if isinstance(value, cst.UnaryOperation):
        return _is_value_literal(code, value.expression)
    if isinstance(value, (cst.List, cst.Tuple)):
        return all(isinstance(item, cst.Element) and _is_value_literal(code, item.value) for item in value.elements)
    if isinstance(value, cst.Call):
        return call_name(value) == "float" and all(isinstance(arg.value, cst.SimpleString) for arg in value.args)
    if isinstance(value, cst.Name) and value.value not in ("True", "False"):
        bound = value_of(code, value.value)
        return isinstance(bound, (cst.Integer, cst.Float)) and not code.is_shared(value.value, None)
    return isinstance(value, (*CONSTANTS, cst.Name)) or dotted(value) in ("math.pi", "math.inf", "torch.inf")


def _is_only_read(code: Code, node: cst.BaseExpression) -> bool:
    """True for an operand, or an argument of a function that makes a new tensor of it."""
    parent = code.parent(node)
    if isinstance(parent, (cst.BinaryOperation, cst.UnaryOperation)):
        return True
    if isinstance(parent, (cst.Comparison, cst.ComparisonTarget)):
        return True
    if isinstance(parent, cst.AugAssign):
        return parent.value is node
    if isinstance(parent, cst.Element):
        items = code.parent(parent)
        # Only a list that is an argument: one that lives on would hold the same tensor each time.
        listed = isinstance(items, (cst.List, cst.Tuple)) and isinstance(code.parent(items), cst.Arg)
        return listed and isinstance(items, cst.BaseExpression) and _is_only_read(code, items)
    if isinstance(parent, cst.Arg) and (parent.keyword is None or parent.keyword.value != "out"):
        module, _, name = call_name(code.parent(parent) or parent).rpartition(".")
        return module == "torch" and name in _NEW_RESULT
    return False


def _bound_before(
    code: Code, small: cst.Assign, statement: cst.CSTNode | None, place: Loop | cst.FunctionDef
) -> str | Declined:
    """``zero = torch.tensor(0.0, ...)``: the statement moves, where nothing else binds or writes the variable."""
    target = small.targets[0].target
    line = code.line(small)
    assert isinstance(small.value, cst.Call) and isinstance(statement, cst.SimpleStatementLine)
    if len(small.targets) != 1 or not isinstance(target, cst.Name):
        return Declined(why="the constant is not bound to one variable", line=line)
    if isinstance(place, cst.FunctionDef):
        return Declined(why="the constant cannot be made before the function", line=line)
    if code.block(statement) is None or code.parent(statement) is not place.body:
        return Declined(why="the constant is made under a condition", line=line)
    for use in code.uses(target.value):
        if use is target:
            continue
        if code.is_stored(use) or not _is_only_read(code, use):
            return Declined(why=f"`{target.value}` may be written", line=code.line(use))
        if code.line(use) < line:
            return Declined(why=f"`{target.value}` is used before it is made", line=code.line(use))
    if code.is_shared(target.value, code.function(place)):
        return Declined(why=f"`{target.value}` is shared between functions", line=line)
    body = place.body.body
    kept: list[cst.BaseStatement] = [] if len(body) > 1 else [cst.parse_statement("pass")]
    moved = statement.with_changes(leading_lines=[])

    def around(loop: Loop) -> list[cst.BaseStatement]:
        lead = [*loop.leading_lines, *statement.leading_lines]
        return [moved.with_changes(leading_lines=lead), loop.with_changes(leading_lines=[])]

    return code.replaced({statement: kept, place: around})


def _named_before(code: Code, made: cst.Call, place: Loop | cst.FunctionDef) -> str | Declined:
    name = code.fresh("CONSTANT" if isinstance(place, cst.FunctionDef) else "constant")
    before = cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Name(name))], made)])
    if code.block(place) is None:
        return Declined(why="there is no line before the loop", line=code.line(place))

    def around(statement: Loop | cst.FunctionDef) -> list[cst.BaseStatement]:
        first = before.with_changes(leading_lines=statement.leading_lines)
        lead: list[cst.EmptyLine] = []
        if isinstance(statement, cst.FunctionDef):
            lead = [cst.EmptyLine(indent=False)] * sum(1 for item in statement.leading_lines if item.comment is None)
        return [first, statement.with_changes(leading_lines=lead)]

    return code.replaced({made: cst.Name(name), place: around})
