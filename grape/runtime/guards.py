"""What a region reads besides its arguments, and whether it is still as it was.

The walk starts at the callable and follows everything its own code can name: closures, globals that the code mentions,
`self`, modules with all their attributes, and other functions of the person. Library functions are not followed; what
they read from a module or an object that was reached is. Tensors found on the way are the *sources* of storages that a
trace reads from outside; a storage without a source cannot be guarded, and the region is refused.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from itertools import chain
from operator import is_, itemgetter
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from ..tracing import is_own_code
from .trampoline import written_code

__all__ = ["GuardSet", "TooLarge"]

_HOOKS = frozenset(
    {
        "_backward_pre_hooks",
        "_backward_hooks",
        "_forward_hooks",
        "_forward_hooks_with_kwargs",
        "_forward_hooks_always_called",
        "_forward_pre_hooks",
        "_forward_pre_hooks_with_kwargs",
        "_state_dict_hooks",
        "_state_dict_pre_hooks",
        "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks",
    }
)
_UNREAD = frozenset(vars(torch.nn.Module())) - {"training", "_parameters", "_buffers", "_modules"}
"""Bookkeeping of every module: hooks (guarded by the number of the next handle) and notes for `state_dict`."""
_LIMIT = 60_000
_LEAVES = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, types.ModuleType)


class TooLarge(Exception):
    """The callable reaches more state than can be guarded at a bounded cost. `where` names what it was reached by."""

    def __init__(self, where: str) -> None:
        super().__init__(f"{where} holds more state than can be guarded")
        self.where = where


class GuardSet:
    """A snapshot of the state that `root` can read; `holds` says whether it is unchanged.

    `sources` maps a storage's identity to the tensor that it was found through.
    """

    def __init__(self, root: Any) -> None:
        self.sources: dict[int, tuple[str, torch.Tensor]] = {}
        self._dicts: list[dict[Any, Any]] = []
        self._lists: list[list[Any]] = []
        self._modules: list[tuple[dict[str, Any], Any]] = []
        self._items: list[tuple[dict[str, Any], str, Any]] = []
        self._attributes: list[tuple[Any, str, Any]] = []
        self._codes: list[tuple[types.FunctionType, types.CodeType]] = []
        self._sets: list[tuple[Any, Any]] = []
        self._tensors: list[torch.Tensor] = []
        self._seen: dict[int, Any] = {}
        self._pending: list[tuple[Any, str]] = [(root, "")]
        while self._pending:
            self._visit(*self._pending.pop())
        self._snapshot()

    def _snapshot(self) -> None:
        self._filled = [d for d in self._dicts if d]  # an empty one is guarded by its length
        self._saved = tuple(self._values())
        self._sizes = self._measure()
        self._places = self._locate()
        self._handles = RemovableHandle.next_id

    def _values(self) -> Iterator[Any]:
        attributes = [attributes_of(names) for names, attributes_of in self._modules]
        return chain(chain.from_iterable([*attributes, *map(dict.values, self._filled)]), chain.from_iterable(self._lists))

    def _measure(self) -> list[int]:
        return [*map(len, self._dicts), *map(len, self._lists), *[len(names) for names, _ in self._modules]]

    def _locate(self) -> tuple[list[Any], ...]:
        """Address, shape and stride of every tensor."""
        tensors = self._tensors
        kind = torch.Tensor
        return [*map(kind.data_ptr, tensors)], [*map(kind.size, tensors)], [*map(kind.stride, tensors)]

    def holds(self) -> bool:
        """True where nothing that was found has changed since."""
        if RemovableHandle.next_id != self._handles:
            return self.difference() is None
        try:
            return self._unchanged() or self._same_values()
        except KeyError:  # an attribute of a module is gone
            return False

    def _unchanged(self) -> bool:
        return (
            self._measure() == self._sizes
            and all(map(is_, self._values(), self._saved))
            and all(names.get(name, self) is value for names, name, value in self._items)
            and all(getattr(owner, name, self) is value for owner, name, value in self._attributes)
            and all(written_code(function) is code for function, code in self._codes)
            and all(now == then for now, then in self._sets)
            and self._locate() == self._places
        )

    def _same_values(self) -> bool:
        """Equal values under other identities (``self.eps = 1e-5`` again) hold as well; remember the new ones."""
        if self.difference() is not None:
            return False
        self._snapshot()
        return True

    def difference(self) -> str | None:
        """What has changed, in words; None where nothing has."""
        if RemovableHandle.next_id != self._handles:
            for owner in self._seen.values():
                if isinstance(owner, torch.nn.Module) and any(getattr(owner, name, None) for name in _HOOKS):
                    return f"a hook on {type(owner).__name__}"
            self._handles = RemovableHandle.next_id
        if self._measure() != self._sizes:
            return "the number of attributes or items of an object that the region reads"
        for now, then in zip(self._values(), self._saved, strict=True):
            if now is not then and not _equal(now, then):
                return f"a value that the region reads ({type(then).__name__} {_short(then)} -> {_short(now)})"
        for names, name, value in self._items:
            if names.get(name, self) is not value and not _equal(names.get(name, self), value):
                return f"the global '{name}'"
        for owner, name, value in self._attributes:
            if getattr(owner, name, self) is not value and not _equal(getattr(owner, name, self), value):
                return f"'{name}' of {getattr(owner, '__qualname__', type(owner).__name__)}"
        for function, code in self._codes:
            if written_code(function) is not code:
                return f"the code of {function.__qualname__}"
        for now, then in self._sets:
            if now != then:
                return "a set that the region reads"
        if self._locate() != self._places:
            return "the memory of a parameter, buffer or other tensor that the region reads"
        return None

    def _visit(self, value: Any, where: str) -> None:
        if isinstance(value, _LEAVES) or id(value) in self._seen:
            return
        if len(self._seen) > _LIMIT:
            raise TooLarge(where)
        self._seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            self._tensor(value, where)
        elif isinstance(value, types.FunctionType):
            self._function(value, where)
        elif isinstance(value, types.MethodType):
            self._pending += [(value.__self__, where), (value.__func__, where)]
        elif isinstance(value, type):
            self._class(value, where)
        elif isinstance(value, dict):
            self._dict(value, where)
        elif isinstance(value, (list, tuple)):
            self._sequence(value, where)
        elif isinstance(value, (set, frozenset)):
            if isinstance(value, set):
                self._sets.append((value, set(value)))
        elif isinstance(value, torch.nn.Module):
            self._module(value, where)
        elif isinstance(getattr(value, "__dict__", None), dict):
            self._object(value, where)

    def _tensor(self, tensor: torch.Tensor, where: str) -> None:
        if tensor.layout is torch.strided:
            self._tensors.append(tensor)
            self.sources.setdefault(tensor.untyped_storage()._cdata, (where, tensor))

    def _function(self, function: types.FunctionType, where: str) -> None:
        if not is_own_code(function.__code__.co_filename):
            return
        self._codes.append((function, written_code(function)))
        for name in ("__defaults__", "__kwdefaults__"):
            self._attributes.append((function, name, getattr(function, name)))
        self._pending.append((function.__defaults__, where))
        self._pending.append((function.__kwdefaults__, where))
        for cell, name in zip(function.__closure__ or (), function.__code__.co_freevars, strict=False):
            try:
                contents = cell.cell_contents
            except ValueError:  # not bound yet
                continue
            self._attributes.append((cell, "cell_contents", contents))
            self._pending.append((contents, name))
        for name in _names(written_code(function)):
            if name in function.__globals__:
                value = function.__globals__[name]
                self._items.append((function.__globals__, name, value))
                self._pending.append((value, name))

    def _class(self, cls: type, where: str) -> None:
        """Methods and class attributes of the person's own classes; library classes are taken as constant."""
        methods = [f for f in vars(cls).values() if isinstance(f, types.FunctionType)]
        if any(is_own_code(method.__code__.co_filename) for method in methods):
            for name, value in vars(cls).items():
                if name not in ("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__"):
                    self._attributes.append((cls, name, getattr(cls, name)))
                    self._pending.append((getattr(value, "__func__", value), f"{cls.__name__}.{name}"))

    def _dict(self, value: dict[Any, Any], where: str) -> None:
        self._dicts.append(value)
        for name, item in value.items():
            if name in _HOOKS and not item:
                self._seen.setdefault(id(item), item)
                continue
            self._pending.append((item, f"{where}.{name}" if where else str(name)))

    def _sequence(self, value: Any, where: str) -> None:
        if isinstance(value, list):
            self._lists.append(value)
        self._pending += [(item, f"{where}[{i}]") for i, item in enumerate(value)]

    def _module(self, module: torch.nn.Module, where: str) -> None:
        attributes = module.__dict__
        # A module that was unpickled or built by hand may lack some of the usual names.
        read = [name for name in attributes if name not in _UNREAD or (name in _HOOKS and attributes[name])]
        self._modules.append((attributes, _getter(read)))
        self._pending.append((type(module), where))
        for name in read:
            self._pending.append((attributes[name], f"{where}.{name}" if where else name))

    def _object(self, value: Any, where: str) -> None:
        self._pending.append((type(value), where))
        self._dict(value.__dict__, where)


def _getter(names: list[str]) -> Any:
    """A function of a dict that returns the values of `names` as a tuple."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda attributes: tuple([attributes[name] for name in names])


def _names(code: types.CodeType) -> Iterator[str]:
    """The globals that a code object mentions. `co_names` alone would not do: it holds attribute names as well."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _equal(one: Any, other: Any) -> bool:
    """Equality of plain values of one type; everything else is compared by identity."""
    if type(one) is not type(other) or not isinstance(one, (bool, int, float, complex, str, bytes, tuple)):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(a is b or _equal(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def _short(value: Any) -> str:
    return repr(value)[:40] if isinstance(value, (bool, int, float, str, type(None))) else "..."


