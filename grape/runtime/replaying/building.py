"""A compiled recipe: straight-line code that builds one result.

Interpreting a recipe costs about half a microsecond for each tensor and container. A builder is a Python function
generated for one recipe, as the probe is for one layout. Names and values of the person's program reach the code as
variables, never as text.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from ..guarding.rebuilding import new_container, new_tuple
from ..guarding.structure import Node, Repeated, Static
from ..training.consumed import seal

__all__ = ["Build", "compile_build"]

Build = Callable[[Sequence[torch.Tensor], Sequence[object], Sequence[torch.Tensor]], Any]
"""Takes argument leaves, argument containers, and the outputs of the graph, in order; gives the result."""


@lru_cache(maxsize=64)
def _compiled(source: str) -> types.CodeType:
    """Graphs that differ in shapes only have one text; compiling it takes milliseconds."""
    return compile(source, "<grape recipe>", "exec")


class _Writer:
    """`made` has, by the number of a container, the expression for it as soon as it exists."""

    def __init__(self, leaves: Sequence[str]) -> None:
        self.leaves = leaves
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self.made: dict[int, str] = {}
        self.count = 0

    def constant(self, value: Any) -> str:
        name = f"k{len(self.names)}"
        self.names[name] = value
        return name

    def local(self, expression: str) -> str:
        self.count += 1
        self.lines.append(f" v{self.count} = {expression}")
        return f"v{self.count}"

    def build(self, node: Any) -> str:
        """An expression for a part of the result; containers that the call made are made on the way."""
        if isinstance(node, int):
            return self.leaves[node]
        if isinstance(node, Static):
            return self.constant(node.value)
        known = self.made.get(node.number)
        if known is not None:
            return known
        return "None" if isinstance(node, Repeated) else self.make(node)

    def items(self, nodes: Iterable[object]) -> list[str]:
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


def _fill_mapping(target: Any, names: tuple[object, ...], items: tuple[object, ...]) -> None:
    plain = collections.OrderedDict if isinstance(target, collections.OrderedDict) else dict
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
    root: object,
    origin: Sequence[int | Callable[[Sequence[torch.Tensor]], torch.Tensor] | None],
    changes: Sequence[Node],
    existing: Mapping[int, int],
    outside: Mapping[int, object],
    consumed: Mapping[int, str],
    inference: Mapping[int, bool] = types.MappingProxyType({}),
) -> Build:
    """The builder of `root` and of the containers in `changes`.

    `origin` says of each leaf which argument it is, how it is had from them, or None for the next output. `existing`
    numbers argument containers, `outside` has those from outside; leaves in `consumed` get a consumed graph,
    those in `inference` are as if made under that inference mode.
    """
    writer = _Writer([f"t{index}" for index in range(len(origin))])
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
    result = writer.build(root)
    defaults = "".join(f", {name}={name}" for name in writer.names)
    text = "\n".join([f"def build(arguments, containers, outputs{defaults}):", *writer.lines, f" return {result}"])
    namespace = dict(writer.names)
    exec(_compiled(text), namespace)
    build: Build = namespace["build"]
    namespace.clear()  # it is the builder's, which would refer to itself
    return build
