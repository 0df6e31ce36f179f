"""Findings from the syntax tree of code that runs again and again; nothing has a cost."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from .context import Context, StaticFinding
from .hot import HotCode
from .inputs import changing_numbers, constants, gradients, growth, hidden_state, host_inputs
from .kinds import Kinds
from .lengths import repeated_lengths
from .waits import branches, dynamic_shapes, host_reads

__all__ = ["StaticFinding", "find"]


_RULES: tuple[Callable[[Context], Iterator[StaticFinding]], ...] = (
    host_reads,
    branches,
    dynamic_shapes,
    repeated_lengths,
    growth,
    host_inputs,
    constants,
    changing_numbers,
    hidden_state,
    gradients,
)


def find(tree: ast.Module, kinds: Kinds | None = None, *, only_reads: bool = False) -> tuple[StaticFinding, ...]:
    """All findings of one source (or those of GR101), one per code and line, in the order of the lines.

    Code that imports no library of tensors has none.
    """
    kinds = kinds or Kinds(tree)
    if not kinds.uses_tensors:
        return ()
    context = Context(kinds, HotCode(kinds))
    found: dict[tuple[str, int], StaticFinding] = {}
    for rule in (host_reads,) if only_reads else _RULES:
        for finding in rule(context):
            found.setdefault((finding.code, finding.line), finding)
    return tuple(sorted(found.values(), key=lambda finding: (finding.line, finding.code)))
