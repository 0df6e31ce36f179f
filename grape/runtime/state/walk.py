"""Finds everything that a callable can read, and by which names; refuses what nobody can compare.

The walk starts at the callable and follows everything its own code can name: closures, globals that the code mentions
(also names that it only sets, and names that are not defined yet), `self`, modules with all their attributes, and other
functions and classes of the person. It knows the kinds of objects below, and their contents; everything else (files,
locks, generators, proxies, other objects in C) is `Opaque`, unless it is held by an attribute that the code never
mentions. Of libraries' functions only names are followed: which functions they call, and which plain settings they
read. Nothing on the way runs code of the person's.
"""

from __future__ import annotations

import collections
import enum
import functools
import operator
import re
import types
import typing
from collections.abc import Mapping, MutableSequence
from typing import Any

import torch

from ...failures import is_signalled
from .classes import attributes_of, is_plain, is_watched, slots_of
from .containers import AnyDict, Attributes
from .contents import CONTAINERS, LEAVES, contents_of_array, contents_of_set, emptiness, getter, kind_of, read
from .hooks import HOOKS, HOOKS_OF_ALL_OPTIMIZERS, hooks_of
from .libraries import READS_ALL, known_instances
from .mentions import Mentions
from .names import ABSENT, BY_SYNTAX, CALLABLES, CODE, METHOD, Opaque, TooLarge, a
from .namespaces import MODULE, TENSOR
from .operators import OPERATORS, is_hidden, python_of
from .own_code import is_own_class, is_own_module, words_in
from .tables import PLAIN, TELL_OF_AUTOCAST, autocast_of_devices, writes_of

_UNREAD = frozenset(vars(torch.nn.Module())) - {"training", "_parameters", "_buffers", "_modules"}
"""Bookkeeping of every module: hooks (guarded by the number of the next handle) and notes for `state_dict`."""
_OF_MODULES = frozenset({"training", "_parameters", "_buffers", "_modules", *HOOKS})
_FIELD = type(vars(collections.namedtuple("_Named", "one"))["one"])
_SIMPLE = frozenset(
    {
        *(*LEAVES, range, type(Ellipsis), type(NotImplemented), torch.layout, torch.memory_format, torch.Generator),
        *(torch.finfo, torch.iinfo, torch.Size, types.CodeType, re.Pattern, _FIELD),
        *(types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType),
        *(types.MemberDescriptorType, types.ClassMethodDescriptorType, types.GenericAlias, types.UnionType),
    }
) - {types.ModuleType}
"""Types of values that hold nothing that could change. (What a generator draws, the trace shows.)"""
_PARTS: Mapping[type, tuple[str, ...]] = {
    types.MethodType: ("__self__", "__func__"),
    property: ("fget", "fset", "fdel"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    functools.cached_property: ("func",),
    functools.partial: ("func", "args", "keywords"),
    slice: ("start", "stop", "step"),
}
"""What leads to functions and objects, and holds nothing else: the attributes that do."""
_WRAPPERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
_LIMIT = 60_000
_ITEMS = 400_000


class Reach(Mentions):
    """Everything that `roots` can read. Each list holds what is to be compared later, with what it was when it was
    found.

    `sources` maps a storage's identity to the name and the tensor that it was found through. `tensors` go with `names`,
    `places_of` says by which name a container was reached, `modules` pair attributes with a reader of the values that
    count; `met` is how often the walk came to each function, by identity. Raises `TooLarge`.
    """

    def __init__(self, roots: tuple[object, ...]) -> None:
        super().__init__(roots)
        self.sources: dict[int, tuple[str, torch.Tensor]] = {}
        self.dicts: list[AnyDict] = []
        self.lists: list[MutableSequence[object]] = []
        self.modules: list[Attributes] = []
        self.places_of: dict[int, str] = {}
        self.objects: list[object] = []
        self.tensors: list[torch.Tensor] = []
        self.names: list[str] = []
        self.seen: dict[int, object] = {}
        self.met: collections.Counter[int] = collections.Counter()
        self._pending += [(one, "") for one in reversed(roots)]
        for base, where in ((TENSOR, "torch.Tensor"), (MODULE, "torch.nn.Module")):
            self._watch(base.number)
            self._pending += [(one, where) for one in base.own_functions()]
        for hooks in HOOKS_OF_ALL_OPTIMIZERS:
            self._dict(hooks, "hooks of all optimizers")
        self._walk()
        if self._tables:
            self._watch(functools.partial(writes_of, (*self._tables.values(),)))
        named: list[object] = [*(function for function, _ in self.codes), *self._known_classes]
        for name in ("__name__", "__qualname__", "__module__"):  # as `repr` of a dataclass does
            if name in self._mentioned:
                self.attributes += [(one, name, getattr(one, name)) for one in named]
        if (self._mentioned | self._said_by_libraries) & TELL_OF_AUTOCAST:
            self._watch(autocast_of_devices)
        self._roots = ()  # what was found may be let go of; see `GuardSet`

    def _walk(self) -> None:
        self._drain()
        while self._postponed or self._handed:
            all_names = bool(self._mentioned & READS_ALL)
            postponed, self._postponed, read = self._postponed, [], False
            for one in postponed:
                named = self._mentioned & one[2] or (all_names and not one[2] & BY_SYNTAX)
                if named:
                    self._pending.append(one[:2])
                    read = True
                else:
                    self._postponed.append(one)
            if not self._follow_handed() and not read:
                break
            self._drain()
        rest, self._postponed = self._postponed, []
        for value, where, names in rest:  # what nobody mentions is guarded as far as that can be done
            if METHOD in names and names.isdisjoint(self._said_by_libraries):
                continue  # what nobody calls reads nothing
            self._pending = [(value, where)]
            try:
                self._drain()
            except TooLarge:
                self._pending.clear()
            if self._postponed:
                rest += self._postponed
                self._postponed = []

    def _drain(self) -> None:
        while self._pending:
            value, where = self._pending.pop()
            try:
                self._visit(value, where)
            except TooLarge:
                raise
            except Exception as error:  # a nested tensor has no size
                if is_signalled(error):
                    raise
                raise TooLarge(where or CODE) from error

    def replaceable(self) -> set[int]:
        """Identities of functions that nothing but one global name leads to: another object there is found nowhere else
        to be another one, as it would be by a dict with functions as keys.
        """
        names = self._global_names
        return {one for one, met in self.met.items() if len(names.get(one, ())) == met and len(set(names[one])) == 1}

    def _meet(self, key: object) -> None:
        """A key of a dict: functions may be what it is, or is made of."""
        for value in key if type(key) is tuple else (key,):
            if type(value) is types.FunctionType:
                self.met[id(value)] += 1
            elif type(value) not in _SIMPLE and not isinstance(type(value), enum.EnumMeta):
                self._pending.append((value, "a key"))

    def _visit(self, value: Any, where: str) -> None:
        kind = type(value)
        if kind in _SIMPLE or value is typing.Any:
            return
        if kind is types.FunctionType:
            self.met[id(value)] += 1
        if id(value) in self.seen:
            return
        if len(self.seen) > _LIMIT or len(self.items) > _ITEMS:
            raise TooLarge(where)
        self.seen[id(value)] = value
        # What there is most of first: to ask whether something is a tensor runs Python code of torch's.
        if kind is types.FunctionType:
            self._function(value, where)
        elif kind is dict:
            self._dict(value, where)
        elif issubclass(kind, torch.Tensor):
            self._tensor(value, where)
        elif kind in (list, tuple, collections.deque):
            self._sequence(value, where)
        elif kind in (set, frozenset):
            self._watch(functools.partial(contents_of_set, value))
            self._pending += [(item, where) for item in value]
        elif issubclass(kind, type):
            self._class(value, where, by_name=True)
        elif issubclass(kind, types.ModuleType):
            if is_own_module(value):
                raise Opaque(where, "holds an imported module, whose names nobody compares")
            self._hand_on(value)
        elif issubclass(kind, torch.nn.Module):
            self._module(value, where)
        elif not self._wrapper(value, where):
            self._other(value, kind, where)

    def _wrapper(self, value: object, where: str) -> bool:
        """Follow what leads to functions and objects, and holds nothing else."""
        kind = type(value)
        if kind in _PARTS:
            parts = [(name, getattr(value, name)) for name in _PARTS[kind]]
            self._pending += [(part, where) for _, part in parts]
            if kind not in (types.MethodType, slice):  # others may be made anew in place
                self.attributes += [(value, *part) for part in parts]
            if kind is functools.partial:
                self._attributes_of(value.__dict__, where, kind)
        elif kind in (types.BuiltinFunctionType, types.MethodWrapperType):  # `table.get` is one, too
            self._builtin(value, where)
        elif issubclass(kind, OPERATORS):
            if is_hidden(value):
                raise Opaque(
                    where, "is an operator, and torch does not tell what its Python is; `torch.library.custom_op` does"
                )
            self._pending += [(part, where) for part in python_of(value)]
        elif isinstance(kind, enum.EnumMeta):
            if is_own_class(kind):
                self._attributes_of(attributes_of(value) or {}, where, kind)
                self._class(kind, where, by_name=False)
        elif kind in _WRAPPERS:
            self._mention(words_in(value.__reduce__()[1]))
        else:
            return False
        return True

    def _other(self, value: Any, kind: type, where: str) -> None:
        """An object of a kind that has no rule of its own."""
        top = kind.__module__.partition(".")[0]
        if top == "grape" or (top == "typing" and is_plain(kind)):
            return
        if top == "numpy":
            self._numpy(value, kind, where)
        elif issubclass(kind, (dict, list, tuple)):
            self._kind(value, where)
            if issubclass(kind, dict):
                self._dict(value, where)
            else:
                self._sequence(value, where)
        elif issubclass(kind, PLAIN):
            if is_own_class(kind):
                raise Opaque(where or CODE, f"is {a(kind)}, which is more than its value")
        elif top == "torch" and kind.__module__ == "torch._ops":
            return
        elif issubclass(kind, types.SimpleNamespace):
            self._kind(value, where)
        elif is_plain(kind) and (is_own_class(kind) or known_instances(kind)):
            self._object(value, where)
        else:
            raise Opaque(where or CODE, f"is {a(kind)}, whose state nobody can compare")

    def _numpy(self, value: Any, kind: type, where: str) -> None:
        if kind.__module__.startswith("numpy.random"):
            raise Opaque(where, f"is {a(kind)}, which every call changes")
        known = kind_of(value)
        if known is None:
            raise Opaque(where, f"is {a(kind)}, whose state nobody can compare")
        if known == "large":
            raise TooLarge(where)
        if known == "array":
            self._watch(functools.partial(contents_of_array, value))
        elif known == "object":
            self._object(value, where)

    def _tensor(self, tensor: torch.Tensor, where: str) -> None:
        if is_own_class(type(tensor)):
            raise Opaque(where, f"is {a(type(tensor))}, a tensor of a class of its own")
        if tensor.layout is torch.strided:
            self.tensors.append(tensor)
            self.names.append(where)
            self._dict(tensor.__dict__, where)
            for hooks in hooks_of(tensor):
                self._pending.append((hooks, f"{where} hooks"))
            self.sources.setdefault(tensor.untyped_storage()._cdata, (where, tensor))

    # -- containers and objects --------------------------------------------------------------------------------------

    def _dict(self, value: AnyDict, where: str) -> None:
        self.dicts.append(value)
        self.places_of[id(value)] = where
        for number, (name, item) in enumerate(dict.items(value)):
            if name in HOOKS and not item:
                self.seen.setdefault(id(item), item)
                continue
            if type(name) is not str:
                self._meet(name)
            if issubclass(type(name), torch.Tensor):  # an optimizer keeps its state by parameter
                name = number
            self._pending.append((item, f"{where}.{name}" if where else str(name)))
        if isinstance(value, collections.defaultdict):
            self.attributes.append((value, "default_factory", value.default_factory))
            self._pending.append((value.default_factory, where))

    def _sequence(self, value: tuple[object, ...] | MutableSequence[object], where: str) -> None:
        if not isinstance(value, tuple):
            self.lists.append(value)
            self.places_of[id(value)] = where
        self._pending += [(item, f"{where}[{i}]") for i, item in enumerate(value)]

    def _module(self, module: torch.nn.Module, where: str) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            raise Opaque(where or type(module).__name__, "is a script, which Python cannot look into")
        attributes = module.__dict__
        # A module that was unpickled or built by hand may lack some of the usual names.
        read = [name for name in attributes if name not in _UNREAD or (name in HOOKS and attributes[name])]
        self.objects.append(module)
        self.modules.append((attributes, getter(read)))
        self.places_of[id(attributes)] = where
        self._class(type(module), where, by_name=False)
        for name in read:
            place = f"{where}.{name}" if where else name
            called = type(attributes[name]) in CALLABLES and not is_own_class(type(module))
            if name in _OF_MODULES or called:
                self._pending.append((attributes[name], place))
            else:
                self._postponed.append((attributes[name], place, frozenset({name})))

    def _kind(self, value: object, where: str) -> None:
        """The class of an object, and that it is the object's still."""
        self.objects.append(value)
        self._class(type(value), where, by_name=False)
        if is_watched(value):
            raise Opaque(where, "has a weak reference, which tells when it is gone")
        attributes = attributes_of(value)
        if attributes is not None:
            self._attributes_of(attributes, where, type(value))

    def _object(self, value: object, where: str) -> None:
        self._kind(value, where)
        for base in type(value).__mro__:
            for name in slots_of(base):
                item = read(value, name, ABSENT)
                self.attributes.append((value, name, item))
                if item is not ABSENT:
                    self._pending.append((item, f"{where}.{name}"))

    def _attributes_of(self, attributes: dict[str, object], where: str, cls: type) -> None:
        """Attributes of an object. One that is an empty container may become another one (`self.pending = []`)."""
        empty = [name for name, item in attributes.items() if type(item) in CONTAINERS and not item]
        read = [name for name in attributes if name not in empty]
        if empty:
            self.modules.append((attributes, getter(read)))
            for name in empty:
                self._watch(functools.partial(emptiness, attributes, name))
        else:
            self.dicts.append(attributes)
        self.places_of[id(attributes)] = where
        named = is_own_class(cls)  # a library's code may read what nobody mentions
        for name in read:
            place = f"{where}.{name}" if where else str(name)
            if named:
                self._postponed.append((attributes[name], place, frozenset({name})))
            else:
                self._pending.append((attributes[name], place))
