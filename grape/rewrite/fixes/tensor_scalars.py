"""GR403: a loop counter that reaches operators, as a tensor on the device.

    for i in range(100):                     counts = torch.arange(100, device=x.device)
        x = step(x, i)                       for i in range(100):
                                                 x = step(x, counts[i])

A tensor and a Python number do not always compute alike. They do where the function only adds, subtracts, multiplies
or compares the counter with a tensor, and every count is exact in each floating-point type (up to 256, bfloat16).
"""

from __future__ import annotations

import libcst as cst

from ...model import Finding
from ..code import Code, beside, importing
from ..effects import call_name, mutates, value_of
from ..result import Declined

_MOST = 256
_OPERATORS = (cst.Add, cst.Subtract, cst.Multiply)
_COMPARISONS = (cst.LessThan, cst.LessThanEqual, cst.GreaterThan, cst.GreaterThanEqual)


def fix(code: Code, finding: Finding) -> str | Declined:
    assert finding.at is not None
    function = _function(code, finding)
    if isinstance(function, Declined):
        return function
    call = _only_call(code, function)
    if isinstance(call, Declined):
        return call
    position, loop = _counter(code, call)
    if loop is None:
        return Declined(
            why="only the counter of a `for ... in range(...)` can become a tensor, and the call is given none",
            line=code.line(call),
        )
    count = _count(code, loop)
    if isinstance(count, Declined):
        return count
    params = function.params.params
    if position >= len(params) or function.params.star_kwarg is not None:
        return Declined(why="the counter has no parameter of its own", line=code.line(function))
    other = _partner(code, function, params[position].name.value)
    if isinstance(other, Declined):
        return other
    return _rewritten(code, call, position, loop, count, [param.name.value for param in params].index(other))


def _function(code: Code, finding: Finding) -> cst.FunctionDef | Declined:
    """Around the line: the region, or whatever function operator streams met the number in."""
    assert finding.at is not None
    around = [
        node
        for node in code.module.body
        if isinstance(node, cst.FunctionDef)
        and finding.region in (None, node.name.value)
        and _first_line(code, node) <= finding.at.line <= code.lines(node)[1]
    ]
    if len(around) != 1 or around[0].decorators:
        return Declined(why="the function that takes the number is not in this source", line=finding.at.line)
    return around[0]


def _first_line(code: Code, node: cst.FunctionDef) -> int:
    return min([code.line(node), *map(code.line, node.decorators)])


def _only_call(code: Code, function: cst.FunctionDef) -> cst.Call | Declined:
    uses = code.uses(function.name.value)
    called = [code.parent(use) for use in uses if use is not function.name]
    if len(called) != 1 or not isinstance(called[0], cst.Call):
        where = "in one place only" if called else "in its own cell, so that where its counter is made is not known"
        return Declined(why=f"`{function.name.value}` is not called {where}", line=code.line(function))
    if any(arg.star for arg in called[0].args):
        return Declined(why="the call's arguments are computed", line=code.line(called[0]))
    return called[0]


def _counter(code: Code, call: cst.Call) -> tuple[int, cst.For | None]:
    loops = code.loops(call)
    loop = loops[0] if loops else None
    if not isinstance(loop, cst.For) or call_name(loop.iter) != "range" or not isinstance(loop.target, cst.Name):
        return 0, None
    places = [
        index
        for index, arg in enumerate(call.args)
        if arg.keyword is None and isinstance(arg.value, cst.Name) and arg.value.value == loop.target.value
    ]
    rebound = [use for use in code.uses(loop.target.value, loop.body) if code.is_stored(use)]
    return (places[0], loop) if len(places) == 1 and not rebound else (0, None)


def _count(code: Code, loop: cst.For) -> str | Declined:
    """The text of ``range``'s only argument, a literal or a variable that is bound to one just here."""
    assert isinstance(loop.iter, cst.Call)
    args = loop.iter.args
    value = args[0].value if len(args) == 1 else None
    literal = value_of(code, value.value) if isinstance(value, cst.Name) else value
    if not isinstance(literal, cst.Integer) or value is None or int(literal.value.replace("_", ""), 0) > _MOST:
        why = f"the counter is not known to stay below {_MOST}, where each number is exact in every dtype"
        return Declined(why=why, line=code.line(loop))
    return code.text(value)


def _partner(code: Code, function: cst.FunctionDef, counter: str) -> str | Declined:
    """The parameter that is a tensor for sure and meets the counter, where nothing else uses the counter."""
    parameters = {param.name.value for param in function.params.params}
    uses = code.uses(counter, function.body)
    partners = set()
    for use in uses:
        parent = code.parent(use)
        other: cst.CSTNode | None = None
        if isinstance(parent, cst.BinaryOperation) and isinstance(parent.operator, _OPERATORS):
            other = parent.left if parent.right is use else parent.right
        elif isinstance(parent, cst.Comparison) and isinstance(parent.comparisons[0].operator, _COMPARISONS):
            other = parent.comparisons[0].comparator if len(parent.comparisons) == 1 else None
        if not isinstance(other, cst.Name) or other.value not in parameters:
            return Declined(why=f"`{counter}` is used otherwise than with a tensor argument", line=code.line(use))
        partners.add(other.value)
    tensors = {name for name in partners if _is_tensor(code, function, name)}
    if not uses or partners != tensors:
        return Declined(why=f"what `{counter}` meets is not known to be a tensor", line=code.line(function))
    return sorted(tensors)[0]


def _is_tensor(code: Code, function: cst.FunctionDef, name: str) -> bool:
    """True where the function calls torch or a tensor's method with it, and never binds the name again."""
    uses = code.uses(name, function.body)
    if any(code.is_stored(use) for use in uses) or mutates(code, name, function.body) is not None:
        return False
    for use in uses:
        parent = code.parent(use)
        above = code.parent(parent) if parent is not None else None
        if isinstance(parent, cst.MatrixMultiply | cst.Attribute) and isinstance(above, cst.Call):
            return True
        if isinstance(parent, cst.Arg) and call_name(above or parent).startswith(("torch.", "F.")):
            return True
        if isinstance(parent, cst.BinaryOperation) and isinstance(parent.operator, cst.MatrixMultiply):
            return True
    return False


def _rewritten(code: Code, call: cst.Call, position: int, loop: cst.For, count: str, partner: int) -> str | Declined:
    passed = call.args[partner].value if partner < len(call.args) else None
    if not isinstance(passed, cst.Name) or call.args[partner].keyword is not None:
        return Declined(why="the tensor beside the counter is no plain variable", line=code.line(call))
    block = code.block(loop)
    before_loop = block.statements[: block.index(loop)] if block is not None else []
    if not any(passed.value in code.stored(line) for line in before_loop):
        return Declined(why=f"`{passed.value}` is not made just before the loop", line=code.line(loop))
    assert isinstance(loop.target, cst.Name)
    name = code.fresh("counts")
    made = cst.parse_statement(f"{name} = torch.arange({count}, device={passed.value}.device)")
    counted = cst.parse_expression(f"{name}[{loop.target.value}]")
    args = [arg.with_changes(value=counted) if i == position else arg for i, arg in enumerate(call.args)]
    return importing(code, code.replaced({call: call.with_changes(args=args), loop: beside(made)}))
