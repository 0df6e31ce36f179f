"""Finds everything that a callable can read, and by which names; refuses what nobody can compare.

The walk starts at the callable and follows everything its own code can name: closures, globals that the code mentions
(also names that it only sets, and names that are not defined yet), `self`, modules with all their attributes, and other
functions and classes of the person. It knows the kinds of objects below, and their contents; everything else (files,
locks, generators, proxies, other objects in C) is `Opaque`, unless it is held by an attribute that the code never
mentions. Of libraries' functions only names are followed: which functions they call, and which plain settings they
read. Nothing on the way runs code of the person's.
"""

from __future__ import annotations

import abc
import collections
import enum
import functools
import operator
import re
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

import torch

from ..trampoline import written_code
from .classes import attributes_of, is_plain, is_watched, slots_of, why_odd
from .contents import (
    CONTAINERS,
    LEAVES,
    attribute_names,
    contents_of_array,
    contents_of_set,
    emptiness,
    getter,
    read,
)
from .hooks import HOOKS, HOOKS_OF_ALL_MODULES, HOOKS_OF_ALL_OPTIMIZERS, hooks_of
from .libraries import BUILTINS, INTROSPECTION, READS_ALL, is_pure, known_instances, why_not
from .namespaces import TENSOR
from .operators import OPERATORS, is_hidden, python_of
from .own_code import ANY_NAME, is_followed, is_own_class, is_own_module, mentioned_in, reads_any_name

__all__ = ["ABSENT", "Opaque", "Reach", "TooLarge"]

ABSENT = object()
"""Stands for the value of a name that is not defined, or of an attribute that is not set."""
_UNREAD = frozenset(vars(torch.nn.Module())) - {"training", "_parameters", "_buffers", "_modules"}
"""Bookkeeping of every module: hooks (guarded by the number of the next handle) and notes for `state_dict`."""
_OF_MODULES = frozenset({"training", "_parameters", "_buffers", "_modules", *HOOKS})
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
        "__dataclass_fields__",
        "__dataclass_params__",
        "__match_args__",
    ]
)
_WHEN_MADE = frozenset({"__init__", "__new__", "__post_init__", "__init_subclass__", "__class_getitem__"})
_SELDOM_CALLED = frozenset(
    {"__hash__", "__repr__", "__str__", "__format__", "__reduce__", "__getstate__", "__setstate__"}
)
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
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CALLABLES = (types.FunctionType, types.MethodType, functools.partial)
_WRAPPERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
_LIMIT = 60_000
_ITEMS = 400_000
_DEPTH = 3
"""So far the names in functions of libraries are followed."""


class TooLarge(Exception):
    """The callable reaches more state than can be guarded at a bounded cost. `where` names what it was reached by."""

    def __init__(self, where: str, why: str = "holds more state than can be guarded") -> None:
        super().__init__(f"{where} {why}")
        self.where = where


class Opaque(TooLarge):
    """The callable reaches something whose state nobody can compare, or that reads or changes more than its own."""


class Reach:
    """What `roots` can read. Each list holds what is to be compared later, with what it was when it was found.

    `sources` maps a storage's identity to the name and the tensor that it was found through. `tensors` go with `names`,
    `places_of` says by which name a container was reached, `modules` pair attributes with a reader of the values that
    count; `met` is how often the walk came to each function, by identity. Raises `TooLarge`.
    """

    def __init__(self, roots: tuple[Any, ...]) -> None:
        self.sources: dict[int, tuple[str, torch.Tensor]] = {}
        self.dicts: list[dict[Any, Any]] = []
        self.lists: list[Any] = []
        self.modules: list[tuple[dict[str, Any], Any]] = []
        self.places_of: dict[int, str] = {}
        self.items: list[tuple[Any, str, Any]] = []
        self.attributes: list[tuple[Any, str, Any]] = []
        self.codes: list[tuple[types.FunctionType, types.CodeType]] = []
        self.states: list[tuple[Callable[[], Any], Any]] = []
        self.objects: list[Any] = []
        self.tensors: list[torch.Tensor] = []
        self.names: list[str] = []
        self.seen: dict[int, Any] = {}
        self.met: collections.Counter[int] = collections.Counter()
        self._global_names: dict[int, list[tuple[int, str]]] = {}
        self._mentioned: set[Any] = set()
        self._known_classes: dict[type, str | None] = {}
        self._namespaces: set[tuple[int, str]] = set()
        self._lit: set[types.CodeType] = set()
        self._roots = roots
        self._pending: list[tuple[Any, str]] = [(one, "") for one in reversed(roots)]
        self._pending += [(hooks, "hooks of all modules") for hooks in HOOKS_OF_ALL_MODULES if hooks]
        self._postponed: list[tuple[Any, str, frozenset[Any]]] = []
        """Values with their places, and the names of which one must be mentioned for the value to be read."""
        self._watch(TENSOR.number)
        self._pending += [(one, "torch.Tensor") for one in TENSOR.functions() if is_followed(one.__code__)]
        for hooks in HOOKS_OF_ALL_OPTIMIZERS:
            self._dict(hooks, "hooks of all optimizers")
        self._walk()
        if "__name__" in self._mentioned:
            named: list[Any] = [*(function for function, _ in self.codes), *self._known_classes]
            self.attributes += [(one, "__name__", one.__name__) for one in named]
        self._roots = ()  # what was found may be let go of; see `GuardSet`

    def _walk(self) -> None:
        self._drain()
        while self._postponed:
            all_names = bool(self._mentioned & READS_ALL)
            read = [one for one in self._postponed if all_names or self._mentioned & one[2]]
            if not read:
                break
            self._postponed = [one for one in self._postponed if not (all_names or self._mentioned & one[2])]
            self._pending += [(value, where) for value, where, _ in read]
            self._drain()
        rest, self._postponed = self._postponed, []
        for value, where, _ in rest:  # what nobody mentions is guarded as far as that can be done
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
                raise TooLarge(where or "the code") from error

    def replaceable(self) -> set[int]:
        """Identities of functions that nothing but one global name leads to: another object there is found nowhere else
        to be another one, as it would be by a dict with functions as keys.
        """
        names = self._global_names
        return {one for one, met in self.met.items() if len(names.get(one, ())) == met and len(set(names[one])) == 1}

    def _meet(self, key: Any) -> None:
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
        elif issubclass(kind, torch.nn.Module):
            self._module(value, where)
        elif not self._wrapper(value, where):
            self._other(value, kind, where)

    def _wrapper(self, value: Any, where: str) -> bool:
        """What leads to functions and objects, and holds nothing else."""
        kind = type(value)
        if kind is types.MethodType:
            self._pending += [(value.__self__, where), (value.__func__, where)]
        elif kind is property:
            self._pending += [(value.fget, where), (value.fset, where), (value.fdel, where)]
        elif kind in (staticmethod, classmethod):
            self._pending.append((value.__func__, where))
        elif kind is functools.cached_property:
            self._pending.append((value.func, where))
        elif kind is functools.partial:
            self._pending += [(value.func, where), (value.args, where), (value.keywords, where)]
        elif kind in (types.BuiltinFunctionType, types.MethodWrapperType):  # `table.get` is one, too
            self._builtin(value, where)
        elif kind is slice:
            self._pending += [(part, where) for part in (value.start, value.stop, value.step)]
        elif issubclass(kind, OPERATORS):
            if is_hidden(value):
                raise Opaque(where, "is an operator, of whose Python torch tells nothing")
            self._pending += [(part, where) for part in python_of(value)]
        elif isinstance(kind, enum.EnumMeta):
            if is_own_class(kind):
                self._attributes_of(attributes_of(value) or {}, where, kind)
                self._class(kind, where, by_name=False)
        else:
            return kind in _WRAPPERS
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
        elif issubclass(kind, _PLAIN):
            if is_own_class(kind):
                raise Opaque(where or "the code", f"is a {kind.__name__}, which is more than its value")
        elif top == "torch" and kind.__module__ == "torch._ops":
            return
        elif issubclass(kind, types.SimpleNamespace):
            self._kind(value, where)
        elif is_plain(kind) and (is_own_class(kind) or known_instances(kind)):
            self._object(value, where)
        else:
            raise Opaque(where or "the code", f"is a {kind.__name__}, whose state nobody can compare")

    def _numpy(self, value: Any, kind: type, where: str) -> None:
        if kind.__module__.startswith("numpy.random"):
            raise Opaque(where, f"is a {kind.__name__}, which every call changes")
        if hasattr(kind, "tobytes") and hasattr(kind, "strides"):
            if value.dtype.hasobject or value.nbytes > 1 << 16:
                raise TooLarge(where)
            if not issubclass(kind, sys.modules["numpy"].generic):
                self._watch(functools.partial(contents_of_array, value))

    def _builtin(self, value: Any, where: str) -> None:
        """A function in C, or a method in C of some object."""
        owner = value.__self__
        if owner is not None and not issubclass(type(owner), (type, types.ModuleType)):
            self._pending.append((owner, where))
            return
        module = getattr(value, "__module__", None)
        if module == "builtins" and value.__name__ in BUILTINS - ANY_NAME:
            raise Opaque(f"{value.__name__}()", "reads or changes more than its arguments")
        if not is_pure(module):
            raise Opaque(f"{module}.{value.__name__}()", "reads or changes more than its arguments")

    def _watch(self, state: Callable[[], Any]) -> None:
        self.states.append((state, state()))

    def _tensor(self, tensor: torch.Tensor, where: str) -> None:
        if is_own_class(type(tensor)):
            raise Opaque(where, f"is a {type(tensor).__name__}, a tensor of a class of its own")
        if tensor.layout is torch.strided:
            self.tensors.append(tensor)
            self.names.append(where)
            self._dict(tensor.__dict__, where)
            for hooks in hooks_of(tensor):
                self._pending.append((hooks, f"{where} hooks"))
            self.sources.setdefault(tensor.untyped_storage()._cdata, (where, tensor))

    # -- code --------------------------------------------------------------------------------------------------------

    def _function(self, function: types.FunctionType, where: str) -> None:
        if not is_followed(function.__code__) and not any(function is root for root in self._roots):
            self._of_library(function, where)
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
        self._names(written_code(function), function.__globals__)

    def _names(self, code: types.CodeType, namespace: dict[str, Any]) -> None:
        """What code of the person's mentions."""
        mentioned = mentioned_in(code)
        reads = reads_any_name(code, namespace) if mentioned.globals & ANY_NAME else None
        if reads is not None:
            raise TooLarge(f"{reads}()")
        hidden = mentioned.attributes & INTROSPECTION
        if hidden:
            raise Opaque(f"`{min(hidden)}`", "is read, which nobody compares")
        self._mentioned |= mentioned.words
        for name in mentioned.imports:
            module = sys.modules.get(name, ABSENT)
            self._item(sys.modules, name, module)
            if isinstance(module, types.ModuleType):
                self._imported(module, mentioned.words, {id(module)})
        builtins: Any = vars(sys.modules["builtins"])
        for name in filter(str.isidentifier, mentioned.globals):  # others were put there by a tool that instruments
            value = namespace.get(name, ABSENT)
            self._item(namespace, name, value)
            if value is ABSENT:
                value = builtins.get(name, ABSENT)
                self._item(builtins, name, value)
            if isinstance(value, types.ModuleType):
                self._imported(value, mentioned.words, {id(value)})
            elif value is not ABSENT:
                if type(value) is types.FunctionType:
                    self._global_names.setdefault(id(value), []).append((id(namespace), name))
                self._pending.append((value, name))

    def _item(self, namespace: Any, name: str, value: Any) -> None:
        self.items.append((namespace, name, value))

    def _imported(self, module: types.ModuleType, names: frozenset[str], above: set[int]) -> None:
        """What code that mentions these names can read from an imported module (``config.SCALE``)."""
        space = vars(module)
        own = is_own_module(module)
        denied = None if own or str(space.get("__name__")).startswith("grape.") else why_not(module, names)
        if denied is not None:
            raise Opaque(f"`{denied}`", "reads or changes more than its arguments")
        wanted = names if not own or not names & READS_ALL else names | space.keys()
        for name in [name for name in wanted if name in space]:  # a library may have thousands
            value = space[name]
            self._item(space, name, value)
            if issubclass(type(value), types.ModuleType):
                if id(value) not in above:
                    above.add(id(value))
                    self._imported(value, names, above)
            else:
                self._pending.append((value, f"{space.get('__name__')}.{name}"))

    def _of_library(self, function: types.FunctionType, where: str) -> None:
        """What a library's function was made around: with `@torch.no_grad()` that is the person's own code."""
        if not is_pure(function.__module__):
            raise Opaque(f"{function.__module__}.{function.__name__}()", "reads or changes more than its arguments")
        for cell in function.__closure__ or ():
            contents = read(cell, "cell_contents", None)
            if type(contents) in _CALLABLES:
                self.attributes.append((cell, "cell_contents", contents))
                self._pending.append((contents, where))
        for item in function.__dict__.values():
            if type(item) is types.MappingProxyType:  # what was registered with `singledispatch`
                raise Opaque(where, "is a function by type, to which others may be added")
        self._light(function, 0)

    def _light(self, function: types.FunctionType, depth: int) -> None:
        """The names in a library's function: what they mean, and what plain settings hold."""
        code = function.__code__
        if code in self._lit or str(function.__module__).partition(".")[0] in sys.stdlib_module_names:
            return
        self._lit.add(code)
        words, namespace = _names_in(code), function.__globals__
        for name in words:
            value = namespace.get(name, ABSENT)
            if value is not ABSENT:
                self._light_item(namespace, name, value, words, depth)

    def _light_item(self, namespace: Any, name: str, value: Any, words: frozenset[str], depth: int) -> None:
        if (id(namespace), name) in self._namespaces:
            return
        kind = type(value)
        if kind is types.FunctionType:
            if is_followed(value.__code__):
                self._pending.append((value, name))
            elif depth < _DEPTH:
                self._light(value, depth + 1)
        elif issubclass(kind, types.ModuleType):
            space = vars(value)
            if depth < _DEPTH and str(space.get("__name__")).partition(".")[0] not in sys.stdlib_module_names:
                self._namespaces.add((id(namespace), name))
                for inner in [inner for inner in words if inner in space and inner != name]:
                    self._light_item(space, inner, space[inner], words, depth + 1)
        elif kind not in _PLAIN and kind is not types.BuiltinFunctionType:
            return
        self._namespaces.add((id(namespace), name))
        self._item(namespace, name, value)

    def _class(self, cls: type, where: str, *, by_name: bool) -> None:
        """Methods and class attributes of the person's own classes; of libraries' which they are."""
        if by_name:
            self._mentioned.add(("made", cls))
            if not is_own_class(cls) and not is_pure(cls.__module__):
                raise Opaque(f"{cls.__module__}.{cls.__name__}", "reads or changes more than its arguments")
            if cls is memoryview:
                raise Opaque("memoryview()", "reads memory that nobody compares")
        if cls in self._known_classes:
            return
        odd = self._known_classes[cls] = why_odd(cls)
        if odd is not None:
            raise Opaque(where, f"is of the class {cls.__name__}, {odd}")
        self.attributes.append((cls, "__mro__", cls.__mro__))
        is_module = issubclass(cls, torch.nn.Module)
        for base in cls.__mro__:
            if base is not object and base.__flags__ & (1 << 9) and base.__module__ not in ("typing", "enum", "abc"):
                self._class_namespace(base, cls, is_module)
        if isinstance(cls, abc.ABCMeta) and any(map(is_own_class, cls.__mro__)):
            self._watch(abc.get_cache_token)  # what was registered as a subclass

    def _class_namespace(self, base: type, cls: type, is_module: bool) -> None:
        """What stands in one class, which may be a base of others that were reached."""
        if (id(base), "") in self._namespaces:
            return
        self._namespaces.add((id(base), ""))
        own = is_own_class(base)
        space = vars(base)
        names = [name for name in space if name not in _CLASS_NOTES]
        if own:
            self._watch(functools.partial(_names_of, base))
        for name in names:
            value = space[name]
            self._item(space, name, value)
            if own:
                self._attribute_of_class(value, name, f"{cls.__name__}.{name}", base)
            elif type(value) is types.FunctionType:
                if is_followed(value.__code__) and value.__code__.co_filename[0] != "<":
                    self._pending.append((value, f"{cls.__name__}.{name}"))
                elif is_module and base is not torch.nn.Module:
                    self._light(value, 0)

    def _attribute_of_class(self, value: Any, name: str, where: str, base: type) -> None:
        if name in _WHEN_MADE:
            self._postponed.append((value, where, frozenset({("made", base), "__class__", "type"})))
        elif name in _SELDOM_CALLED or not name.startswith("__"):
            self._postponed.append((value, where, frozenset({name} if name != "forward" else {name, ("all",)})))
            if name == "forward":
                self._mentioned.add(("all",))
        else:
            self._pending.append((value, where))

    # -- containers and objects --------------------------------------------------------------------------------------

    def _dict(self, value: dict[Any, Any], where: str) -> None:
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
        factory = getattr(value, "default_factory", None) if isinstance(value, collections.defaultdict) else None
        if factory is not None:
            self._pending.append((factory, where))

    def _sequence(self, value: Any, where: str) -> None:
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
            if name in _OF_MODULES:
                self._pending.append((attributes[name], place))
            else:
                self._postponed.append((attributes[name], place, frozenset({name})))

    def _kind(self, value: Any, where: str) -> None:
        """The class of an object, and that it is the object's still."""
        self.objects.append(value)
        self._class(type(value), where, by_name=False)
        if is_watched(value):
            raise Opaque(where, "has a weak reference, which tells when it is gone")
        attributes = attributes_of(value)
        if attributes is not None:
            self._attributes_of(attributes, where, type(value))

    def _object(self, value: Any, where: str) -> None:
        self._kind(value, where)
        for base in type(value).__mro__:
            for name in slots_of(base):
                item = read(value, name, ABSENT)
                self.attributes.append((value, name, item))
                if item is not ABSENT:
                    self._pending.append((item, f"{where}.{name}"))

    def _attributes_of(self, attributes: dict[str, Any], where: str, cls: type) -> None:
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


def _names_of(cls: type) -> list[str]:
    return [name for name in vars(cls) if name not in _CLASS_NOTES]


@functools.lru_cache(maxsize=4096)
def _names_in(code: types.CodeType) -> frozenset[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return frozenset(code.co_names).union(*map(_names_in, inner))
