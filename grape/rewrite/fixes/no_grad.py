"""GR405, where it is about gradients: run code that never uses them without.

    for x in batches:                    with torch.no_grad():
        scores.append(model(x))              for x in batches:
                                                 scores.append(model(x))

`torch.inference_mode()` where everything that the block makes stays inside a function that returns none of it;
its tensors can never meet autograd again, so what outlives the block is made under `torch.no_grad()`. Refused where
the source mentions gradients in any way.
"""

from __future__ import annotations

import re

import libcst as cst

from ...model import Finding
from ..code import Code, descendants, importing, under
from ..effects import call_name, calls, only_statement
from ..likely import GRADIENTS, HARMLESS
from ..result import Declined

_OFF = ("no_grad", "inference_mode")
_READS = frozenset({"item", "tolist", "float", "int", "bool", "print"})


def fix(code: Code, finding: Finding) -> str | Declined:
    assert finding.at is not None
    if not dict(finding.evidence).get("needs_grad"):
        return Declined(why="what cannot be captured has to leave the region by hand", line=finding.at.line)
    for node in descendants(code.module):
        if isinstance(node, cst.Name) and node.value in GRADIENTS:
            return Declined(why=f"`{node.value}` needs the gradients", line=code.line(node))
        if isinstance(node, (cst.Await, cst.Yield)):
            return Declined(why="the mode would hold across a suspension", line=code.line(node))
    block = _block(code, finding)
    if isinstance(block, Declined):
        return block
    unknown = _may_use_gradients(code, block, finding)
    if unknown is not None:
        return unknown
    if _is_off(code, block):
        return Declined(why="it runs without gradients already", line=code.line(block))
    return _wrapped(code, block)


def _block(code: Code, finding: Finding) -> cst.BaseStatement | Declined:
    """The outermost loop around the call, or the statement of the call where it is in none."""
    assert finding.at is not None
    names = _callee(finding)
    found = [call for call in calls(code.module) if call_name(call) in names]
    outside = [
        call
        for call in found
        if not any(isinstance(above, cst.FunctionDef) and above.name.value in names for above in code.ancestors(call))
    ]
    if not outside:
        return Declined(why="where the region is called is not in this source", line=finding.at.line)
    blocks = [next(reversed(code.loops(call)), None) or code.statement(call) for call in outside]
    first = blocks[0]
    if first is None or any(block is not first for block in blocks):
        return Declined(why="the region is called in several places", line=code.line(outside[-1]))
    if code.block(first) is None:
        return Declined(why="the call stands on the line of its header", line=code.line(first))
    return first


def _may_use_gradients(code: Code, block: cst.BaseStatement, finding: Finding) -> Declined | None:
    """Calls of what is not in this source: a training step looks like any other function."""
    defined = {node.name.value for node in descendants(code.module) if isinstance(node, cst.FunctionDef)}
    modules = set(re.findall(r"\((\w+)\)", finding.region or ""))
    for call in calls(block):
        name = call_name(call)
        module, _, last = name.rpartition(".")
        known = last in HARMLESS if not module else last in HARMLESS or module.partition(".")[0] in ("torch", "F")
        if not known and name not in defined | modules:
            return Declined(why=f"`{name or code.text(call.func)}` may use gradients", line=code.line(call))
    return None


def _callee(finding: Finding) -> frozenset[str]:
    """How the region may be called in the source: a function by its name, a module by its variable."""
    name = re.sub(r" #\d+$", "", finding.region or "")
    called = re.findall(r"[\w.]+", name)
    variable = dict(finding.evidence).get("called_as")
    return frozenset({*called, *([str(variable)] if variable else [])})


def _is_off(code: Code, block: cst.BaseStatement) -> bool:
    for above in (block, *code.ancestors(block)):
        if isinstance(above, cst.With) and any(call_name(item.item).rpartition(".")[2] in _OFF for item in above.items):
            return True
        if isinstance(above, cst.FunctionDef):
            return any(call_name(item.decorator).rpartition(".")[2] in _OFF for item in above.decorators)
    return False


def _wrapped(code: Code, block: cst.BaseStatement) -> str | Declined:
    mode = "torch.no_grad()" if _outlives(code, block) else "torch.inference_mode()"
    if isinstance(block, cst.SimpleStatementLine) and isinstance(only_statement(block), (cst.Return, type(None))):
        return Declined(why="several statements stand on the line, or it returns", line=code.line(block))
    return importing(code, code.replaced({block: under(mode)}))


def _outlives(code: Code, block: cst.BaseStatement) -> bool:
    """True unless the block stands in a function and every later use of what it binds or fills reads a number."""
    home = code.function(block)
    if home is None:
        return True
    last = code.lines(block)[1]
    inside = {node.value for node in descendants(block) if isinstance(node, cst.Name)}
    for node in descendants(home.body):
        if isinstance(node, cst.Name) and node.value in inside - {"torch"} and code.line(node) > last:
            method = code.parent(node)
            reads = isinstance(method, cst.Attribute) and method.attr.value in _READS
            if not reads and not code.is_stored(node):
                return True
    parameters = {param.name.value for param in home.params.params}
    stores = any(
        isinstance(node, (cst.Attribute, cst.Subscript)) and code.is_stored(node) for node in descendants(block)
    )
    return (
        stores
        or any(
            isinstance(node, cst.Return)
            or (isinstance(node, cst.Call) and call_name(node).rpartition(".")[2] == "append")
            for node in descendants(block)
        )
        or bool(parameters & code.stored(block))
    )
