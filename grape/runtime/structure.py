"""The structure of what enters and leaves a region: trees of Python containers with tensors at the leaves.

Lists, tuples, dicts, dataclasses and plain objects (a KV cache, a model output) are opened by what they hold, not by
what they are called: no type needs to be registered. A `Layout` is the frozen description of one such tree; its `key`
is equal for two trees that differ only in the contents and addresses of their tensors. Anything that is neither data,
nor a tensor, nor a stateless object (a function, a class, a dtype) is refused, because its state could not be guarded.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Layout", "Node", "Unsupported", "flatten", "leaf_meta", "rebuild"]

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_STATELESS = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Generator,
    enum.Enum,
    slice,
    range,
    type(Ellipsis),
    type(NotImplemented),
    torch.nn.Module,
)
_MAX_NODES = 20_000


class Unsupported(Exception):
    """A value whose state cannot be guarded. `where` is the path from the root ("args[0].cache")."""

    def __init__(self, where: str, value: object) -> None:
        super().__init__(f"{where} is a {type(value).__name__}, which is neither data nor a tensor")
        self.where = where


@dataclass(frozen=True, slots=True)
class Node:
    """One container. `kind` is "list", "tuple", "dict" or "object"; `names` are dict keys or attribute names.

    `children` are leaf numbers (int), `Node`s, or `Static`s. A dict subclass with attributes has them in `extra`.
    """

    number: int
    kind: str
    cls: type
    names: tuple[Any, ...]
    children: tuple[Any, ...]
    extra: Node | None = None


@dataclass(frozen=True, slots=True)
class Static:
    """A value that is no tensor."""

    value: Any


@dataclass(frozen=True, slots=True)
class Again:
    """A container that already stands elsewhere in the tree."""

    number: int


@dataclass(slots=True)
class Layout:
    """The structure of one tree: `root`, the `key`, the tensors, their paths, and the containers by number."""

    root: Any = None
    key: tuple[Any, ...] = ()
    leaves: list[torch.Tensor] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    containers: list[Any] = field(default_factory=list)


def leaf_meta(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What a graph depends on of one tensor, but for its address and contents."""
    return (tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad, type(tensor))


class _Flattener:
    def __init__(self) -> None:
        self.layout = Layout()
        self.key: list[Any] = []
        self.seen: dict[int, int] = {}
        self.tensors: dict[int, int] = {}
        self.storages: dict[int, tuple[int, int]] = {}

    def visit(self, value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor):
            return self.tensor(value, path)
        if isinstance(value, _PLAIN) and type(value) in _PLAIN:
            self.key.append((type(value), repr(value) if isinstance(value, (float, complex)) else value))
            return Static(value)
        number = self.seen.get(id(value))
        if number is not None:
            self.key.append(("again", number))
            return Again(number)
        if isinstance(value, _STATELESS):
            self.key.append(_identity(value))
            return Static(value)
        return self.container(value, path)

    def tensor(self, tensor: torch.Tensor, path: str) -> int:
        known = self.tensors.get(id(tensor))
        if known is not None:
            self.key.append(("same", known))
            return known
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            raise Unsupported(path, tensor)
        if tensor.is_conj() or tensor.is_neg():
            raise Unsupported(path, tensor)
        number = self.tensors[id(tensor)] = len(self.layout.leaves)
        self.layout.leaves.append(tensor)
        self.layout.paths.append(path)
        storage = tensor.untyped_storage()._cdata
        first, offset = self.storages.setdefault(storage, (number, tensor.storage_offset()))
        self.key.append((leaf_meta(tensor), first, tensor.storage_offset() - offset))
        return number

    def container(self, value: Any, path: str) -> Any:
        cls = type(value)
        number = self.seen[id(value)] = len(self.layout.containers)
        if number > _MAX_NODES:
            raise Unsupported(path, value)
        self.layout.containers.append(value)
        if isinstance(value, tuple):
            self.key.append((cls, len(value)))
            children = tuple([self.visit(item, f"{path}[{i}]") for i, item in enumerate(value)])
            return Node(number, "tuple", cls, (), children)
        if isinstance(value, list):
            self.key.append((cls, len(value)))
            children = tuple([self.visit(item, f"{path}[{i}]") for i, item in enumerate(value)])
            return Node(number, "list", cls, (), children, self.attributes(value, path))
        if isinstance(value, dict):
            names = tuple(value)
            if not all(isinstance(name, (*_PLAIN, *_STATELESS, tuple)) for name in names):
                raise Unsupported(path, value)
            self.key.append((cls, names))
            children = tuple([self.visit(dict.__getitem__(value, name), f"{path}[{name!r}]") for name in names])
            return Node(number, "dict", cls, names, children, self.attributes(value, path))
        if isinstance(value, (set, frozenset)):
            if not all(isinstance(item, _PLAIN) for item in value):
                raise Unsupported(path, value)
            self.key.append((cls, frozenset(value)))
            return Static(value)
        if isinstance(value, types.MethodType):
            self.key.append((cls, value.__func__))
            owner = self.visit(value.__self__, f"{path}.__self__")
            return Node(number, "method", cls, (value.__func__,), (owner,))
        if not hasattr(value, "__dict__") or hasattr(cls, "__next__") or _has_slots(cls):
            raise Unsupported(path, value)
        names = tuple(vars(value))
        self.key.append((cls, names))
        children = tuple([self.visit(item, f"{path}.{name}") for name, item in vars(value).items()])
        return Node(number, "object", cls, names, children)

    def attributes(self, value: Any, path: str) -> Node | None:
        """The instance attributes of a list or dict subclass (transformers' outputs keep both)."""
        attributes = getattr(value, "__dict__", None)
        if attributes is None:
            return None
        number = len(self.layout.containers)
        self.layout.containers.append(attributes)
        names = tuple(attributes)
        self.key.append(names)
        children = tuple([self.visit(item, f"{path}.{name}") for name, item in attributes.items()])
        return Node(number, "attributes", dict, names, children)


def _has_slots(cls: type) -> bool:
    return any(getattr(base, "__slots__", ()) for base in cls.__mro__ if base is not object)


class _Identity:
    """Compares by identity and keeps its object alive, so that the identity cannot be given to another."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _identity(value: Any) -> Any:
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum, range)):
        return value
    if isinstance(value, slice):
        return (slice, value.start, value.stop, value.step)
    return _Identity(value)


def flatten(value: Any, path: str = "") -> Layout:
    """The layout of `value`. Raises `Unsupported` where a part of it cannot be guarded."""
    flattener = _Flattener()
    flattener.layout.root = flattener.visit(value, path)
    flattener.layout.key = tuple(flattener.key)
    return flattener.layout


def rebuild(root: Any, leaves: Sequence[Any], containers: dict[int, Any] | None = None) -> Any:
    """A new tree of the layout `root` over `leaves`; `containers` receives the new containers by number."""
    made: dict[int, Any] = containers if containers is not None else {}

    def build(node: Any) -> Any:
        if isinstance(node, int):
            return leaves[node]
        if isinstance(node, Static):
            return node.value
        if isinstance(node, Again):
            return made[node.number]
        return make(node)

    def make(node: Node) -> Any:
        if node.kind == "method":
            return types.MethodType(node.names[0], build(node.children[0]))
        if node.kind == "tuple":
            items = [build(child) for child in node.children]
            new: Any = tuple.__new__(node.cls, items) if node.cls is not tuple else tuple(items)
            made[node.number] = new
            return new
        new = [] if node.cls is list else {} if node.cls is dict else node.cls.__new__(node.cls)
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


def _set_item(target: Any, name: Any, value: Any) -> None:
    """Set an item past any override, in the way that keeps an OrderedDict's order intact."""
    from collections import OrderedDict

    (OrderedDict if isinstance(target, OrderedDict) else dict).__setitem__(target, name, value)
