"""Finds everything that a callable can read, and by which names.

The walk starts at the callable and follows everything its own code can name: closures, globals that the code mentions
(also names that it only sets, and names that are not defined yet), `self`, modules with all their attributes, and other
functions and classes of the person. Library functions are not followed; what they read from a module or an object that
was reached is.
"""

from __future__ import annotations

import collections
import contextvars
import functools
import os
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..trampoline import written_code
from .contents import (
    CONTAINERS,
    CONTENTS,
    LEAVES,
    VIEWS,
    attribute_names,
    bytes_of,
    contents_of_mapping,
    contents_of_set,
    contents_of_variable,
    emptiness,
    getter,
    has_position,
    read,
    slots_of,
)
from .hooks import HOOKS, HOOKS_OF_ALL_OPTIMIZERS, hooks_of
from .operators import OPERATORS, python_of
from .own_code import ANY_NAME, is_followed, is_own_class, is_own_module, names_in, reads_any_name

__all__ = ["ABSENT", "Reach", "TooLarge"]

ABSENT = object()
"""Stands for the value of a name that is not defined, or of an attribute that is not set."""
_UNREAD = frozenset(vars(torch.nn.Module())) - {"training", "_parameters", "_buffers", "_modules"}
"""Bookkeeping of every module: hooks (guarded by the number of the next handle) and notes for `state_dict`."""
_CLASS_NOTES = frozenset(
    [
        "__dict__",
        "__weakref__",
        "__doc__",
        "__module__",
        "__annotations__",
        "__abstractmethods__",
        "_abc_impl",
        "__parameters__",
        "__orig_bases__",
        "__firstlineno__",
        "__static_attributes__",
        "__annotations_cache__",
        "__slotnames__",
    ]
)
_CALLABLES = (types.FunctionType, types.MethodType, functools.partial)
_SIMPLE = frozenset(LEAVES)
_LIMIT = 60_000


class TooLarge(Exception):
    """The callable reaches more state than can be guarded at a bounded cost. `where` names what it was reached by."""

    def __init__(self, where: str) -> None:
        super().__init__(f"{where} holds more state than can be guarded")
        self.where = where


class Reach:
    """What `roots` can read. Each list holds what is to be compared later, with what it was when it was found.

    `sources` maps a storage's identity to the name and the tensor that it was found through. `tensors` go with `names`,
    `places_of` says by which name a container was reached, `modules` pair attributes with a reader of the values that
    count; `met` is how often the walk came to each function, by identity. Raises `TooLarge`.
    """

    def __init__(self, roots: tuple[Any, ...]) -> None:
        self.sources: dict[int, tuple[str, torch.Tensor]] = {}
        self.dicts: list[dict[Any, Any]] = []
        self.lists: list[list[Any]] = []
        self.modules: list[tuple[dict[str, Any], Any]] = []
        self.places_of: dict[int, str] = {}
        self.items: list[tuple[dict[str, Any], str, Any]] = []
        self.attributes: list[tuple[Any, str, Any]] = []
        self.codes: list[tuple[types.FunctionType, types.CodeType]] = []
        self.states: list[tuple[Callable[[], Any], Any]] = []
        self.objects: list[Any] = []
        self.tensors: list[torch.Tensor] = []
        self.names: list[str] = []
        self.seen: dict[int, Any] = {}
        self.met: collections.Counter[int] = collections.Counter()
        self._global_names: dict[int, list[tuple[int, str]]] = {}
        self._roots = roots
        self._pending: list[tuple[Any, str]] = [(one, "") for one in reversed(roots)]
        for hooks in HOOKS_OF_ALL_OPTIMIZERS:
            self._dict(hooks, "hooks of all optimizers")
        while self._pending:
            value, where = self._pending.pop()
            try:
                self._visit(value, where)
            except TooLarge:
                raise
            except Exception as error:  # the person's own `__len__`; a nested tensor, which has no size
                raise TooLarge(where or "the code") from error
        self._roots = ()  # what was found may be let go of; see `GuardSet`

    def replaceable(self) -> set[int]:
        """Identities of functions that nothing but one global name leads to: another object there is found nowhere else
        to be another one, as it would be by a dict with functions as keys.
        """
        names = self._global_names
        return {one for one, met in self.met.items() if len(names.get(one, ())) == met and len(set(names[one])) == 1}

    def _meet(self, key: Any) -> None:
        """A key of a dict: functions may be what it is, or is made of."""
        for value in key if isinstance(key, tuple) else (key,):
            if isinstance(value, types.FunctionType):
                self.met[id(value)] += 1

    def _visit(self, value: Any, where: str) -> None:
        kind = type(value)
        if kind in _SIMPLE:
            return
        if kind is types.FunctionType:
            self.met[id(value)] += 1
        if id(value) in self.seen or isinstance(value, LEAVES):
            return
        if len(self.seen) > _LIMIT:
            raise TooLarge(where)
        self.seen[id(value)] = value
        # What there is most of first: to ask whether something is a tensor runs Python code of torch's.
        if kind is types.FunctionType:
            self._function(value, where)
        elif kind is dict:
            self._dict(value, where)
        elif isinstance(value, torch.Tensor):
            self._tensor(value, where)
        elif isinstance(value, types.MethodType):
            self._pending += [(value.__self__, where), (value.__func__, where)]
        elif isinstance(value, type):
            self._class(value, where)
        elif isinstance(value, dict):
            self._dict(value, where)
        elif isinstance(value, (list, tuple)):
            self._sequence(value, where)
        elif isinstance(value, (set, frozenset)):
            self._watch(functools.partial(contents_of_set, value))
            self._pending += [(item, where) for item in value]
        elif type(value) in CONTENTS:
            self._watch(functools.partial(CONTENTS[type(value)], value))
            if isinstance(value, collections.deque):
                self._pending += [(item, where) for item in value]
        elif type(value).__module__ == "numpy":
            if isinstance(getattr(value, "nbytes", None), int) and value.nbytes > 1 << 16:
                raise TooLarge(where)
            if hasattr(value, "tobytes"):
                self._watch(value.tobytes)
        elif isinstance(value, property):
            self._pending += [(value.fget, where), (value.fset, where)]
        elif isinstance(value, (staticmethod, classmethod)):
            self._pending.append((value.__func__, where))
        elif isinstance(value, functools.partial):
            self._pending += [(value.func, where), (value.args, where), (value.keywords, where)]
        elif isinstance(value, (types.BuiltinMethodType, types.MethodWrapperType)):  # `table.get`
            self._pending.append((value.__self__, where))
        elif isinstance(value, VIEWS):
            self._pending.append((value.mapping, where))
        elif isinstance(value, types.MappingProxyType):
            self._mapping(value, where)
        elif isinstance(value, weakref.ref):
            self._pending.append((value(), where))
        elif isinstance(value, contextvars.ContextVar):
            self._watch(functools.partial(contents_of_variable, value))
            self._pending.append((value.get(None), where))
        elif isinstance(value, OPERATORS):
            self._pending += [(part, where) for part in python_of(value)]
        elif isinstance(value, torch.jit.ScriptModule) or has_position(type(value)):
            raise TooLarge(where or type(value).__name__)
        elif isinstance(value, torch.nn.Module):
            self._module(value, where)
        else:
            self._object(value, where)

    def _watch(self, state: Callable[[], Any]) -> None:
        self.states.append((state, state()))

    def _tensor(self, tensor: torch.Tensor, where: str) -> None:
        if tensor.layout is torch.strided:
            self.tensors.append(tensor)
            self.names.append(where)
            self._dict(tensor.__dict__, where)
            for hooks in hooks_of(tensor):
                self._pending.append((hooks, f"{where} hooks"))
            self.sources.setdefault(tensor.untyped_storage()._cdata, (where, tensor))

    def _function(self, function: types.FunctionType, where: str) -> None:
        if not is_followed(function.__code__) and not any(function is root for root in self._roots):
            self._wrapped(function, where)
            return
        self.codes.append((function, written_code(function)))
        for name in ("__defaults__", "__kwdefaults__"):
            self.attributes.append((function, name, getattr(function, name)))
        self._pending.append((function.__defaults__, where))
        self._pending.append((function.__kwdefaults__, where))
        for cell, name in zip(function.__closure__ or (), function.__code__.co_freevars, strict=False):
            try:
                contents = cell.cell_contents
            except ValueError:  # not bound yet
                continue
            self.attributes.append((cell, "cell_contents", contents))
            self._pending.append((contents, name))
        self._watch(functools.partial(attribute_names, function))
        for name in attribute_names(function):
            self.items.append((function.__dict__, name, function.__dict__[name]))
            self._pending.append((function.__dict__[name], name))
        code = written_code(function)
        names, every = names_in(code)
        reads = reads_any_name(code, function.__globals__) if names & ANY_NAME else None
        if reads is not None:
            raise TooLarge(f"{reads}()")
        for name in names:
            value = function.__globals__.get(name, ABSENT)
            self.items.append((function.__globals__, name, value))
            if isinstance(value, types.ModuleType):
                self._library(value, every, {id(value)})
            elif value is not ABSENT:
                if isinstance(value, types.FunctionType):
                    self._global_names.setdefault(id(value), []).append((id(function.__globals__), name))
                self._pending.append((value, name))

    def _wrapped(self, function: types.FunctionType, where: str) -> None:
        """What a library's function was made around: with `@torch.no_grad()` that is the person's own code."""
        for cell in function.__closure__ or ():
            contents = read(cell, "cell_contents", None)
            if isinstance(contents, _CALLABLES):
                self.attributes.append((cell, "cell_contents", contents))
                self._pending.append((contents, where))
        for item in function.__dict__.values():
            if isinstance(item, types.MappingProxyType):  # what was registered with `singledispatch`
                self._pending.append((item, where))

    def _library(self, module: types.ModuleType, names: frozenset[str], above: set[int]) -> None:
        """What code that mentions these names can read from an imported module (``config.SCALE``)."""
        own = is_own_module(module) or module is os
        for name in [name for name in names if name in vars(module)]:  # a library may have thousands
            value = vars(module)[name]
            self.items.append((vars(module), name, value))
            if isinstance(value, types.ModuleType):
                if id(value) not in above:
                    above.add(id(value))
                    self._library(value, names, above)
            elif own:
                self._pending.append((value, f"{module.__name__}.{name}"))

    def _class(self, cls: type, where: str) -> None:
        """Methods and class attributes of the person's own classes; of library modules only which `forward` runs."""
        if is_own_class(type(cls)):
            self._pending.append((type(cls), where))
        own = [base for base in cls.__mro__ if is_own_class(base)]
        names = {name for base in own for name in vars(base)} - _CLASS_NOTES
        if issubclass(cls, torch.nn.Module):
            names.add("forward")
            own = [base for base in cls.__mro__ if base is not object]
        for base in own:
            for name in names:
                value: Any = vars(base).get(name, ABSENT)
                self.items.append((vars(base), name, value))  # type: ignore[arg-type]
                if value is not ABSENT:
                    self._pending.append((value, f"{cls.__name__}.{name}"))

    def _dict(self, value: dict[Any, Any], where: str) -> None:
        self.dicts.append(value)
        self.places_of[id(value)] = where
        if type(value) is not dict and isinstance(getattr(value, "__dict__", None), dict):
            self._object(value, where)
        for number, (name, item) in enumerate(value.items()):
            if name in HOOKS and not item:
                self.seen.setdefault(id(item), item)
                continue
            if type(name) is not str:
                self._meet(name)
            if isinstance(name, torch.Tensor):  # an optimizer keeps its state by parameter
                name = number
            self._pending.append((item, f"{where}.{name}" if where else str(name)))

    def _mapping(self, value: types.MappingProxyType[Any, Any], where: str) -> None:
        self._watch(functools.partial(contents_of_mapping, value))
        for name, item in value.items():
            if type(name) is not str:
                self._meet(name)
            self._pending.append((item, f"{where}.{name}"))

    def _sequence(self, value: Any, where: str) -> None:
        if isinstance(value, list):
            self.lists.append(value)
            self.places_of[id(value)] = where
        self._pending += [(item, f"{where}[{i}]") for i, item in enumerate(value)]

    def _module(self, module: torch.nn.Module, where: str) -> None:
        attributes = module.__dict__
        # A module that was unpickled or built by hand may lack some of the usual names.
        read = [name for name in attributes if name not in _UNREAD or (name in HOOKS and attributes[name])]
        self.objects.append(module)
        self.modules.append((attributes, getter(read)))
        self.places_of[id(attributes)] = where
        self._pending.append((type(module), where))
        for name in read:
            self._pending.append((attributes[name], f"{where}.{name}" if where else name))

    def _object(self, value: Any, where: str) -> None:
        attributes = getattr(value, "__dict__", None)
        slots = [name for base in type(value).__mro__ for name in slots_of(base)]
        self._memory(value, where)
        if not isinstance(attributes, dict) and not slots:
            return
        self.objects.append(value)
        self._pending.append((type(value), where))
        for name in slots:
            item = read(value, name, ABSENT)
            self.attributes.append((value, name, item))
            if item is not ABSENT:
                self._pending.append((item, f"{where}.{name}"))
        if isinstance(attributes, dict):
            self._attributes_of(attributes, where)

    def _attributes_of(self, attributes: dict[str, Any], where: str) -> None:
        """Attributes of an object. One that is an empty container may become another one (`self.pending = []`)."""
        empty = [name for name, item in attributes.items() if type(item) in CONTAINERS and not item]
        if not empty:
            self._dict(attributes, where)
            return
        read = [name for name in attributes if name not in empty]
        self.modules.append((attributes, getter(read)))
        self.places_of[id(attributes)] = where
        for name in empty:
            self._watch(functools.partial(emptiness, attributes, name))
        for name in read:
            self._pending.append((attributes[name], f"{where}.{name}" if where else name))

    def _memory(self, value: Any, where: str) -> None:
        """What gives other code access to bytes (`ctypes.c_float`, a memoryview, a file mapped into memory)."""
        try:
            with memoryview(value) as view:
                nbytes = view.nbytes
        except TypeError:
            return
        if nbytes > 1 << 16:
            raise TooLarge(where)
        self._watch(functools.partial(bytes_of, value))
