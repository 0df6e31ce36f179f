"""Where the person's code mentions something by name: the line to blame for a change of Python state."""

from __future__ import annotations

import dis
import re
import types
from typing import Any

from ..model import Position

__all__ = ["line_that_mentions"]


def line_that_mentions(function: Any, path: str | None, at: Position) -> Position:
    """The one line of `function` that mentions what `path` begins with (`scheduler` of `scheduler.last_epoch`).

    `at`, the function's own position, where there is no such line, or several.
    """
    code = getattr(function, "__code__", None)
    if path is None or not isinstance(code, types.CodeType):
        return at
    root = re.split(r"[.\[ ]", path, maxsplit=1)[0]
    lines = {
        position.lineno
        for instruction in dis.get_instructions(code)
        if instruction.argval == root and (position := instruction.positions) is not None
    }
    line = lines.pop() if len(lines) == 1 else None
    return at if line is None else Position(file=at.file, line=line, function=at.function)
