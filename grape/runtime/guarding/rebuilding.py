"""Containers that are made again, and trees of them that are compared."""

from __future__ import annotations

import collections
import types

from .structure import _PLAIN, Node, Static, typed


def new_tuple(cls: type, items: list[object]) -> object:
    """A tuple, a namedtuple (past its `__new__`), or one of torch's own (`torch.Size`, results of `max`, ...)."""
    if cls is tuple:
        return tuple(items)
    return tuple.__new__(cls, items) if hasattr(cls, "_fields") else cls(items)


def new_container(node: Node) -> object:
    """An empty container of the node's class, made past its `__init__` and `__new__`."""
    if node.kind == "list":
        return list.__new__(node.cls)
    if node.kind == "dict":
        return mapping_of(node.cls).__new__(node.cls)
    return (types.SimpleNamespace if issubclass(node.cls, types.SimpleNamespace) else object).__new__(node.cls)


def mapping_of(cls: type) -> type[dict[object, object]]:
    """Whose methods change an object of this class past any override, and keep an OrderedDict's order intact."""
    return collections.OrderedDict if issubclass(cls, collections.OrderedDict) else dict


def same_structure(one: object, other: object) -> bool:
    """True where two roots are of one structure, with the same values in it; a NaN, whose text hides bits, is none."""
    if isinstance(one, Static) and isinstance(other, Static):
        mine, theirs = one.value, other.value
        plain = type(mine) is type(theirs) and isinstance(mine, _PLAIN) and mine == mine
        return mine is theirs or (plain and repr(mine) == repr(theirs))
    if not isinstance(one, Node) or not isinstance(other, Node):
        return type(one) is type(other) and one == other
    return (
        (one.number, one.kind) == (other.number, other.kind)
        and one.cls is other.cls
        and typed(one.names) == typed(other.names)
        and len(one.children) == len(other.children)
        and all(map(same_structure, one.children, other.children))
        and same_structure(one.extra, other.extra)
    )
