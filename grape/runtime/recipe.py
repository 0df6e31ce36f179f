"""How a replay builds what an eager call would have returned, and what it would have left in its arguments.

The recipe is written once, from the capture: each tensor in the result is an argument itself, a view of one, a tensor
that the region reads from outside, or an output of the graph. Containers that came in are given back, with the items
that the call changed, and so are containers from outside; containers that the call made are made anew.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from .structure import Again, Layout, Node, Static, new_container, new_tuple
from .training.consumed import seal

__all__ = ["ArgumentView", "Change", "Outside", "Recipe", "write_recipe"]

Build = Callable[[Sequence[torch.Tensor], Sequence[Any], Sequence[Any]], Any]


@dataclass(frozen=True, slots=True)
class ArgumentView:
    """A view of the `index`-th argument leaf; `delta` counts elements from that leaf's own offset."""

    index: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    delta: int

    def of(self, leaf: torch.Tensor) -> torch.Tensor:
        return leaf.as_strided(self.shape, self.stride, int(leaf.storage_offset()) + self.delta)


@dataclass(frozen=True, slots=True)
class Outside:
    """A tensor that the region reads from outside (`itself`), or a view that the capture made of one."""

    tensor: torch.Tensor
    itself: bool

    def give(self) -> torch.Tensor:
        """The very tensor; of a view a new tensor object, as each eager call makes one."""
        return self.tensor if self.itself else self.tensor.detach()


@dataclass(frozen=True, slots=True)
class Change:
    """An argument container that the call left with other contents: all of them are set again."""

    container: int
    node: Node


@dataclass(frozen=True, slots=True)
class Recipe:
    """`origin[i]` says what the i-th leaf of the result is: an int (argument), an `ArgumentView`, an `Outside`, or
    None (the next output of the graph). `root` is the result's node. `outside` are the containers that the region
    found outside, by number. `consumed` are the leaves that eager gives back with an autograd graph that a `backward`
    inside the region has consumed, with the name of its last node."""

    root: Any
    origin: tuple[Any, ...]
    changes: tuple[Change, ...]
    existing: Mapping[int, int]
    outside: Mapping[int, Any] = field(default_factory=dict)
    consumed: Mapping[int, str] = field(default_factory=dict)

    def serve(
        self, arguments: Sequence[torch.Tensor], containers: Sequence[Any], outputs: Sequence[torch.Tensor]
    ) -> Any:
        """The result for these argument leaves and containers; `outputs` are the graph's, in order."""
        rest = iter(outputs)
        leaves: list[torch.Tensor] = []
        for origin in self.origin:
            if origin is None:
                leaves.append(next(rest))
            elif isinstance(origin, int):
                leaves.append(arguments[origin])
            elif isinstance(origin, ArgumentView):
                leaves.append(origin.of(arguments[origin.index]))
            else:
                leaves.append(origin.give())
        for index, name in self.consumed.items():
            if leaves[index]._is_view():  # autograd would give the graph to all that share its memory
                leaves[index] = leaves[index].data
            seal(leaves[index], name)
        builder = _Builder(self, leaves, containers)
        for change in self.changes:
            builder.change(change)
        return builder.build(self.root)


class _Builder:
    def __init__(self, recipe: Recipe, leaves: Sequence[torch.Tensor], containers: Sequence[Any]) -> None:
        self.leaves = leaves
        self.made: dict[int, Any] = {number: containers[index] for number, index in recipe.existing.items()}
        self.made.update(recipe.outside)

    def build(self, node: Any) -> Any:
        if isinstance(node, int):
            return self.leaves[node]
        if isinstance(node, Static):
            return node.value
        known = self.made.get(node.number)
        if known is not None or isinstance(node, Again):
            return known
        return self.make(node)

    def make(self, node: Node) -> Any:
        if node.kind == "method":
            self.made[node.number] = types.MethodType(node.names[0], self.build(node.children[0]))
            return self.made[node.number]
        if node.kind == "tuple":
            items = [self.build(child) for child in node.children]
            new: Any = new_tuple(node.cls, items)
            self.made[node.number] = new
            return new
        new = new_container(node)
        self.made[node.number] = new
        self.fill(new, node)
        return new

    def fill(self, target: Any, node: Node) -> None:
        """Give `target` exactly the contents that `node` describes."""
        items = [self.build(child) for child in node.children]
        if node.kind == "list":
            list.__setitem__(target, slice(None), items)
        elif node.kind in ("dict", "attributes"):
            plain = collections.OrderedDict if isinstance(target, collections.OrderedDict) else dict
            if tuple(target) != node.names:
                plain.clear(target)
            for name, item in zip(node.names, items, strict=True):
                plain.__setitem__(target, name, item)
        else:
            target.__dict__.update(zip(node.names, items, strict=True))
            for name in tuple(target.__dict__):
                if name not in node.names:
                    del target.__dict__[name]
        if node.extra is not None:
            target.__dict__.update(
                zip(node.extra.names, [self.build(child) for child in node.extra.children], strict=True)
            )

    def change(self, change: Change) -> None:
        self.fill(self.made[change.node.number], change.node)


def write_recipe(
    after: Layout,
    before: Layout,
    containers: Mapping[int, Any],
    classify: Callable[[torch.Tensor], Any],
    outside: Mapping[int, Any] = MappingProxyType({}),
    consumed: Mapping[int, str] = MappingProxyType({}),
) -> Recipe:
    """The recipe of a capture.

    `after` is the layout of (result, args, kwargs) once the capture ran, `before` that of (args, kwargs) as they went
    in, `containers` the capture's own argument containers by their number in `before`, `classify` tells where a
    tensor comes from, `outside` has the containers of `after` that the call did not make, by number.
    """
    identities = {id(container): number for number, container in containers.items()}
    existing = {
        number: identities[id(container)]
        for number, container in enumerate(after.containers)
        if id(container) in identities
    }
    nodes_before = {node.number: node for node in _nodes(before.root)}
    changes = []
    for node in _nodes(after.root):
        origin = existing.get(node.number)
        if origin is None or node.kind in ("tuple", "method"):
            continue
        if _contents(node, after, existing) != _contents(nodes_before[origin], before, None):
            changes.append(Change(origin, node))
    return Recipe(
        root=after.root.children[0],
        origin=tuple(classify(leaf) for leaf in after.leaves),
        changes=tuple(changes),
        existing=existing,
        outside=outside,
        consumed=consumed,
    )


def _contents(node: Node, layout: Layout, existing: Mapping[int, int] | None) -> tuple[Any, ...]:
    """What a container holds, in terms that are equal before and after if nothing in it was rebound."""

    def token(child: Any) -> Any:
        if isinstance(child, int):
            return ("tensor", id(layout.leaves[child]))
        if isinstance(child, Static):
            value = child.value
            return ("static", type(value), repr(value) if isinstance(value, (float, complex)) else value)
        number = child.number
        if existing is not None:
            number = existing.get(number, ("new", number))
        return ("container", number)

    return (tuple([(type(name), name) for name in node.names]), tuple([token(child) for child in node.children]))


def _nodes(root: Any) -> list[Node]:
    found: list[Node] = []
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, Node):
            found.append(node)
            pending.extend(node.children)
            if node.extra is not None:
                pending.append(node.extra)
    return found
