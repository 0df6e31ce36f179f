"""GR101: read values on the CPU after the loop instead of in it.

    losses = []                                       losses = []
    for x in batches:                                 for x in batches:
        losses.append(step(x).item())                     losses.append(step(x).detach().clone())
                                                      losses[:] = [value.item() for value in losses]

Also ``total += loss.item()`` and comprehensions. The values are the same, and sums are added in the same order. A
clone keeps what the tensor held at that time. Refused wherever something in the loop uses the value.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...model import Finding
from ..code import Code, Loop, descendants, same
from ..effects import CONSTANTS, call_name, calls, moved_out_of, only_statement
from ..host_reads import Read, kept_copy, on_device, sees
from ..likely import CASTS, READS
from ..result import Declined
from .summed_reads import added

_SHOWS = ("print", "display", "format", "str", "repr")
_MODES = ("no_grad", "inference_mode", "enable_grad", "set_grad_enabled", "autocast")
_COMPREHENDED_BY = ("sum", "list", "tuple", "max", "min", "sorted")


def fix(code: Code, finding: Finding) -> str | Declined:
    assert finding.at is not None
    line = finding.at.line
    reads = [read for node in code.on_line(line, cst.Call) if (read := _read(node)) is not None]
    if not reads:
        return _not_a_read(code, line)
    if len(reads) > 1:
        return Declined(why="several host reads stand on one line", line=line)
    read = reads[0]
    if any(isinstance(node, (cst.Await, cst.Yield, cst.NamedExpr)) for node in descendants(read.tensor)):
        return Declined(why="the value that is read binds a name or waits", line=line)
    if any(_leaves_device(node) for node in calls(on_device(read.tensor))):
        return Declined(why="the value is computed on the CPU", line=line)
    comprehension = code.parent(read.node)
    if isinstance(comprehension, (cst.ListComp, cst.GeneratorExp)) and comprehension.elt is read.node:
        return _in_comprehension(code, read, comprehension)
    statement = code.statement(read.node)
    loops = code.loops(read.node)
    if statement is None or not loops:
        return Declined(
            why="the read is in no loop of this function; read the value where the loop has ended", line=line
        )
    crowded = isinstance(statement, cst.SimpleStatementLine) and len(statement.body) > 1
    if crowded or any(isinstance(above, cst.SimpleStatementSuite) for above in code.ancestors(read.node)):
        return Declined(why="other code stands on the line; write the read on a line of its own", line=line)
    small = only_statement(statement)
    made: str | Declined = Declined(why="what the loop goes on with depends on the value", line=line)
    if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
        made = _appended(code, read, small.value, statement, loops)
    elif isinstance(small, cst.AugAssign):
        made = added(code, read, small, statement, loops)
    if isinstance(made, str) and _only_reads(read, loops[0]):
        return Declined(why="the loop does nothing but read", line=line)
    return made


def _read(node: cst.Call) -> Read | None:
    func = node.func
    if isinstance(func, cst.Attribute) and func.attr.value in READS and not node.args:
        return Read(node, func.value)
    one = len(node.args) == 1 and node.args[0].keyword is None and not node.args[0].star
    if isinstance(func, cst.Name) and func.value in CASTS and one:
        inner = node.args[0].value
        # `float(x.item())` reads once, in the inner call; `float("inf")` and `int(len(x))` read nothing.
        if isinstance(inner, CONSTANTS) or (isinstance(inner, cst.Call) and _reads_nothing_more(inner)):
            return None
        return Read(node, inner)
    return None


def _reads_nothing_more(inner: cst.Call) -> bool:
    return _read(inner) is not None or call_name(inner) in ("len", "round", "str", "input")


def _not_a_read(code: Code, line: int) -> Declined:
    names = [call_name(node).rpartition(".")[2] for node in code.on_line(line, cst.Call)]
    if any(name in ("cpu", "numpy", "to") for name in names):
        return Declined(why="keeping every result until the loop ends would hold it in GPU memory", line=line)
    if "synchronize" in names:
        return Declined(why="a copy that does not block may rely on the synchronization", line=line)
    if any(name in _SHOWS for name in names):
        return Declined(why="what is shown at each step would appear only after the loop", line=line)
    return Declined(why="no `.item()`, `.tolist()`, `float()` or `int()` of a tensor stands on the line", line=line)


def _only_reads(read: Read, loop: Loop) -> bool:
    """True for ``for part in parts: total += part.item()``."""
    if not isinstance(loop, cst.For) or len(loop.body.body) > 1 or not isinstance(read.tensor, cst.Name):
        return False
    return any(isinstance(node, cst.Name) and node.value == read.tensor.value for node in descendants(loop.target))


def _leaves_device(call: cst.Call) -> bool:
    module, _, name = call_name(call).rpartition(".")
    casts = isinstance(call.func, cst.Name) and name in CASTS  # `x.float()` stays where it is
    return casts or name in ("cpu", "numpy", *READS) or module.partition(".")[0] in ("np", "numpy", "math")


def _in_comprehension(code: Code, read: Read, outer: cst.ListComp | cst.GeneratorExp) -> str | Declined:
    source = outer.for_in.iter
    if isinstance(source, cst.ListComp) and call_name(source.elt).endswith("clone"):
        return Declined(why="the values are read after the loop already", line=code.line(read.node))
    if outer.for_in.asynchronous is not None:
        return Declined(why="the comprehension is asynchronous", line=code.line(outer))
    holder = code.parent(outer)
    if isinstance(outer, cst.GeneratorExp):
        user = code.parent(holder) if isinstance(holder, cst.Arg) else None
        if not isinstance(user, cst.Call) or call_name(user) not in _COMPREHENDED_BY or len(user.args) != 1:
            return Declined(why="what takes the values may stop before the last one", line=code.line(outer))
    if isinstance(read.tensor, cst.Name) and same(read.tensor, outer.for_in.target):
        return Declined(why="the comprehension does nothing but read", line=code.line(outer))
    name = code.fresh("value")
    values = cst.ListComp(elt=kept_copy(read), for_in=outer.for_in)
    loop = cst.CompFor(target=cst.Name(name), iter=values, whitespace_before=cst.SimpleWhitespace(" "))
    return code.replaced({outer: outer.with_changes(elt=read.of(cst.Name(name)), for_in=loop)})


def _appended(code: Code, read: Read, call: cst.Call, statement: cst.CSTNode, loops: list[Loop]) -> str | Declined:
    line = code.line(statement)
    func = call.func
    if call_name(call).rpartition(".")[2] in _SHOWS:
        return Declined(why="what is shown at each step would appear only after the loop", line=line)
    if not (isinstance(func, cst.Attribute) and func.attr.value == "append" and len(call.args) == 1):
        return Declined(why=f"`{call_name(call)}` takes the value at each step", line=line)
    if call.args[0].value is not read.node:
        return Declined(why="something is computed from the value at each step", line=line)
    target = _name_of(func.value)
    if target is None:
        return Declined(why=f"`{code.text(func.value)}` is no plain list", line=line)
    found = _loop_below_definition(code, target, func.value, loops)
    if isinstance(found, Declined):
        return found
    loop, definition = found
    other = _used_elsewhere(code, target, func.value, loop, definition)
    if other is not None:
        return other
    refused = moved_out_of(code, statement, loop)
    if refused is not None:
        return refused
    container, name = code.text(func.value), code.fresh("value")
    reading = code.text(read.of(cst.Name(name)))
    after = cst.parse_statement(f"{container}[:] = [{reading} for {name} in {container}]")
    return code.replaced({read.node: kept_copy(read), loop: lambda node: [node, after]})


def _name_of(container: cst.BaseExpression) -> str | None:
    """The variable of ``losses`` or ``history["loss"]``."""
    if isinstance(container, cst.Name):
        return container.value
    if isinstance(container, cst.Subscript) and isinstance(container.value, cst.Name) and _key(container) is not None:
        return container.value.value
    return None


def _key(subscript: cst.Subscript) -> cst.BaseExpression | None:
    if len(subscript.slice) == 1 and isinstance(subscript.slice[0].slice, cst.Index):
        key = subscript.slice[0].slice.value
        return key if isinstance(key, (cst.SimpleString, cst.Integer)) else None
    return None


def _loop_below_definition(
    code: Code, name: str, container: cst.BaseExpression, loops: list[Loop]
) -> tuple[Loop, cst.CSTNode] | Declined:
    """The loop that stands in one suite with ``name = []``, below it, or in a ``with torch.no_grad():`` there."""
    for loop in loops:
        for statement in _statements_above(code, loop):
            if not any(code.is_stored(use) for use in code.uses(name, statement)):
                continue
            small = only_statement(statement)
            if isinstance(small, cst.Assign) and len(small.targets) == 1 and _is_empty(small.value, container):
                return loop, statement
            return Declined(
                why=f"`{name}` is not made as an empty list just before the loop", line=code.line(statement)
            )
    return Declined(why=f"`{name}` is made elsewhere, or in another block than the loop", line=code.line(container))


def _statements_above(code: Code, loop: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Statements that surely ran before `loop`, the last first: in its suite, and around blocks that only set a mode of
    torch.
    """
    below: cst.CSTNode | None = loop
    while below is not None:
        block = code.block(below)
        if block is None:
            return
        yield from reversed(block.statements[: block.index(below)])
        around = code.parent(block.holder)
        below = around if isinstance(around, cst.With) and _sets_a_mode(around) else None


def _sets_a_mode(block: cst.With) -> bool:
    return all(item.asname is None and call_name(item.item).rpartition(".")[2] in _MODES for item in block.items)


def _is_empty(value: cst.BaseExpression, container: cst.BaseExpression) -> bool:
    if isinstance(container, cst.Name):
        empty_call = isinstance(value, cst.Call) and call_name(value) == "list" and not value.args
        return empty_call or (isinstance(value, cst.List) and not value.elements)
    if not isinstance(container, cst.Subscript) or not isinstance(value, cst.Dict):
        return False
    key = _key(container)
    return key is not None and any(
        isinstance(element, cst.DictElement) and same(element.key, key) and _is_empty(element.value, cst.Name("list"))
        for element in value.elements
    )


def _used_elsewhere(
    code: Code, name: str, container: cst.BaseExpression, loop: cst.CSTNode, definition: cst.CSTNode
) -> Declined | None:
    """Uses that would meet tensors where numbers were: in the loop, before it, or in a function that it may call."""
    mine = set(map(id, descendants(container)))
    first, last = code.line(definition), code.lines(loop)[1]
    home = code.function(loop)
    if code.is_shared(name, home):
        return Declined(why=f"`{name}` is shared between functions", line=first)
    for use in code.uses(name):
        at = code.line(use)
        if id(use) in mine or any(use is node for node in descendants(definition)):
            continue
        if first <= at <= last and code.function(use) is home and not _appends_to_another_key(code, use, container):
            return Declined(why=f"`{name}` is used before the loop has ended", line=at)
        if code.function(use) is not home and sees(code, use, home):
            return Declined(why=f"a function that may run in the loop uses `{name}`", line=at)
    return None


def _appends_to_another_key(code: Code, use: cst.CSTNode, container: cst.BaseExpression) -> bool:
    """``history["accuracy"].append(...)`` leaves ``history["loss"]`` alone."""
    item = code.parent(use)
    if not (isinstance(container, cst.Subscript) and isinstance(item, cst.Subscript) and item.value is use):
        return False
    key, mine = _key(item), _key(container)
    method = code.parent(item)
    appends = isinstance(method, cst.Attribute) and method.attr.value == "append"
    return appends and key is not None and mine is not None and not same(key, mine)
