"""Where the person's code mentions something by name: the line to blame for a change of Python state."""

from __future__ import annotations

import dis
import re
import types
from collections.abc import Sequence

from ...model import Position


def blamed(function: object, paths: Sequence[str], at: Position) -> tuple[str, Position]:
    """By which path the code reaches what has changed, and the one line of `function` that mentions it.

    Of `paths`, such as ``scheduler.last_epoch``, the first counts whose beginning stands on one line only. Where there
    is none: the first path, or an empty one, and `at`, the function's own position.
    """
    code = getattr(function, "__code__", None)
    instructions = list(dis.get_instructions(code)) if isinstance(code, types.CodeType) else []
    for path in paths:
        root = re.split(r"[.\[ ]", path, maxsplit=1)[0]
        mentions = [instruction.positions for instruction in instructions if root in _names(instruction)]
        lines = {position.lineno for position in mentions if position is not None and position.lineno is not None}
        if len(lines) == 1:
            return path, Position(file=at.file, line=lines.pop(), function=at.function)
    return (paths[0] if paths else ""), at


def _names(instruction: dis.Instruction) -> tuple[object, ...]:
    """The names in an instruction: since CPython 3.13 one may load two local names."""
    named = instruction.argval
    return named if isinstance(named, tuple) and "FAST" in instruction.opname else (named,)
