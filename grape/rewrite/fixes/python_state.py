"""GR404: Python state that a replay would not write.

Moving it out of the region changes when and how often it is written for everybody who calls the function, and other
cells may call it too. So this fix only says what would have to move, and where it stands.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...model import Finding
from ..code import Code, descendants
from ..result import Declined

_WRITES = ("append", "extend", "insert", "update", "add", "pop", "popleft", "clear", "remove", "setdefault")


def fix(code: Code, finding: Finding) -> str | Declined:
    assert finding.at is not None
    functions = [node for node in descendants(code.module) if isinstance(node, cst.FunctionDef)]
    around = [node for node in functions if code.lines(node)[0] <= finding.at.line <= code.lines(node)[1]]
    for function in reversed(around):
        for node, name in _written(code, function):
            why = f"`{name}` is written for whoever calls `{function.name.value}`; return the new value instead"
            return Declined(why=why, line=code.line(node))
    return Declined(why="what the call changes is not written in this source", line=finding.at.line)


def _written(code: Code, function: cst.FunctionDef) -> Iterator[tuple[cst.CSTNode, str]]:
    """Writes to what the function did not make itself: attributes, items, globals, methods that change a container."""
    shared = {
        item.name.value
        for node in descendants(function.body)
        if isinstance(node, (cst.Global, cst.Nonlocal))
        for item in node.names
    }
    local = code.stored(function.body) - shared
    for node in descendants(function.body):
        if isinstance(node, (cst.Attribute, cst.Subscript)) and code.is_stored(node):
            root: cst.CSTNode = node
            while isinstance(root, (cst.Attribute, cst.Subscript)):
                root = root.value
            if isinstance(root, cst.Name) and root.value not in local:
                yield node, code.text(node)
        elif isinstance(node, cst.Name) and node.value in shared and code.is_stored(node):
            yield node, node.value
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in _WRITES:
            owner = node.func.value
            if not isinstance(owner, cst.Name) or owner.value not in local:
                yield node, code.text(owner)
