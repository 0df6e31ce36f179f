"""A compiled check: has this call the layout that we know, and which tensors does it bring?

Flattening a call in general costs about 10 us a container. A probe is a Python function generated for one layout:
straight-line code that tests what `flatten` puts into the key, and returns the leaves and containers in the same
order, or None. Names and values of the person's program reach the code as variables, never as text. What concerns the
tensors is tested by torch's own compiled guards where this version has them: type, dispatch keys, dtype, device, shape,
stride and requires_grad, under the modes in which they were made. They may say no where `flatten` would say yes.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from .structure import Layout, Node, Repeated, Static, typed
from .tensor_guards import AVAILABLE, compiled_check

__all__ = ["Probe", "compile_probe"]


class Tensors:
    """Compiled guards for the leaves of one layout; tensors of other dispatch keys (inference tensors) are added."""

    LIMIT = 4
    __slots__ = ("_checks",)

    def __init__(self) -> None:
        self._checks: list[Callable[..., bool]] = []

    def add(self, leaves: Sequence[torch.Tensor]) -> None:
        check = compiled_check(leaves) if len(self._checks) < self.LIMIT else None
        if check is not None:
            self._checks.append(check)

    def hold(self, *leaves: torch.Tensor) -> bool:
        return any(check(*leaves) for check in self._checks)


Found = tuple[list[torch.Tensor], list[object]]


@dataclass(frozen=True, slots=True)
class Probe:
    """`check` takes (args, kwargs). `exact` probes also compare which arguments share memory."""

    check: Callable[[object], Found | None]
    tensors: Tensors
    exact: bool


@lru_cache(maxsize=64)
def _compiled(source: str) -> types.CodeType:
    """Layouts that differ in shapes only have one text; compiling it takes milliseconds."""
    return compile(source, "<grape probe>", "exec")


class _Writer:
    def __init__(self, layout: Layout, aliasing: bool) -> None:
        self.layout = layout
        self.exact = aliasing
        self.tensors = Tensors()
        self.tensors.add(layout.leaves)
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self.leaves: dict[int, str] = {}
        self.containers: dict[int, str] = {}
        self.count = 0

    def constant(self, value: object) -> str:
        name = f"k{len(self.names)}"
        self.names[name] = value
        return name

    def local(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def need(self, condition: str) -> None:
        self.lines.append(f" if not ({condition}): return None")

    def visit(self, node: Any, expression: str) -> None:
        if isinstance(node, int):
            self.leaf(node, expression)
        elif isinstance(node, Static):
            self.static(node.value, expression)
        elif isinstance(node, Repeated):
            self.need(f"{expression} is {self.containers[node.number]}")
        else:
            self.container(node, expression)

    def leaf(self, number: int, expression: str) -> None:
        if number in self.leaves:
            self.need(f"{expression} is {self.leaves[number]}")
            return
        name = self.leaves[number] = self.local()
        tensor = self.layout.leaves[number]
        self.lines.append(f" {name} = {expression}")
        if AVAILABLE:
            self.need(f"type({name}) is {self.constant(type(tensor))} and not {name}.__dict__")
            self.gradient(tensor, name)
            return
        parts = (
            f"type({name}) is {self.constant(type(tensor))}",
            f"{name}.layout is {self.constant(torch.strided)}",
            f"{name}.shape == {self.constant(tensor.shape)}",
            f"{name}.dtype is {self.constant(tensor.dtype)}",
            f"{name}.stride() == {self.constant(tensor.stride())}",
            f"{name}.device == {self.constant(tensor.device)}",
            f"{name}.requires_grad is {tensor.requires_grad}",
            f"not {name}.__dict__",
        )
        self.need(" and ".join(parts))
        self.gradient(tensor, name)
        if tensor.dtype.is_complex:
            self.need(f"not {name}.is_conj()")
        self.need(f"not {name}.is_neg()")

    def gradient(self, tensor: torch.Tensor, name: str) -> None:
        """Write the comparison of `.grad`. What requires no gradient is a leaf; of others torch warns who asks."""
        has = tensor.is_leaf and tensor.grad is not None
        leaf = f"{name}.is_leaf and " if tensor.requires_grad else ""
        self.need(f"({leaf}{name}.grad is not None) is {has}")

    def static(self, value: object, expression: str) -> None:
        name = self.constant(value)
        if value is None or isinstance(value, bool):
            self.need(f"{expression} is {value}")
        elif isinstance(value, (float, complex)):
            local = self.local()
            self.lines.append(f" {local} = {expression}")
            self.need(
                f"type({local}) is {self.constant(type(value))} and repr({local}) == {self.constant(repr(value))}"
            )
        elif isinstance(value, (slice, range)):
            local = self.local()
            self.lines.append(f" {local} = {expression}")
            parts = self.constant(typed((value.start, value.stop, value.step)))
            self.need(f"type({local}) is {self.constant(type(value))}")
            self.need(f"{self.constant(typed)}(({local}.start, {local}.stop, {local}.step)) == {parts}")
        elif isinstance(value, frozenset):
            local = self.local()
            self.lines.append(f" {local} = {expression}")
            kind, tagged, items = map(self.constant, (frozenset, typed, frozenset(typed(value))))
            self.need(f"type({local}) is {kind} and {kind}({tagged}({local})) == {items}")
        elif isinstance(value, (int, str, bytes, torch.device)) and not isinstance(value, enum.Enum):
            local = self.local()
            self.lines.append(f" {local} = {expression}")
            self.need(f"type({local}) is {self.constant(type(value))} and {local} == {name}")
        else:
            self.need(f"{expression} is {name}")

    def container(self, node: Node, expression: str) -> None:
        name = self.containers[node.number] = self.local()
        self.lines.append(f" {name} = {expression}")
        self.need(f"type({name}) is {self.constant(node.cls)}")
        if node.kind == "method":
            self.need(f"{name}.__func__ is {self.constant(node.names[0])}")
            self.visit(node.children[0], f"{name}.__self__")
            return
        if node.kind in ("tuple", "list"):
            base = self.constant(tuple if node.kind == "tuple" else list)
            self.need(f"{base}.__len__({name}) == {len(node.children)}")
            plain = node.cls in (tuple, list)
            for index, child in enumerate(node.children):
                self.visit(child, f"{name}[{index}]" if plain else f"{base}.__getitem__({name}, {index})")
        else:
            self.mapping(node, name)
        if node.extra is not None:
            extra = self.containers[node.extra.number] = self.local()
            self.lines.append(f" {extra} = {name}.__dict__")
            self.mapping(node.extra, extra)

    def mapping(self, node: Node, name: str) -> None:
        source = name
        if node.kind == "object":
            source = self.local()
            self.lines.append(f" {source} = {name}.__dict__")
        if all(type(name) is str for name in node.names):
            self.need(f"tuple({source}) == {self.constant(node.names)}")
        else:
            self.need(f"{self.constant(typed)}({source}) == {self.constant(typed(node.names))}")
        plain = node.cls is dict or node.kind in ("object", "attributes")
        getter = "" if plain else self.constant(dict.__getitem__)
        for key, child in zip(node.names, node.children, strict=True):
            word = self.constant(key)
            self.visit(child, f"{source}[{word}]" if plain else f"{getter}({source}, {word})")

    def finish(self) -> Probe:
        leaves = [self.leaves[i] for i in range(len(self.leaves))]
        if AVAILABLE and leaves:
            self.need(f"{self.constant(self.tensors.hold)}({', '.join(leaves)})")
        containers = [self.containers[i] for i in sorted(self.containers)]
        if len(containers) > 1:
            self.need(f"len({{{', '.join(f'id({c})' for c in containers)}}}) == {len(containers)}")
        self.aliasing(leaves)
        body = "\n".join(self.lines)
        header = (
            f"def probe(root, {', '.join(f'{name}={name}' for name in self.names)}):"
            if self.names
            else "def probe(root):"
        )
        source = f"{header}\n{body}\n return [{', '.join(leaves)}], [{', '.join(containers)}]"
        namespace = dict(self.names)
        exec(_compiled(source), namespace)
        check: Callable[[object], Found | None] = namespace["probe"]
        namespace.clear()  # it is the function's, which has its constants as defaults
        return Probe(check, self.tensors, self.exact)

    def aliasing(self, leaves: list[str]) -> None:
        """Leaves share storages exactly as they did, at the same distances.

        Where none did at capture and the region writes none of them, it does not matter whether they do now.
        """
        if len(leaves) < 2:
            return
        storages: dict[int, int] = {}
        first = [storages.setdefault(t.untyped_storage()._cdata, i) for i, t in enumerate(self.layout.leaves)]
        if len(storages) == len(first) and not self.exact and AVAILABLE:
            return
        ids = [f"{leaf}.untyped_storage()._cdata" for leaf in leaves]
        if len(set(first)) == len(first):
            self.need(f"len({{{', '.join(ids)}}}) == {len(ids)}")
            return
        names = [self.local() for _ in ids]
        self.lines += [f" {name} = {text}" for name, text in zip(names, ids, strict=True)]
        self.need(f"len({{{', '.join(names)}}}) == {len(set(first))}")
        for i, owner in enumerate(first):
            if owner != i:
                distance = self.layout.leaves[i].storage_offset() - self.layout.leaves[owner].storage_offset()
                self.need(f"{names[i]} == {names[owner]}")
                self.need(f"{leaves[i]}.storage_offset() - {leaves[owner]}.storage_offset() == {distance}")


def compile_probe(layout: Layout, *, aliasing: bool) -> Probe:
    """The probe of a layout. It may raise AttributeError or KeyError on foreign values: that means no."""
    writer = _Writer(layout, aliasing)
    writer.visit(layout.root, "root")
    return writer.finish()
