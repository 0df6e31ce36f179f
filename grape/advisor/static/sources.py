"""Several sources read as one program: the cells of a notebook share their names."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from ..source import Parsed
from .findings import StaticFinding, find

__all__ = ["Placed", "find_in_sources"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A finding, and the source it is in; its lines count from that source's first one."""

    file: str
    finding: StaticFinding


@lru_cache(maxsize=8)
def find_in_sources(sources: tuple[tuple[str, str], ...]) -> tuple[Placed, ...]:
    """The findings of (name, source) pairs that share one namespace, in their order.

    Magic and shell lines count as empty ones; a source that is no Python is left out.
    """
    body: list[ast.stmt] = []
    starts: list[tuple[int, str]] = []
    offset = 0
    for name, source in sources:
        tree = Parsed(source).tree
        if tree is not None:
            body += ast.increment_lineno(tree, offset).body if offset else tree.body
            starts.append((offset, name))
        offset += source.count("\n") + 1
    try:
        found = find(ast.Module(body=body, type_ignores=[]))
    except RecursionError:  # an expression of thousands of operators, made by a program
        return ()
    return tuple(_placed(finding, starts) for finding in found)


def _placed(finding: StaticFinding, starts: Iterable[tuple[int, str]]) -> Placed:
    offset, name = max(start for start in starts if start[0] < finding.line)
    first, last = finding.around
    return Placed(
        file=name,
        finding=replace(
            finding,
            line=finding.line - offset,
            end_line=finding.end_line - offset,
            around=(first - offset, last - offset),
        ),
    )
