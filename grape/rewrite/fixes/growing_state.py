"""GR202: state that grows by concatenation.

    model.generate(**inputs)                  model.generate(**inputs, cache_implementation="static")

    for x in batches:                         parts = [out]
        out = torch.cat([out, f(x)], dim=0)   for x in batches:
                                                  parts.append(f(x).clone())
                                              out = torch.cat(parts, dim=0)

The second form needs a result that nothing in the loop reads. A cache that the loop reads must be masked where it is
not filled yet, which only who wrote the model can do: refused.
"""

from __future__ import annotations

import libcst as cst

from ...model import Finding
from ..arguments import with_keyword
from ..code import Code, Loop, beside
from ..effects import call_name, moved_out_of, only_statement
from ..likely import CONCATENATIONS, OWN_CACHE
from ..result import Declined

_INPUTS = ("input", "batch", "enc", "tok", "prompt")


def fix(code: Code, finding: Finding) -> str | Declined:
    assert finding.at is not None
    line = finding.at.line
    generating = [call for call in code.on_line(line, cst.Call) if call_name(call).rpartition(".")[2] == "generate"]
    if generating:
        if "transformers" not in str(dict(finding.evidence).get("in_library")):
            return Declined(why="its cache is not one of transformers", line=line)
        return _static_cache(code, generating)
    for statement in code.on_line(line, cst.SimpleStatementLine):
        small = only_statement(statement)
        if isinstance(small, cst.Assign) and call_name(small.value) in CONCATENATIONS:
            return _concatenated_later(code, small, statement)
    return Declined(why="the state is made elsewhere; allocate it at its final length there", line=line)


def _static_cache(code: Code, generating: list[cst.Call]) -> str | Declined:
    call = generating[0]
    line = code.line(call)
    if len(generating) > 1 or not isinstance(call.func, cst.Attribute):
        return Declined(why="it is not plain which call generates", line=line)
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value in OWN_CACHE:
            return Declined(why=f"the call chooses its cache itself: `{arg.keyword.value}`", line=line)
        if arg.star == "**" and _may_hold_options(arg.value):
            return Declined(why=f"`**{code.text(arg.value)}` may choose a cache", line=line)
    return code.replaced({call: with_keyword(call, "cache_implementation", '"static"')})


def _may_hold_options(value: cst.BaseExpression) -> bool:
    """False for a tokenizer's result by its usual names; options by any other name may hold a cache of their own."""
    if isinstance(value, cst.Call):
        return call_name(value).rpartition(".")[2] not in ("tokenizer", "processor", "to")
    return not (isinstance(value, cst.Name) and any(word in value.value for word in _INPUTS))


def _concatenated_later(code: Code, small: cst.Assign, statement: cst.SimpleStatementLine) -> str | Declined:
    line = code.line(statement)
    call = small.value
    target = small.targets[0].target
    assert isinstance(call, cst.Call)
    if len(small.targets) != 1 or not isinstance(target, cst.Name):
        return Declined(why="the concatenation is not bound to one variable", line=line)
    name = target.value
    items = call.args[0].value if call.args and call.args[0].keyword is None else None
    if not isinstance(items, (cst.List, cst.Tuple)) or len(items.elements) != 2:
        return Declined(why="it is not two tensors that are concatenated", line=line)
    first, second = (element.value for element in items.elements)
    if not (isinstance(first, cst.Name) and first.value == name):
        return Declined(why=f"`{name}` is not extended at its end", line=line)
    out = any(arg.star or (arg.keyword is not None and arg.keyword.value == "out") for arg in call.args)
    if isinstance(items.elements[1], cst.StarredElement) or out:
        return Declined(why="the concatenation has arguments that cannot be moved", line=line)
    found = _loop_without_reads(code, name, target, first, statement)
    if isinstance(found, Declined):
        return found
    if any(isinstance(arg.value, cst.Name) for arg in call.args[1:]):
        return Declined(why="the dimension is a variable", line=line)
    return _collected(code, name, small, call, second, found)


def _loop_without_reads(
    code: Code, name: str, target: cst.Name, first: cst.Name, statement: cst.CSTNode
) -> Loop | Declined:
    """The outermost loop in which the concatenation alone uses `name`."""
    found: Loop | None = None
    for loop in code.loops(statement):
        others = [use for use in code.uses(name, loop) if use is not target and use is not first]
        if others and found is None:
            why = f"the loop reads `{name}`: whoever reads it must mask what is not filled yet"
            return Declined(why=why, line=code.line(others[0]))
        if others:
            break
        found = loop
    if found is None:
        return Declined(why="the concatenation is in no loop of this function", line=code.line(statement))
    home = code.function(found)
    elsewhere = [use for use in code.uses(name) if code.function(use) is not home]
    if code.is_shared(name, home) or elsewhere:
        return Declined(why=f"a function that may run in the loop uses `{name}`", line=code.line(statement))
    return moved_out_of(code, statement, found) or found


def _collected(code: Code, name: str, small: cst.Assign, call: cst.Call, second: cst.BaseExpression, loop: Loop) -> str:
    parts = code.fresh(f"{name}_parts")
    if not isinstance(second, (cst.Name, cst.Attribute, cst.Subscript, cst.Call)) and not second.lpar:
        second = second.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    kept = cst.Call(cst.Attribute(value=second, attr=cst.Name("clone")))
    append = cst.Call(cst.Attribute(cst.Name(parts), cst.Name("append")), [cst.Arg(kept)])
    whole = call.with_changes(args=[call.args[0].with_changes(value=cst.Name(parts)), *call.args[1:]])
    config = code.module.config_for_parsing
    before = cst.parse_statement(f"{parts} = [{name}]", config)
    after = cst.SimpleStatementLine([small.with_changes(value=whole, semicolon=cst.MaybeSentinel.DEFAULT)])
    return code.replaced({small: cst.Expr(append), loop: beside(before, [after])})
