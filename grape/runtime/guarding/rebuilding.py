"""Trees of containers are made again, and compared: what a call brings is written back where it came from."""

from __future__ import annotations

import collections
import types
from collections.abc import Sequence
from typing import Any

from .structure import _PLAIN, Node, Repeated, Static, typed

__all__ = ["new_container", "new_tuple", "rebuild", "same_structure"]


def rebuild(root: object, leaves: Sequence[object], containers: dict[int, object] | None = None) -> Any:
    """A new tree of the layout `root` over `leaves`; `containers` receives the new containers by number."""
    made: dict[int, Any] = containers if containers is not None else {}

    def build(node: Any) -> object:
        if isinstance(node, int):
            return leaves[node]
        if isinstance(node, Static):
            return node.value
        if isinstance(node, Repeated):
            return made[node.number]
        return make(node)

    def make(node: Node) -> object:
        if node.kind == "method":
            made[node.number] = types.MethodType(node.names[0], build(node.children[0]))
            return made[node.number]
        if node.kind == "tuple":
            items = [build(child) for child in node.children]
            new: Any = new_tuple(node.cls, items)
            made[node.number] = new
            return new
        new = new_container(node)
        made[node.number] = new
        if node.kind == "list":
            list.extend(new, [build(child) for child in node.children])
        elif node.kind == "dict":
            for name, child in zip(node.names, node.children, strict=True):
                _set_item(new, name, build(child))
        else:
            new.__dict__.update({n: build(c) for n, c in zip(node.names, node.children, strict=True)})
        if node.extra is not None:
            made[node.extra.number] = new.__dict__
            new.__dict__.update({n: build(c) for n, c in zip(node.extra.names, node.extra.children, strict=True)})
        return new

    return build(root)


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
        return (collections.OrderedDict if issubclass(node.cls, collections.OrderedDict) else dict).__new__(node.cls)
    return (types.SimpleNamespace if issubclass(node.cls, types.SimpleNamespace) else object).__new__(node.cls)


def _set_item(target: Any, name: object, value: object) -> None:
    """Set an item past any override, in the way that keeps an OrderedDict's order intact."""
    from collections import OrderedDict

    (OrderedDict if isinstance(target, OrderedDict) else dict).__setitem__(target, name, value)


def same_structure(one: Any, other: Any) -> bool:
    """True where two roots are of one structure, with the same values in it; a NaN, whose text hides bits, is none."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Static):
        mine, theirs = one.value, other.value
        plain = type(mine) is type(theirs) and isinstance(mine, _PLAIN) and mine == mine
        return mine is theirs or (plain and repr(mine) == repr(theirs))
    if not isinstance(one, Node):
        return bool(one == other)
    return (
        (one.number, one.kind) == (other.number, other.kind)
        and one.cls is other.cls
        and typed(one.names) == typed(other.names)
        and len(one.children) == len(other.children)
        and all(map(same_structure, one.children, other.children))
        and same_structure(one.extra, other.extra)
    )
