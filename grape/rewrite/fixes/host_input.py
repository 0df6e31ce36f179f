"""GR302: a tensor is brought to the device without waiting for it, in the best way that the source allows.

    noise = torch.randn(8, 4).to(device)             noise = torch.randn(8, 4, pin_memory=torch.cuda.is_available()).to(
                                                         device, non_blocking=True)

A tensor that is made on the line of its move is made in pinned memory. Batches of a loop are prefetched where nothing
sees their CPU tensors (`prefetched_input`); else the `DataLoader` pins them (`pinned_input`).
"""

from __future__ import annotations

import libcst as cst

from ...model import Finding
from ..arguments import keyword, with_keyword
from ..code import Code, importing
from ..effects import call_name
from ..result import Declined
from .pinned_input import fix as pinned
from .pinned_input import is_move
from .prefetched_input import prefetched

_MADE = frozenset(
    {"tensor", "zeros", "ones", "full", "empty", "arange", "rand", "randn", "randint", "randperm", "linspace", "eye"}
)
_DECIDES = ("device", "pin_memory", "out", "layout", "requires_grad")


def fix(code: Code, finding: Finding) -> str | Declined:
    assert finding.at is not None
    moves = [call for call in code.on_line(finding.at.line, cst.Call) if is_move(call)]
    if not moves:
        return Declined(why="no `.to(device)` or `.cuda()` stands on the line", line=finding.at.line)
    made = _made_in_pinned_memory(code, moves)
    if made is not None:
        return made
    first = prefetched(code, moves[0])
    if not isinstance(first, Declined):
        return first
    second = pinned(code, finding)
    return first if isinstance(second, Declined) and code.loops(moves[0]) else second


def _made_in_pinned_memory(code: Code, moves: list[cst.Call]) -> str | None:
    """``torch.randn(...).to(device)``; None where no move on the line is of that kind."""
    edits: dict[cst.CSTNode, cst.CSTNode] = {}
    for move in moves:
        assert isinstance(move.func, cst.Attribute)
        made = move.func.value
        home, _, name = call_name(made).rpartition(".")
        if not isinstance(made, cst.Call) or home != "torch" or name not in _MADE:
            continue
        if any(arg.star for arg in (*made.args, *move.args)) or any(keyword(made, word) for word in _DECIDES):
            continue
        if keyword(move, "non_blocking") is None:
            there = with_keyword(made, "pin_memory", "torch.cuda.is_available()")
            moved = move.with_changes(func=move.func.with_changes(value=there))
            edits[move] = with_keyword(moved, "non_blocking", "True")
    return importing(code, code.replaced(edits)) if edits else None
