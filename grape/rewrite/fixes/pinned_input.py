"""GR302: batches from pinned memory, copied while the CPU goes on.

    loader = DataLoader(data, batch_size=32)         loader = DataLoader(data, batch_size=32, pin_memory=...)
    for x, y in loader:                              for x, y in loader:
        x = x.to("cuda")                                 x = x.to("cuda", non_blocking=True)

A copy that does not block reads the batch later than the line says: safe where nothing uses the CPU tensor again.
Without a GPU the loader pins nothing and the copies are the ones they were.
"""

from __future__ import annotations

import libcst as cst

from ...model import Finding
from ..arguments import keyword, with_keyword
from ..code import Code, importing
from ..effects import call_name, only_statement
from ..result import Declined


def fix(code: Code, finding: Finding) -> str | Declined:
    assert finding.at is not None
    line = finding.at.line
    moves = [call for call in code.on_line(line, cst.Call) if is_move(call)]
    if not moves:
        return Declined(why="no `.to(device)` or `.cuda()` stands on the line", line=line)
    edits: dict[cst.CSTNode, cst.CSTNode] = {}
    loaders: set[str] = set()
    for move in moves:
        loader = _loader_of(code, move)
        if isinstance(loader, Declined):
            return loader
        loaders.add(loader)
        if keyword(move, "non_blocking") is None:
            edits[move] = with_keyword(move, "non_blocking", "True")
    for loader in sorted(loaders):
        made = made_at(code, loader)
        if isinstance(made, Declined):
            return made
        if keyword(made, "pin_memory") is None:
            edits[made] = with_keyword(made, "pin_memory", "torch.cuda.is_available()")
    if not edits:
        return Declined(why="the copy is pinned and does not block already", line=line)
    return importing(code, code.replaced(edits))


def is_move(call: cst.Call) -> bool:
    if not isinstance(call.func, cst.Attribute):
        return False
    if call.func.attr.value == "cuda":
        return True
    to_cpu = any(isinstance(arg.value, cst.SimpleString) and "cpu" in arg.value.value for arg in call.args)
    return call.func.attr.value == "to" and bool(call.args) and not to_cpu


def _loader_of(code: Code, move: cst.Call) -> str | Declined:
    """The variable of the `DataLoader` that the moved tensor comes from, where nothing uses the tensor afterwards."""
    line = code.line(move)
    assert isinstance(move.func, cst.Attribute)
    moved = move.func.value
    root = moved.value if isinstance(moved, cst.Subscript) else moved
    if not isinstance(root, cst.Name):
        return Declined(why="what is copied is no variable of the loop", line=line)
    each = _comprehended(code, root, move)
    if each is not None:
        root = moved = each
    for loop in code.loops(move):
        if isinstance(loop, cst.For) and root.value in code.stored(loop.target):
            loader = _iterated(loop.iter)
            if loader is None:
                return Declined(why="the loop does not go over a DataLoader by name", line=code.line(loop))
            return _used_again(code, root, moved, move, loop) or loader
    return Declined(why=f"`{root.value}` is no variable of a loop over a DataLoader", line=line)


def _comprehended(code: Code, root: cst.Name, move: cst.Call) -> cst.Name | None:
    """`batch` of ``{name: value.to(device) for name, value in batch.items()}``."""
    for above in code.ancestors(move):
        if isinstance(above, cst.BaseComp) and root.value in code.stored(above.for_in.target):
            source = above.for_in.iter
            if isinstance(source, cst.Call) and isinstance(source.func, cst.Attribute) and not source.args:
                source = source.func.value
            return source if isinstance(source, cst.Name) else None
    return None


def _iterated(node: cst.BaseExpression) -> str | None:
    """The loader's name, also inside ``enumerate(...)`` and ``tqdm(...)``."""
    if isinstance(node, cst.Call) and call_name(node).rpartition(".")[2] in ("enumerate", "tqdm") and node.args:
        return _iterated(node.args[0].value)
    return node.value if isinstance(node, cst.Name) else None


def _used_again(
    code: Code, root: cst.Name, moved: cst.BaseExpression, move: cst.Call, loop: cst.For
) -> Declined | None:
    statement = only_statement(code.statement(move))
    rebound = (
        isinstance(statement, cst.Assign)
        and any(use is not None for target in statement.targets for use in code.uses(root.value, target.target))
        and moved is root
    )
    if rebound:
        return None
    mine = code.line(move)
    for use in code.uses(root.value, loop.body):
        if use is root:
            continue
        item = code.parent(use)
        other_part = (
            isinstance(moved, cst.Subscript) and isinstance(item, cst.Subscript) and not item.deep_equals(moved)
        )
        if not other_part and (code.line(use) > mine or use is not root):
            return Declined(why=f"`{root.value}` is used on the CPU as well", line=code.line(use))
    return None


def made_at(code: Code, loader: str) -> cst.Call | Declined:
    made = [use for use in code.uses(loader) if code.is_stored(use)]
    if len(made) != 1:
        return Declined(why=f"where `{loader}` is made is not in this cell", line=code.line(made[0]) if made else None)
    statement = only_statement(code.statement(made[0]))
    value = statement.value if isinstance(statement, cst.Assign) else None
    if not isinstance(value, cst.Call) or call_name(value).rpartition(".")[2] != "DataLoader":
        return Declined(why=f"`{loader}` is no DataLoader that is made in this cell", line=code.line(made[0]))
    if any(arg.star for arg in value.args):
        return Declined(why="the DataLoader's options are computed", line=code.line(value))
    return value
