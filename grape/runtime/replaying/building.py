"""A compiled output_spec: straight-line code that builds one result.

Interpreting an output spec costs about half a microsecond for each tensor and container. A builder is a Python function
generated for one output spec, as the input guard is for one layout.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from ..guarding.rebuilding import mapping_of, new_container, new_tuple
from ..guarding.structure import Node, Static, Tree, Unsupported, nodes_of
from ..guarding.writing import Writer
from ..training.consumed import seal

Build: TypeAlias = Callable[[Sequence[torch.Tensor], Sequence[object], Sequence[torch.Tensor]], Any]
"""Takes argument leaves, argument containers, and the outputs of the graph, in order; gives the result."""
Source: TypeAlias = int | Callable[[Sequence[torch.Tensor]], torch.Tensor] | None
"""Which argument a leaf is, how it is had from them, or None for the next output."""


class _Writer(Writer):
    """`made` has, by the number of a container, the expression for it as soon as it exists; `nodes` has all of them."""

    def __init__(self, count: int, nodes: Mapping[int, Node]) -> None:
        super().__init__()
        self.leaves = [f"t{index}" for index in range(count)]
        self.made: dict[int, str] = {}
        self._nodes = nodes
        self._open: set[int] = set()

    def build(self, node: Tree) -> str:
        """An expression for a part of the result; containers that the call made are made on the way."""
        if isinstance(node, int):
            return self.leaves[node]
        if isinstance(node, Static):
            return self.constant(node.value)
        known = self.made.get(node.number)
        if known is not None:
            return known
        if node.number in self._open or node.number not in self._nodes:
            raise Unsupported("", node, "among the results holds itself through a tuple")
        self._open.add(node.number)
        return self.make(self._nodes[node.number])

    def items(self, nodes: Iterable[Tree]) -> list[str]:
        return [self.build(node) for node in nodes]

    def make(self, node: Node) -> str:
        if node.kind == "method":
            held = self.build(node.children[0])
            name = self.local(f"{self.constant(types.MethodType)}({self.constant(node.names[0])}, {held})")
        elif node.kind == "tuple":
            items = self.items(node.children)
            if node.cls is tuple:
                name = self.local(_tuple(items))
            else:
                name = self.local(f"{self.constant(new_tuple)}({self.constant(node.cls)}, [{', '.join(items)}])")
        else:
            name = self.made[node.number] = self.local(f"{self.constant(new_container)}({self.constant(node)})")
            self.fill(name, node)
        self.made[node.number] = name
        return name

    def fill(self, target: str, node: Node) -> None:
        """Give `target` exactly the contents that `node` describes."""
        items = self.items(node.children)
        if node.kind == "list":
            whole = self.constant(slice(None))
            self.lines.append(f" {self.constant(list.__setitem__)}({target}, {whole}, [{', '.join(items)}])")
        elif node.kind in ("dict", "attributes"):
            self.lines.append(
                f" {self.constant(_fill_mapping)}({target}, {self.constant(node.names)}, {_tuple(items)})"
            )
        else:
            attributes = self.local(f"{target}.__dict__")
            for name, item in zip(node.names, items, strict=True):
                self.lines.append(f" {attributes}[{self.constant(name)}] = {item}")
            trim = f"{self.constant(_trim)}({attributes}, {self.constant(node.names)})"
            self.lines.append(f" if len({attributes}) != {len(set(node.names))}: {trim}")
        if node.extra is not None:
            pairs = f"zip({self.constant(node.extra.names)}, {_tuple(self.items(node.extra.children))}, strict=True)"
            self.lines.append(f" {target}.__dict__.update({pairs})")

    def change(self, node: Node) -> None:
        self.fill(self.made[node.number], node)


def _tuple(items: Sequence[str]) -> str:
    return f"({''.join(f'{item}, ' for item in items)})"


def _fill_mapping(target: dict[object, object], names: tuple[object, ...], items: tuple[object, ...]) -> None:
    plain = mapping_of(type(target))
    if tuple(target) != names:
        plain.clear(target)
    for name, item in zip(names, items, strict=True):
        plain.__setitem__(target, name, item)


def _trim(attributes: dict[str, object], names: tuple[str, ...]) -> None:
    for name in [name for name in attributes if name not in names]:
        del attributes[name]


def _sealed(leaf: torch.Tensor, name: str) -> torch.Tensor:
    if leaf._is_view():  # autograd would give the graph to all that share its memory
        leaf = leaf.data
    seal(leaf, name)
    return leaf


def _made_under(leaf: torch.Tensor, inference: bool) -> torch.Tensor:
    with torch.inference_mode(inference):  # a view would be what `leaf` is
        made = torch.empty(0, dtype=leaf.dtype, device=leaf.device)
        made.set_(leaf.untyped_storage(), leaf.storage_offset(), leaf.shape, leaf.stride())
        return made if inference else made.data  # which was not changed by `set_`


def compile_build(
    root: Tree,
    origin: Sequence[Source],
    changes: Sequence[Node],
    existing: Mapping[int, int],
    outside: Mapping[int, object],
    consumed: Mapping[int, str],
    inference: Mapping[int, bool] = types.MappingProxyType({}),
) -> Build:
    """The builder of `root` and of the containers in `changes`.

    `origin` says where each leaf comes from. `existing` numbers argument containers, `outside` has those from outside;
    leaves in `consumed` get a consumed graph, those in `inference` are as if made under that inference mode. Raises
    `Unsupported`.
    """
    writer = _Writer(len(origin), {node.number: node for one in (root, *changes) for node in nodes_of(one)})
    outputs = 0
    for index, source in enumerate(origin):
        if source is None:
            expression = f"outputs[{outputs}]"
            outputs += 1
        elif isinstance(source, int):
            expression = f"arguments[{source}]"
        else:
            expression = f"{writer.constant(source)}(arguments)"
        writer.lines.append(f" t{index} = {expression}")
    for index, mode in inference.items():
        writer.lines.append(f" t{index} = {writer.constant(_made_under)}(t{index}, {mode})")
    for index, name in consumed.items():
        writer.lines.append(f" t{index} = {writer.constant(_sealed)}(t{index}, {writer.constant(name)})")
    for number, index in existing.items():
        writer.made[number] = writer.local(f"containers[{index}]")
    for number, container in outside.items():
        writer.made[number] = writer.constant(container)
    for change in changes:
        writer.change(change)
    return writer.function("arguments, containers, outputs", writer.build(root))


def rebuild(root: Tree, leaves: Sequence[torch.Tensor]) -> Any:
    """A new tree of the layout `root`, of new containers, over other tensors."""
    return compile_build(root, range(len(leaves)), (), {}, {}, {})(leaves, (), ())
