"""GR302: batches that are on the device when the loop gets them.

    for x, y in loader:                              for x, y in grape.prefetch(loader, device):
        x, y = x.to(device), y.to(device)                x, y = x.to(device), y.to(device)

Every variable of the batch must be moved before anything else sees it. The calls of `to` stay, and find their tensors
on the device: what prefetching leaves alone, they move as ever. `grape.prefetch` keeps the order, `break`, exceptions
and random numbers of the loop.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ..arguments import keyword, with_keyword
from ..code import Code, descendants, dotted, importing, same
from ..effects import call_name, only_statement
from ..result import Declined
from .pinned_input import is_move, made_at

_LEAVES = (cst.Break, cst.Continue, cst.Return, cst.Raise, cst.Yield, cst.Await)
_CHOOSES = frozenset({"stream", "set_stream", "Stream", "set_device", "CUDAGraph", "graph"})


def prefetched(code: Code, move: cst.Call) -> str | Declined:
    """`code` with the loop around `move` over `grape.prefetch`."""
    line = code.line(move)
    loop = next((item for item in code.loops(move) if isinstance(item, cst.For)), None)
    if loop is None:
        return Declined(why="the copy is in no `for` loop", line=line)
    at = code.line(loop)
    if loop.asynchronous is not None:
        return Declined(why="the loop waits for its batches", line=at)
    if any(call_name(node) == "grape.prefetch" for node in descendants(loop.iter)):
        return Declined(why="the loop's batches are prefetched already", line=at)
    source, names = _batches(loop)
    if not names:
        return Declined(why="the loop's variable is no name and no tuple of names", line=at)
    device = _device(code, move, loop)
    if isinstance(device, Declined):
        return device
    refused = _noticed(code, loop, names, device)
    if refused is not None:
        return refused
    if "grape" in code.all_names() and not _imports_grape(code):
        return Declined(why="the source has a name `grape` of its own, which the rewrite would need")
    between = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    wrapped = cst.Call(
        func=cst.Attribute(cst.Name("grape"), cst.Name("prefetch")),
        args=[cst.Arg(source, comma=between), cst.Arg(device)],
    )
    return importing(code, code.replaced({source: wrapped, **_pinned(code, source)}), "grape")


def _pinned(code: Code, source: cst.BaseExpression) -> dict[cst.CSTNode, cst.CSTNode]:
    """A `DataLoader` that is made in this cell, asked to pin its batches itself."""
    made = made_at(code, source.value) if isinstance(source, cst.Name) and "torch" in code.all_names() else None
    if not isinstance(made, cst.Call) or keyword(made, "pin_memory") is not None:
        return {}
    return {made: with_keyword(made, "pin_memory", "torch.cuda.is_available()")}


def _batches(loop: cst.For) -> tuple[cst.BaseExpression, list[str]]:
    """The iterable that the loop goes over, inside of ``enumerate`` and ``tqdm``, and the names that a batch is
    unpacked to.
    """
    source = loop.iter
    target: cst.BaseExpression = loop.target
    while isinstance(source, cst.Call) and source.args and source.args[0].keyword is None and not source.args[0].star:
        name = call_name(source).rpartition(".")[2]
        if name == "enumerate" and isinstance(target, cst.Tuple) and len(target.elements) == 2:
            target = target.elements[1].value
        elif name != "tqdm":
            break
        source = source.args[0].value
    names = list(_names(target))
    return source, [name for name in names if name is not None] if None not in names else []


def _names(target: cst.BaseExpression) -> Iterator[str | None]:
    """The names of a target; None for what is no name."""
    if isinstance(target, cst.Name):
        yield target.value
    elif isinstance(target, (cst.Tuple, cst.List)):
        for element in target.elements:
            yield from _names(element.value) if isinstance(element, cst.Element) else iter([None])
    else:
        yield None


def _goes_to(move: cst.Call) -> cst.BaseExpression | None:
    """Where a move brings its tensor, if it does nothing but that; ``"cuda"`` for ``.cuda()``."""
    assert isinstance(move.func, cst.Attribute)
    words = [arg for arg in move.args if arg.keyword is None or arg.keyword.value == "device"]
    others = [arg for arg in move.args if arg not in words]
    if len(words) > 1 or any(arg.star for arg in move.args):
        return None
    if any(arg.keyword is None or arg.keyword.value != "non_blocking" for arg in others):
        return None
    if words:
        return words[0].value
    return cst.SimpleString('"cuda"') if move.func.attr.value == "cuda" else None


def _device(code: Code, move: cst.Call, loop: cst.For) -> cst.BaseExpression | Declined:
    """Where the tensor goes, as an expression that means the same in front of the loop."""
    line = code.line(move)
    device = _goes_to(move)
    if device is None:
        return Declined(why="the copy does more than go to a device", line=line)
    if isinstance(device, (cst.SimpleString, cst.Integer)):
        return device
    name = dotted(device)
    last = name.rpartition(".")[2]
    if not ("device" in last.lower() or last == "dev"):
        return Declined(why=f"whether `{code.text(device)}` is a device cannot be told", line=line)
    if name.partition(".")[0] in code.stored(loop):
        return Declined(why=f"`{name.partition('.')[0]}` changes in the loop", line=code.line(loop))
    return device


def _noticed(code: Code, loop: cst.For, names: list[str], device: cst.BaseExpression) -> Declined | None:
    """Why somebody would see that a batch comes on the device; None where nobody would."""
    at, home = code.line(loop), code.function(loop)
    if not isinstance(loop.body, cst.IndentedBlock):
        return Declined(why="the loop's body stands on its line", line=at)
    chooses = next((node for node in descendants(loop.body) if _chooses(node)), None)
    if chooses is not None:
        return Declined(why="the loop chooses a stream or a device by itself", line=code.line(chooses))
    if len(set(names)) < len(names):
        return Declined(why="the loop binds a name twice", line=at)
    shared = next((name for name in names if code.is_shared(name, home)), None)
    if shared is not None:
        return Declined(why=f"a function that may run meanwhile uses `{shared}`", line=at)
    left = {name for name in names if not _is_read_by_moves(code, name, loop, device)}
    for statement in loop.body.body:
        seen = {name for name in left if code.uses(name, statement)}
        if not left:
            return None
        if not seen:
            if any(isinstance(node, _LEAVES) for node in descendants(statement)):
                return Declined(why="the loop may be left before the copy", line=code.line(statement))
            continue
        small = only_statement(statement)
        bound = _bound_by_moves(code, small, device) if isinstance(small, cst.Assign) else set()
        if not seen <= bound:
            why = f"`{min(seen - bound)}` is used before it is copied to the same device"
            return Declined(why=why, line=code.line(statement))
        left -= bound
    return Declined(why=f"`{min(left)}` stays on the CPU", line=at) if left else None


def _chooses(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Call):
        return call_name(node).endswith("cuda.device")
    return isinstance(node, cst.Name) and node.value in _CHOOSES


def _is_read_by_moves(code: Code, name: str, loop: cst.For, device: cst.BaseExpression) -> bool:
    """True where nothing but moves ever reads a local variable: ``batch["x"].to(device)``, or nothing at all."""
    home = code.function(loop)
    if home is None:
        return name == "_"
    bound = code.uses(name, loop.target)
    for use in code.uses(name, home):
        if use in bound:
            continue
        item = code.parent(use)
        while isinstance(item, cst.Subscript) and item.value is use:
            use, item = item, code.parent(item)  # type: ignore[assignment]
        call = code.parent(item) if isinstance(item, cst.Attribute) else None
        if not isinstance(call, cst.Call) or call.func is not item or not is_move(call):
            return False
        goes = _goes_to(call)
        if goes is None or not same(goes, device) or loop not in code.loops(call):
            return False
    return True


def _bound_by_moves(code: Code, statement: cst.Assign, device: cst.BaseExpression) -> set[str]:
    """The names that ``x, y = x.to(device), y.to(device)`` binds anew; none for any other statement."""
    if len(statement.targets) != 1:
        return set()
    target, value = statement.targets[0].target, statement.value
    pairs: list[tuple[cst.BaseExpression, cst.BaseExpression]] = [(target, value)]
    if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple) and len(target.elements) == len(value.elements):
        pairs = [(one.value, other.value) for one, other in zip(target.elements, value.elements, strict=True)]
    bound = {left.value for left, right in pairs if isinstance(left, cst.Name) and _moves(code, left, right, device)}
    return bound if len(bound) == len(pairs) else set()


def _moves(code: Code, name: cst.Name, value: cst.BaseExpression, device: cst.BaseExpression) -> bool:
    """True if `value` is ``name.to(device)``, or the items of `name` moved one by one, perhaps with more behind it."""
    if len(code.uses(name.value, value)) != 1:
        return False
    if isinstance(value, (cst.DictComp, cst.ListComp)):
        part = value.value if isinstance(value, cst.DictComp) else value.elt
        source = value.for_in.iter
        if isinstance(value, cst.DictComp):
            if call_name(source) != f"{name.value}.items":
                return False
        elif not (isinstance(source, cst.Name) and source.value == name.value):
            return False
        of = {each for each in _names(value.for_in.target) if each is not None}
        plain = value.for_in.inner_for_in is None and not value.for_in.ifs
        return plain and isinstance(part, cst.Call) and _is_move_of(part, of, device)
    found = [node for node in descendants(value) if isinstance(node, cst.Call)]
    return any(_is_move_of(call, {name.value}, device) for call in found)


def _is_move_of(call: cst.Call, names: set[str], device: cst.BaseExpression) -> bool:
    if not is_move(call) or not isinstance(call.func, cst.Attribute) or not isinstance(call.func.value, cst.Name):
        return False
    goes = _goes_to(call)
    return call.func.value.value in names and goes is not None and same(goes, device)


def _imports_grape(code: Code) -> bool:
    aliases = (node for node in descendants(code.module) if isinstance(node, cst.ImportAlias))
    return any(alias.evaluated_name == "grape" and alias.asname is None for alias in aliases)
