"""A compiled check: has this call the layout that we know, and which tensors does it bring?

Flattening a call in general costs about 10 us a container. An input guard is a Python function generated for one
layout: straight-line code that tests what `flatten` puts into the key, and returns the leaves and containers in the
same order, or None. What concerns the tensors is tested by torch's own compiled guards: type, dispatch keys, dtype,
device, shape, stride and requires_grad, under the modes in which they were made. They may say no where `flatten`
would say yes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .structure import Layout, Node, Repeated, Static, Tree, typed
from .tensor_guards import compiled_check
from .writing import Writer


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
class InputGuard:
    """`check` takes (args, kwargs)."""

    check: Callable[[object], Found | None]
    tensors: Tensors


class _Writer(Writer):
    """`aliasing`: which arguments share memory is compared, whatever they did at capture."""

    def __init__(self, layout: Layout, aliasing: bool) -> None:
        super().__init__()
        self.layout = layout
        self.exact = aliasing
        self.tensors = Tensors()
        self.tensors.add(layout.leaves)
        self.leaves: dict[int, str] = {}
        self.containers: dict[int, str] = {}

    def need(self, condition: str) -> None:
        self.lines.append(f" if not ({condition}): return None")

    def visit(self, node: Tree, expression: str) -> None:
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
        name = self.leaves[number] = self.local(expression)
        tensor = self.layout.leaves[number]
        self.need(f"type({name}) is {self.constant(type(tensor))} and not {name}.__dict__")
        self.gradient(tensor, name)

    def gradient(self, tensor: torch.Tensor, name: str) -> None:
        """Write the comparison of `.grad`. Of what is no leaf torch warns who asks, and the next one may be none."""
        has = tensor.is_leaf and tensor.grad is not None
        self.need(f"({name}.is_leaf and {name}.grad is not None) is {has}")

    def static(self, value: object, expression: str) -> None:
        if value is None or isinstance(value, bool):
            self.need(f"{expression} is {value}")
            return
        by_value = isinstance(value, (int, str, bytes, torch.device)) and not isinstance(value, enum.Enum)
        if not by_value and not isinstance(value, (float, complex, slice, range, frozenset)):
            self.need(f"{expression} is {self.constant(value)}")
            return
        found, tagged = self.local(expression), self.constant(typed)
        self.need(f"type({found}) is {self.constant(type(value))}")
        if isinstance(value, (float, complex)):
            self.need(f"repr({found}) == {self.constant(repr(value))}")
        elif isinstance(value, (slice, range)):
            parts = self.constant(typed((value.start, value.stop, value.step)))
            self.need(f"{tagged}(({found}.start, {found}.stop, {found}.step)) == {parts}")
        elif isinstance(value, frozenset):
            self.need(f"{self.constant(frozenset)}({tagged}({found})) == {self.constant(frozenset(typed(value)))}")
        else:
            self.need(f"{found} == {self.constant(value)}")

    def container(self, node: Node, expression: str) -> None:
        name = self.containers[node.number] = self.local(expression)
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
            extra = self.containers[node.extra.number] = self.local(f"{name}.__dict__")
            self.mapping(node.extra, extra)

    def mapping(self, node: Node, name: str) -> None:
        source = self.local(f"{name}.__dict__") if node.kind == "object" else name
        if all(type(name) is str for name in node.names):
            self.need(f"tuple({source}) == {self.constant(node.names)}")
        else:
            self.need(f"{self.constant(typed)}({source}) == {self.constant(typed(node.names))}")
        plain = node.cls is dict or node.kind in ("object", "attributes")
        getter = "" if plain else self.constant(dict.__getitem__)
        for key, child in zip(node.names, node.children, strict=True):
            word = self.constant(key)
            self.visit(child, f"{source}[{word}]" if plain else f"{getter}({source}, {word})")

    def finish(self) -> InputGuard:
        leaves = [self.leaves[i] for i in range(len(self.leaves))]
        if leaves:
            self.need(f"{self.constant(self.tensors.hold)}({', '.join(leaves)})")
        containers = [self.containers[i] for i in sorted(self.containers)]
        if len(containers) > 1:
            self.need(f"len({{{', '.join(f'id({c})' for c in containers)}}}) == {len(containers)}")
        self.aliasing(leaves)
        check = self.function("root", f"[{', '.join(leaves)}], [{', '.join(containers)}]")
        return InputGuard(check, self.tensors)

    def aliasing(self, leaves: list[str]) -> None:
        """Leaves share storages exactly as they did, at the same distances.

        Where none did at capture and the region writes none of them, it does not matter whether they do now.
        """
        if len(leaves) < 2:
            return
        storages: dict[int, int] = {}
        first = [storages.setdefault(t.untyped_storage()._cdata, i) for i, t in enumerate(self.layout.leaves)]
        if len(storages) == len(first) and not self.exact:
            return
        ids = [f"{leaf}.untyped_storage()._cdata" for leaf in leaves]
        if len(set(first)) == len(first):
            self.need(f"len({{{', '.join(ids)}}}) == {len(ids)}")
            return
        names = list(map(self.local, ids))
        self.need(f"len({{{', '.join(names)}}}) == {len(set(first))}")
        for i, owner in enumerate(first):
            if owner != i:
                distance = self.layout.leaves[i].storage_offset() - self.layout.leaves[owner].storage_offset()
                self.need(f"{names[i]} == {names[owner]}")
                self.need(f"{leaves[i]}.storage_offset() - {leaves[owner]}.storage_offset() == {distance}")


def compile_input_guard(layout: Layout, *, aliasing: bool) -> InputGuard:
    """The input guard of a layout. It may raise AttributeError or KeyError on foreign values: that means no."""
    writer = _Writer(layout, aliasing)
    writer.visit(layout.root, "root")
    return writer.finish()
