"""How a replay builds what an eager call would have returned, and what it would have left in its arguments.

The output spec is written once, from the capture: each tensor in the result is an argument itself, a view of one, a
tensor that the region reads from outside, or an output of the graph. Containers that came in are given back, with the
items that the call changed, and so are containers from outside; containers that the call made are made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from ..buffers.strided import Strided
from ..guarding.rebuilding import same_structure
from ..guarding.structure import Layout, Node, Static, Tree, nodes_of
from .building import Build, Source, compile_build
from .looks import alias_of


@dataclass(frozen=True, slots=True)
class ArgumentView:
    """A view of the `index`-th argument leaf, or another alias (`how`, see `looks.alias_of`); `delta` counts elements
    from that leaf's own offset."""

    index: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    delta: int
    how: str = "view"

    def of(self, leaf: torch.Tensor) -> torch.Tensor:
        return alias_of(leaf, self.how, self.shape, self.stride, int(leaf.storage_offset()) + self.delta)


@dataclass(frozen=True, slots=True)
class Outside:
    """A tensor that the region reads from outside, or an alias of one with this layout (`how`, see
    `looks.alias_of`)."""

    tensor: torch.Tensor
    layout: Strided | None = None
    how: str = "view"

    def give(self) -> torch.Tensor:
        """The very tensor; of an alias a new tensor object, as each eager call makes one."""
        return self.tensor if self.layout is None else alias_of(self.tensor, self.how, *self.layout[1:4])


Origin: TypeAlias = int | ArgumentView | Outside | None
"""What a leaf of a result is: an argument, an alias of one, a tensor from outside, or the next output of the graph."""


@dataclass(frozen=True, slots=True)
class Change:
    """An argument container that the call left with other contents: all of them are set again."""

    container: int
    node: Node


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """`root` is the result's node. `outside` are the containers that the region found outside, by number. `consumed`
    are the leaves that eager gives back with an autograd graph that a `backward` inside the region has consumed, with
    the name of its last node."""

    root: Tree
    origin: tuple[Origin, ...]
    changes: tuple[Change, ...]
    existing: Mapping[int, int]
    outside: Mapping[int, object] = field(default_factory=dict)
    consumed: Mapping[int, str] = field(default_factory=dict)
    inference: Mapping[int, bool] = field(default_factory=dict)
    """Outputs that the call made under another inference mode than its own, with that mode."""

    serve: Build = field(init=False, compare=False, repr=False)
    """The result for given argument leaves and containers and the graph's outputs, in order."""

    def does_as(self, other: OutputSpec) -> bool:
        """True if the two build the same from the same. False where one holds anything but numbers and layouts."""
        plain = not any(isinstance(origin, Outside) for origin in self.origin) and not self.outside
        return (
            plain
            and (self.origin, self.existing, self.outside) == (other.origin, other.existing, other.outside)
            and (self.consumed, self.inference) == (other.consumed, other.inference)
            and [change.container for change in self.changes] == [change.container for change in other.changes]
            and same_structure(self.root, other.root)
            and all(same_structure(a.node, b.node) for a, b in zip(self.changes, other.changes, strict=True))
        )

    def or_one_alike(self, others: Sequence[OutputSpec]) -> OutputSpec:
        """The first of `others` that does as this one, so that entries share it; else this one."""
        return next((one for one in others if self.does_as(one)), self)

    def leaves(self, arguments: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors of the result and of the arguments after the call, in order; no container is touched."""
        count = len(self.origin)
        root = Node(number=-1, kind="tuple", cls=tuple, names=(), children=tuple(range(count)))
        sources = [_source(origin) for origin in self.origin]
        return list(compile_build(root, sources, (), {}, {}, self.consumed, self.inference)(arguments, (), outputs))

    def __post_init__(self) -> None:
        nodes = [change.node for change in self.changes]
        sources = [_source(origin) for origin in self.origin]
        build = compile_build(self.root, sources, nodes, self.existing, self.outside, self.consumed, self.inference)
        object.__setattr__(self, "serve", build)


def _source(origin: Origin) -> Source:
    """An origin as `compile_build` takes it."""
    if isinstance(origin, ArgumentView):
        return lambda arguments: origin.of(arguments[origin.index])
    return (lambda arguments: origin.give()) if isinstance(origin, Outside) else origin


def write_output_spec(
    after: Layout,
    before: Layout,
    containers: Mapping[int, object],
    classify: Callable[[torch.Tensor], Origin],
    outside: Mapping[int, object],
    consumed: Mapping[int, str],
    inference: Mapping[int, bool],
) -> OutputSpec:
    """The output spec of a capture.

    `after` is the layout of (result, args, kwargs) once the capture ran, `before` that of (args, kwargs) as they went
    in, `containers` the capture's own argument containers by their number in `before`, `classify` tells where a
    tensor comes from, `outside` has the containers of `after` that the call did not make, by number. `inference` has
    the leaves that were made under another inference mode than the call's, with that mode.
    """
    identities = {id(container): number for number, container in containers.items()}
    existing = {
        number: identities[id(container)]
        for number, container in enumerate(after.containers)
        if id(container) in identities
    }
    nodes_before = {node.number: node for node in nodes_of(before.root)}
    changes = []
    for node in nodes_of(after.root):
        origin = existing.get(node.number)
        if origin is None or node.kind in ("tuple", "method"):
            continue
        if _contents(node, after, existing) != _contents(nodes_before[origin], before, None):
            changes.append(Change(origin, node))
    origins = tuple(classify(leaf) for leaf in after.leaves)
    assert isinstance(after.root, Node)
    return OutputSpec(
        root=after.root.children[0],
        origin=origins,
        changes=tuple(changes),
        existing=existing,
        outside=outside,
        consumed=consumed,
        inference={index: mode for index, mode in inference.items() if origins[index] is None},
    )


def _contents(node: Node, layout: Layout, existing: Mapping[int, int] | None) -> tuple[object, ...]:
    """The contents of a container, in terms that are equal before and after if nothing in it was rebound."""

    def token(child: Tree) -> object:
        if isinstance(child, int):
            return ("tensor", id(layout.leaves[child]))
        if isinstance(child, Static):
            value = child.value
            return ("static", type(value), repr(value) if isinstance(value, (float, complex)) else value)
        new = ("new", child.number)
        return ("container", child.number if existing is None else existing.get(child.number, new))

    return (tuple([(type(name), name) for name in node.names]), tuple([token(child) for child in node.children]))
