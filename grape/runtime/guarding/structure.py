"""The structure of what enters and leaves a region: trees of Python containers with tensors at the leaves.

Lists, tuples, dicts, dataclasses and plain objects (a KV cache, a model output) are opened by what they hold, not by
what they are called: no type needs to be registered. A `Layout` is the frozen description of one such tree; its `key`
is equal for two trees that differ only in the contents and addresses of their tensors. Anything that is neither data,
nor a tensor, nor a stateless object (a function, a class, a dtype) is refused, because its state could not be guarded.
"""

from __future__ import annotations

import collections
import enum
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ...failures import is_signalled
from ..buffers.strided import alignment
from ..state import attributes_of, is_own_class, is_own_module, is_plain, known_instances, why_odd
from .environment import is_batched

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
    torch.optim.Optimizer,
)
_WITH_STATE = (torch.nn.Module, torch.optim.Optimizer, types.FunctionType, type, enum.Enum)
_MAX_NODES = 20_000
_BUILTIN = (list, tuple, dict, collections.OrderedDict, torch.Size)


class Unsupported(Exception):
    """A value whose state cannot be guarded. `where` is the path from the root ("args[0].cache")."""

    def __init__(self, where: str, value: object, why: str | None = None) -> None:
        super().__init__(f"{f'`{where}`' if where else 'a value'} {why or _what(value)}")
        self.where = where


def _what(value: object) -> str:
    """What `value` is, where no guard can compare it; as the end of a sentence."""
    if not isinstance(value, torch.Tensor):
        cls = type(value)
        short = is_own_class(cls) or cls.__module__ == "builtins"
        named = cls.__qualname__ if short else f"{cls.__module__}.{cls.__qualname__}"
        return f"is {'an' if named[:1].lower() in 'aeiou' else 'a'} `{named}`, which no guard can compare"
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        return f"is a `{type(value).__name__}`, a subclass of `torch.Tensor`"
    if value.layout is not torch.strided:
        return f"is a sparse tensor (`{value.layout}`)"
    if is_batched(value):
        return "stands for many tensors (`is_grads_batched=True`)"
    return "has names of dimensions" if has_names(value) else "is a conjugated or negated view"


@dataclass(frozen=True, slots=True)
class Node:
    """One container. `kind` is "list", "tuple", "dict", "object", "attributes" or "method"; `names` are dict keys or
    attribute names, or the function of a method. A list or dict subclass with attributes has them in `extra`.
    """

    number: int
    kind: str
    cls: type
    names: tuple[object, ...]
    children: tuple[Tree, ...]
    extra: Node | None = None


@dataclass(frozen=True, slots=True)
class Static:
    """A value that is no tensor."""

    value: object


@dataclass(frozen=True, slots=True)
class Repeated:
    """A container that already stands elsewhere in the tree."""

    number: int


Tree: TypeAlias = int | Static | Repeated | Node
"""A part of a layout; a number is that of a tensor."""


@dataclass(slots=True)
class Layout:
    """The structure of one tree: `root`, the `key`, the tensors, their paths, and the containers by number."""

    root: Tree
    key: tuple[object, ...]
    leaves: list[torch.Tensor]
    paths: list[str]
    containers: list[object]


HAS_NAMES = hasattr(torch.Tensor, "has_names")
"""Until 2.12 dimensions can have names."""
has_names: Callable[[torch.Tensor], bool] = torch.Tensor.has_names if HAS_NAMES else lambda tensor: False  # type: ignore[attr-defined]


def names_of_dimensions(tensors: Iterable[torch.Tensor]) -> list[object]:
    """Of each tensor; None where it has none."""
    return [tensor.names if has_names(tensor) else None for tensor in tensors] if HAS_NAMES else []  # type: ignore[attr-defined]


def leaf_meta(tensor: torch.Tensor) -> tuple[object, ...]:
    """The facts of one tensor that a graph depends on, but for its contents and where it lies."""
    has_gradient = tensor.is_leaf and tensor.grad is not None  # torch warns who asks another
    kind = (tensor.dtype, tensor.device, tensor.requires_grad, has_gradient, type(tensor))
    return (tensor.shape, tensor.stride(), *kind)


class _Flattener:
    def __init__(self) -> None:
        self.leaves: list[torch.Tensor] = []
        self.paths: list[str] = []
        self.containers: list[object] = []
        self.key: list[object] = []
        self.seen: dict[int, int] = {}
        self.tensors: dict[int, int] = {}
        self.storages: dict[int, tuple[int, int]] = {}

    def visit(self, value: Any, path: str) -> Tree:
        kind = type(value)  # never `isinstance`, which may ask the person's own `__class__`
        if issubclass(kind, torch.Tensor):
            return self.tensor(value, path)
        if kind in _PLAIN:
            self.key.append((type(value), repr(value) if isinstance(value, (float, complex)) else value))
            return Static(value)
        if kind is frozenset:  # a set could be changed, by the region or between calls: it is refused
            if not all(type(item) in (type(None), bool, int, str, bytes) for item in value):
                raise Unsupported(path, value)
            self.key.append((frozenset, frozenset(typed(value))))
            return Static(value)
        number = self.seen.get(id(value))
        if number is not None:
            self.key.append(("again", number))
            return Repeated(number)
        if issubclass(kind, _STATELESS):
            if _has_owner(value) or (issubclass(kind, types.ModuleType) and is_own_module(value)):
                raise Unsupported(path, value)
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
        if tensor.is_conj() or tensor.is_neg() or is_batched(tensor) or has_names(tensor):
            raise Unsupported(path, tensor)
        if tensor.is_quantized:  # its scale is in no key
            raise Unsupported(path, tensor, "is quantized")
        number = self.tensors[id(tensor)] = len(self.leaves)
        self.leaves.append(tensor)
        self.paths.append(path)
        storage = tensor.untyped_storage()._cdata
        first, offset = self.storages.setdefault(storage, (number, int(tensor.storage_offset())))
        if tensor.data_ptr() % tensor.itemsize:
            raise Unsupported(path, tensor, "lies at an address that no allocation has")
        self.key += (leaf_meta(tensor), alignment(tensor), first, int(tensor.storage_offset()) - offset)
        if tensor.__dict__:  # what the code may read there is in no key: such a call is never captured
            self.key.append(tuple(tensor.__dict__))
        return number

    def container(self, value: object, path: str) -> Node:
        cls = type(value)
        number = self.seen[id(value)] = len(self.containers)
        odd = why_odd(cls)
        if number > _MAX_NODES or odd is not None:
            raise Unsupported(path, value, odd and f"is a `{cls.__name__}`, {odd}")
        self.containers.append(value)
        if isinstance(value, tuple):
            if cls is not tuple and not _is_known_tuple(cls):
                raise Unsupported(path, value)
            self.key.append((cls, len(value)))
            children = tuple([self.visit(item, f"{path}[{i}]") for i, item in enumerate(value)])
            return Node(number, "tuple", cls, (), children)
        if isinstance(value, list):
            if _has_slots(cls):
                raise Unsupported(path, value)
            self.key.append((cls, len(value)))
            children = tuple([self.visit(item, f"{path}[{i}]") for i, item in enumerate(value)])
            return Node(number, "list", cls, (), children, self.attributes(value, path))
        if isinstance(value, dict):
            names = tuple(value)
            if not all(map(_is_key, names)) or isinstance(value, collections.defaultdict) or _has_slots(cls):
                raise Unsupported(path, value)
            self.key.append((cls, typed(names)))
            children = tuple([self.visit(dict.__getitem__(value, name), f"{path}[{name!r}]") for name in names])
            return Node(number, "dict", cls, names, children, self.attributes(value, path))
        if isinstance(value, types.MethodType):
            self.key.append((cls, value.__func__))
            owner = self.visit(value.__self__, f"{path}.__self__")
            return Node(number, "method", cls, (value.__func__,), (owner,))
        attributes = attributes_of(value)
        if attributes is None or _has_slots(cls) or not (is_plain(cls) or issubclass(cls, types.SimpleNamespace)):
            raise Unsupported(path, value)
        if hasattr(cls, "__next__") or not (is_own_class(cls) or known_instances(cls)):
            raise Unsupported(path, value)
        names = tuple(attributes)
        self.key.append((cls, names))
        children = tuple([self.visit(item, f"{path}.{name}") for name, item in attributes.items()])
        return Node(number, "object", cls, names, children)

    def attributes(self, value: object, path: str) -> Node | None:
        """The instance attributes of a list or dict subclass (transformers' outputs keep both)."""
        attributes = getattr(value, "__dict__", None)
        if attributes is None:
            return None
        number = len(self.containers)
        self.containers.append(attributes)
        names = tuple(attributes)
        self.key.append(names)
        children = tuple([self.visit(item, f"{path}.{name}") for name, item in attributes.items()])
        return Node(number, "attributes", dict, names, children)


def _has_slots(cls: type) -> bool:
    return any(getattr(base, "__slots__", ()) for base in cls.__mro__ if base is not object)


def _has_owner(value: object) -> bool:
    """True for `log.append`, which changes what it belongs to, and for slices of anything but numbers."""
    if isinstance(value, slice):
        return not all(type(n) in (int, type(None)) for n in (value.start, value.stop, value.step))
    owner = getattr(value, "__self__", None) if isinstance(value, types.BuiltinFunctionType) else None
    return not isinstance(owner, (type(None), types.ModuleType, type))


def _is_known_tuple(cls: type) -> bool:
    structure = cls.__module__ == "torch.return_types" and hasattr(cls, "n_fields")
    return cls is torch.Size or structure or (hasattr(cls, "_fields") and cls.__dictoffset__ == 0)


def _is_key(name: object) -> bool:
    if isinstance(name, tuple):
        return all(map(_is_key, name))
    return not isinstance(name, (float, complex)) and isinstance(name, (*_PLAIN, *_STATELESS))


class _Identity:
    """Compares by identity and keeps its object alive, so that the identity cannot be given to another."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _identity(value: object) -> object:
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return value
    if isinstance(value, (slice, range)):
        return (type(value), *typed((value.start, value.stop, value.step)))
    return _Identity(value)


def flatten(value: object, path: str = "") -> Layout:
    """The layout of `value`. Raises `Unsupported` where a part of it cannot be guarded."""
    flattener = _Flattener()
    try:
        root = flattener.visit(value, path)
    except Unsupported:
        raise
    except RecursionError as error:
        raise Unsupported(path, value, "is nested too deeply to be looked into") from error
    except Exception as error:  # an attribute of the person's that is computed, and fails
        if is_signalled(error):
            raise
        why = f"cannot be looked into: {type(error).__name__}: {str(error)[:200]}"
        raise Unsupported(path, value, why) from error
    return Layout(root, tuple(flattener.key), flattener.leaves, flattener.paths, flattener.containers)


def nodes_of(root: object) -> Iterator[Node]:
    """All containers in a layout."""
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, Node):
            yield node
            pending.extend(node.children)
            pending.append(node.extra)


def stateful(layout: Layout) -> tuple[object, ...]:
    """The arguments with state or code that the key does not hold: modules, functions, classes."""
    found: list[object] = []
    for node in nodes_of(layout.root):
        values = [child.value for child in node.children if isinstance(child, Static)]
        found += [value for value in values if isinstance(value, _WITH_STATE)]
        if node.kind == "method":
            found.append(node.names[0])
        elif node.cls not in _BUILTIN:
            found.append(node.cls)
    return tuple(found)


def typed(names: Iterable[object]) -> tuple[object, ...]:
    """Names with their types, for 1, 1.0 and True are equal."""
    return tuple([(type(n), typed(n) if isinstance(n, tuple) else n) for n in names])
