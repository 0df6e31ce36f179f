"""GR103: a neighbour list that is padded to a few lengths.

    i, j = (d < cutoff).nonzero(as_tuple=True)    i, j = grape.pad_edges((d < cutoff).nonzero(as_tuple=True), d, cutoff)

What is appended is a pair of atoms farther apart than `cutoff`. Whether a model adds exactly 0 for it, its source does
not show; both forms run on copies, and a rewrite that computes something else is not offered. What the source does show
is asked for: where the distances are, and that the list goes nowhere but into calls and indices. Its length, and what
is kept of it, would be others.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ..model import Finding
from .code import Code, descendants, dotted, edited, importing
from .effects import call_name, calls, mutates, only_statement, value_of
from .likely import LISTS_OF_INDICES
from .result import Compared, Declined

TOLERANCE = 1e-4
"""Of the largest value: products of matrices of another height may round otherwise, and steps go on from there."""
_PADDED = "grape.pad_edges"
_TURNS = frozenset({"t", "T", "contiguous", "mT", "unbind", "stack"})
"""What only turns a list around."""
_COUNTS = frozenset(
    {"len", "list", "tuple", "set", "print", "str", "repr", "range", "zip", "enumerate", "sum", "min", "max", "append"}
    | {"extend", "add", "insert", "bincount", "unique", "numel", "numpy", "tolist"}
)
"""Calls that see how long a list is, or keep it."""


def at_line(code: Code, finding: Finding) -> Compared | Declined | None:
    """The source with the list padded that is made on the finding's line; None where none is."""
    assert finding.at is not None
    line = finding.at.line
    found = [call for call in _lists(code) if code.lines(call)[0] <= line <= code.lines(call)[1]]
    return _padded(code, found[0]) if len(found) == 1 else None


def _padded(code: Code, made: cst.Call) -> Compared | Declined:
    line = code.line(made)
    above = code.parent(made)
    outer = code.parent(above) if isinstance(above, cst.Arg) else None
    if outer is not None and call_name(outer) == _PADDED:
        return Declined(why="the list is padded already", line=line)
    compared = _compared(code, made)
    if isinstance(compared, Declined):
        return compared
    refused = _seen(code, made)
    if refused is not None:
        return refused
    distances, radius = compared.left, compared.comparisons[0].comparator
    name = code.text(distances)
    found: cst.CSTNode = made
    kept: dict[cst.CSTNode, cst.CSTNode] = {}
    if not isinstance(distances, cst.Name):
        name = code.fresh("_distances")
        named = cst.NamedExpr(cst.Name(name), distances, lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        kept = {compared: compared.with_changes(left=named)}
        if made in code.ancestors(compared):
            found, kept = edited(made, kept), {}
    new = cst.parse_expression(f"{_PADDED}({code.text(found)}, {name}, {code.text(radius)})")
    return Compared(text=importing(code, code.replaced({made: new, **kept}), "grape"), tolerance=TOLERANCE)


def _lists(code: Code) -> list[cst.Call]:
    """The calls that list where a mask is true: ``mask.nonzero()``, ``torch.nonzero(mask)``, ``torch.where(mask)``."""
    found = []
    for call in calls(code.module):
        name = call_name(call)
        positional = [arg for arg in call.args if arg.keyword is None]
        if name.startswith("torch.") and name.rpartition(".")[2] in LISTS_OF_INDICES:
            found += [call] if len(positional) == 1 else []
        elif isinstance(call.func, cst.Attribute) and call.func.attr.value in ("nonzero", "argwhere"):
            found += [call] if not positional else []
    return found


def _mask(made: cst.Call) -> cst.BaseExpression:
    if call_name(made).startswith("torch."):
        return next(arg.value for arg in made.args if arg.keyword is None)
    assert isinstance(made.func, cst.Attribute)
    return made.func.value


def _compared(code: Code, made: cst.Call) -> cst.Comparison | Declined:
    """``distances < radius`` of the mask: one comparison among those that all have to hold."""
    line, mask = code.line(made), _mask(made)
    home = code.function(made)
    if isinstance(mask, cst.Name):
        value = value_of(code, mask.value)
        if value is None or code.function(value) is not home:
            return Declined(why=f"where `{mask.value}` comes from cannot be told", line=line)
        mask = value
    below = [part for part in _all_of(mask) if isinstance(part, cst.Comparison) and _is_below(part)]
    if len(below) != 1:
        why = "the mask compares no distances with a radius" if not below else "which of them are distances is not told"
        return Declined(why=why, line=line)
    (found,) = below
    radius = found.comparisons[0].comparator
    if list(calls(radius)):
        return Declined(why="the radius is computed on the line", line=code.line(radius))
    names = {node.value for node in descendants(radius) if isinstance(node, cst.Name)}
    if isinstance(found.left, cst.Name):
        names.add(found.left.value)
        where = home if home is not None else code.module
        lines = (node for node in descendants(where) if isinstance(node, cst.SimpleStatementLine))
        written = (mutates(code, found.left.value, line) for line in lines)
        changed = next((use for use in written if use is not None and not _is_diagonal(code, use)), None)
        if changed is not None:
            return Declined(why=f"`{found.left.value}` is written in place", line=code.line(changed))
    elif not isinstance(found.left, cst.Call) or not isinstance(only_statement(code.statement(found)), cst.CSTNode):
        return Declined(why="the distances have no name", line=code.line(found))
    between = _between(code, found, made)
    if between is None or names & set().union(*map(code.stored, between)):
        return Declined(why="the radius or the distances may change before the list is made", line=line)
    return found


def _all_of(mask: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """The conditions of ``a & b & c``."""
    if isinstance(mask, cst.BinaryOperation) and isinstance(mask.operator, cst.BitAnd):
        yield from _all_of(mask.left)
        yield from _all_of(mask.right)
    else:
        yield mask


def _is_below(part: cst.Comparison) -> bool:
    return len(part.comparisons) == 1 and isinstance(part.comparisons[0].operator, (cst.LessThan, cst.LessThanEqual))


def _is_diagonal(code: Code, use: cst.CSTNode) -> bool:
    above = code.parent(use)
    return isinstance(above, cst.Attribute) and above.attr.value == "fill_diagonal_"


def _between(code: Code, first: cst.CSTNode, last: cst.CSTNode) -> list[cst.CSTNode] | None:
    """The statements between two of one suite; None where they are of two."""
    begin, end = code.statement(first), code.statement(last)
    block = code.block(begin) if begin is not None else None
    if begin is end and begin is not None:
        return []
    if begin is None or end is None or block is None:
        return None
    body = list(block.holder.body)
    if end not in body:
        return None
    return list(body[body.index(begin) + 1 : body.index(end)])


def _turned(code: Code, made: cst.CSTNode) -> cst.CSTNode:
    """The whole expression that only turns the list around: ``.t()``, ``.T``, ``torch.stack([i, j])``."""
    while True:
        above = code.parent(made)
        outer = above
        while isinstance(outer, (cst.Arg, cst.Element, cst.List, cst.Tuple)):
            outer = code.parent(outer)
        if isinstance(outer, cst.Call) and outer is not above and call_name(outer) == "torch.stack":
            made = outer
        elif isinstance(above, cst.Attribute) and above.value is made and above.attr.value in _TURNS:
            method = code.parent(above)
            made = method if isinstance(method, cst.Call) and method.func is above else above
        else:
            return made


def _names(code: Code, whole: cst.CSTNode) -> list[cst.Name]:
    """What the value of an assignment is bound to, if it is nothing but names."""
    above = code.parent(whole)
    if not isinstance(above, cst.Assign) or above.value is not whole:
        return []
    nodes = [node for target in above.targets for node in descendants(target.target)]
    if any(isinstance(node, (cst.Attribute, cst.Subscript, cst.StarredElement)) for node in nodes):
        return []
    return [node for node in nodes if isinstance(node, cst.Name)]


def _seen(code: Code, made: cst.CSTNode, known: frozenset[str] = frozenset()) -> Declined | None:
    """Why somebody may see how long the list is; None where it goes into calls and indices only."""
    whole, line, home = _turned(code, made), code.line(made), code.function(made)
    if isinstance(code.parent(whole), cst.Return) and home is not None:
        name = home.name.value
        called = [call for call in calls(code.module) if dotted(call.func) == name]
        uses = [use for use in code.uses(name) if use is not home.name and not any(use is one.func for one in called)]
        hidden = (
            name in known
            or any(isinstance(above, cst.ClassDef) for above in code.ancestors(home))
            or code.is_shared(name, None)
        )
        if hidden or uses or not called:
            return Declined(why=f"what is done with the list that `{name}` returns cannot be told", line=line)
        found = (_seen(code, call, known | {name}) for call in called)
        return next((why for why in found if why is not None), None)
    names = _names(code, whole)
    if not names:
        return Declined(why="the list has no name", line=line)
    return next((why for name in names if (why := _kept(code, name, frozenset())) is not None), None)


def _kept(code: Code, name: cst.Name, known: frozenset[str]) -> Declined | None:
    """Why somebody may see the length by a name; None where nobody does."""
    home = code.function(name)
    if code.is_shared(name.value, home):
        return Declined(why=f"a function that may run meanwhile uses `{name.value}`", line=code.line(name))
    for use in code.uses(name.value, home):
        inner = code.function(use)
        if inner is not home and name.value in {one.value for one in _parameters(inner)}:
            continue
        if not code.is_stored(use) and not _is_passed(code, use, known | {name.value}):
            return Declined(why=f"`{use.value}` is used for more than calls and indices", line=code.line(use))
    return None


def _parameters(function: cst.FunctionDef | None) -> Iterator[cst.Name]:
    if function is not None:
        yield from (node.name for node in descendants(function.params) if isinstance(node, cst.Param))


def _is_passed(code: Code, use: cst.CSTNode, known: frozenset[str]) -> bool:
    """True for ``model(x, i)``, ``x[i]``, ``edges[0]`` in one of these, and a name that such a value is bound to."""
    whole = _turned(code, use)
    above = code.parent(whole)
    if isinstance(above, cst.Subscript) and above.value is whole:
        return _is_passed(code, above, known)
    if isinstance(above, cst.Arg):
        call = code.parent(above)
        return isinstance(call, cst.Call) and call_name(call).rpartition(".")[2] not in _COUNTS
    names = _names(code, whole)
    again = (name for name in names if name.value not in known)
    return isinstance(above, cst.Index) or (bool(names) and not any(_kept(code, name, known) for name in again))
