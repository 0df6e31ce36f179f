"""Walking a syntax tree, without the whitespace that LibCST keeps in it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache

import libcst as cst

Statements = list[cst.BaseStatement]

_LAYOUT = (
    cst.BaseParenthesizableWhitespace,
    cst.TrailingWhitespace,
    cst.EmptyLine,
    cst.Newline,
    cst.Comment,
    cst.LeftParen,
    cst.RightParen,
    cst.Comma,
    cst.Semicolon,
    cst.Colon,
    cst.AssignEqual,
    cst.Dot,
)


@cache
def _fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    return tuple(name for name in kind.__dataclass_fields__ if "whitespace" not in name and "lines" not in name)


@cache
def _is_code_type(kind: type[object]) -> bool:
    # Asked once a type: the layout classes are abstract ones, for which isinstance is slow.
    return issubclass(kind, cst.CSTNode) and not issubclass(kind, _LAYOUT)


def _is_code(value: object) -> bool:
    kind: object = type(value)
    return _is_code_type(kind)


@lru_cache(maxsize=16384)
def children(node: cst.CSTNode) -> tuple[cst.CSTNode, ...]:
    """The parts of a node in the order of the source, layout left out. (`CSTNode.children` copies the whole node.)"""
    found: list[cst.CSTNode] = []
    for name in _fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, (list, tuple)):
            found += [item for item in value if _is_code(item)]
        elif _is_code(value):
            found.append(value)
    return tuple(found)


def descendants(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The node and everything in it, from the outside in."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(children(current)))


def contains(node: cst.CSTNode, *kinds: type[cst.CSTNode]) -> bool:
    return any(isinstance(item, kinds) for item in descendants(node))
