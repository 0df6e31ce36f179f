"""Finds what code can read by name: globals, imports, attributes of modules and of classes, the person's and
libraries'.
"""

from __future__ import annotations

import abc
import contextvars
import copyreg
import functools
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...model import Reason
from . import tables
from .classes import is_a, why_odd
from .contents import contents_of_set, read
from .libraries import INTROSPECTION, is_pure
from .namespaces import Item
from .own_code import FORMATS, is_followed, is_own_class
from .tables import PLAIN

ABSENT = object()
"""Stands for the value of a name that is not defined, or of an attribute that is not set."""
CALLABLES = (types.FunctionType, types.MethodType, functools.partial)
_CLASS_NOTES = frozenset(
    [
        "__dict__",
        "__weakref__",
        "__doc__",
        "__module__",
        "__annotations__",
        "_abc_impl",
        "__parameters__",
        "__orig_bases__",
        "__firstlineno__",
        "__static_attributes__",
        "__annotations_cache__",
        "__slotnames__",
        "__dataclass_fields__",
        "__dataclass_params__",
    ]
)
_WHEN_MADE = frozenset({"__init__", "__new__", "__post_init__", "__init_subclass__", "__class_getitem__"})
BY_SYNTAX = frozenset({"__hash__", "__repr__", "__str__", "__format__"})
"""Methods that nobody gets by a name that is put together, as ``getattr(self, name)`` gets others."""
_SHOWS = frozenset({"__repr__", "__str__", "__format__", "str", "repr", "format", "print", FORMATS})
_SELDOM_CALLED = BY_SYNTAX | {"__reduce__", "__getstate__", "__setstate__"}
_CALLED_BY_TORCH = frozenset({"forward", "backward", "setup_context", "jvp", "vmap"})
METHOD = ("a method",)
"""Among the names of a method: it is not looked into where none of them is mentioned."""
_DEPTH = 3
"""So far the names in functions of libraries are followed."""


CODE = "the code"
"""Where nothing else has a name."""


def a(kind: type) -> str:
    """The name of a class behind its article."""
    return f"{'an' if kind.__name__[:1].lower() in 'aeiou' else 'a'} `{kind.__name__}`"


class TooLarge(Exception):
    """The callable reaches more state than can be guarded at a bounded cost. `where` names what it was reached by."""

    reason = Reason.STATE_SIZE

    def __init__(self, where: str, why: str = "holds more state than can be guarded") -> None:
        named = where if where.startswith("`") or where in ("", CODE) else f"`{where}`"
        super().__init__(f"{named} {why}".lstrip())
        self.where = where


class Opaque(TooLarge):
    """The callable reaches something whose state nobody can compare, or that reads or changes more than its own."""

    reason = Reason.OPAQUE


class Names:
    """The part of a walk that follows names. Values go to `_pending`, with their places.

    `_postponed` are values with their places and the names of which one must be mentioned for the value to be read.
    """

    def __init__(self, roots: tuple[object, ...]) -> None:
        self.items: list[Item] = []
        self.attributes: list[tuple[object, str, object]] = []
        self.codes: list[tuple[types.FunctionType, types.CodeType]] = []
        self.states: list[tuple[Callable[[], object], object]] = []
        self._global_names: dict[int, list[tuple[int, str]]] = {}
        self._mentioned: set[object] = set()
        self._known_classes: dict[type, str | None] = {}
        self._namespaces: set[tuple[int, str]] = set()
        self._lit: set[types.CodeType] = set()
        self._said_by_libraries: set[object] = {"keys"}  # and by Python itself, for ``{**settings}``
        self._tables: dict[int, dict[Any, Any]] = {}
        self.settings: list[Item] = []
        """Of libraries, which may make them when they are first called: nobody puts them back."""
        self._roots = roots
        self._pending: list[tuple[object, str]] = []
        self._postponed: list[tuple[object, str, frozenset[object]]] = []

    def _watch(self, state: Callable[[], object]) -> None:
        self.states.append((state, state()))

    def _of_library(self, function: types.FunctionType, where: str) -> None:
        """Follow what a library's function was made around: with `@torch.no_grad()` that is the person's own code."""
        if not is_pure(function.__module__) or function.__name__ in INTROSPECTION:
            raise Opaque(f"{function.__module__}.{function.__name__}()", "reads or changes more than its arguments")
        if function.__module__ == "copy":  # of a class in C, or of the person's, it may be told how
            self._table(copyreg.dispatch_table, where)
        for cell in function.__closure__ or ():
            contents = read(cell, "cell_contents", None)
            kind = type(contents)
            if kind in CALLABLES or issubclass(kind, torch.nn.Module) or is_own_class(kind):
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
        self._said_by_libraries |= words
        said = words, tables.keys_in(code)
        for value in (function, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            if type(value) not in PLAIN:
                self._kept(value, code.co_name, said)
        if words & tables.ENVIRONMENT:
            self.settings += tables.variables(said[1], ABSENT)
        for name in words:
            value = namespace.get(name, ABSENT)
            if value is not ABSENT:
                self._light_item(namespace, name, value, said, depth)

    def _light_item(
        self,
        namespace: Mapping[str, object],
        name: str,
        value: object,
        said: tuple[frozenset[str], frozenset[str]],
        depth: int,
    ) -> None:
        if (id(namespace), name) in self._namespaces:
            return
        kind = type(value)
        if is_a(value, types.FunctionType):
            if is_followed(value.__code__):
                self._pending.append((value, name))
            elif depth < _DEPTH:
                self._light(value, depth + 1)
        elif is_a(value, types.ModuleType):
            space = vars(value)
            if depth < _DEPTH and str(space.get("__name__")).partition(".")[0] not in sys.stdlib_module_names:
                self._namespaces.add((id(namespace), name))
                for inner in [inner for inner in said[0] if inner in space and inner != name]:
                    self._light_item(space, inner, space[inner], said, depth + 1)
        elif kind not in PLAIN and kind is not types.BuiltinFunctionType and not self._kept(value, name, said):
            return
        self._namespaces.add((id(namespace), name))
        self.items.append((namespace, name, value))

    def _kept(self, value: object, name: str, said: tuple[frozenset[str], frozenset[str]]) -> bool:
        """What a library keeps its settings in. True where the name may be compared as well."""
        if tables.is_table(value):
            self._table(value, name)
            return True
        self.settings += tables.settings_of(value, *said, ABSENT)
        if type(value) is contextvars.ContextVar:
            self._watch(functools.partial(tables.value_in_context, value))
        for table in tables.tables_of(value):
            self._table(table, name)
        if not tables.is_short_list(value):
            return type(value) is tuple
        if (id(value), "") not in self._namespaces:  # which several modules may have
            self._namespaces.add((id(value), ""))
            self._watch(functools.partial(list if tables.is_of_words(value) else contents_of_set, value))
        return True

    def _table(self, table: dict[Any, Any], where: str) -> None:
        """A library's, to which others may add: that nobody did, and what the person's functions in it read."""
        self._tables[id(table)] = table
        self._pending += [(one, where) for one in tables.own_functions_in(table)]

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
            raise Opaque(where, f"is of the class `{cls.__name__}`, {odd}")
        self.attributes.append((cls, "__mro__", cls.__mro__))
        is_module = issubclass(cls, torch.nn.Module)
        for base in cls.__mro__:
            if base is not object and base.__flags__ & (1 << 9) and base.__module__ not in ("typing", "enum", "abc"):
                self._class_namespace(base, cls, is_module)
        if isinstance(cls, abc.ABCMeta) and any(map(is_own_class, cls.__mro__)):
            self._watch(abc.get_cache_token)  # what was registered as a subclass

    def _class_namespace(self, base: type, cls: type, is_module: bool) -> None:
        """Follow what stands in one class, which may be a base of others that were reached."""
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
            if base is not torch.nn.Module:  # which is watched as a whole, without what Grape puts there for a while
                self.items.append((space, name, value))
            if own:
                self._attribute_of_class(value, name, f"{cls.__name__}.{name}", base)
            elif type(method := tables.function_of(value)) is types.FunctionType:
                if is_followed(method.__code__) and method.__code__.co_filename[0] != "<":
                    self._pending.append((method, f"{cls.__name__}.{name}"))
                elif base is not torch.nn.Module:
                    self._light(method, 0)
            elif is_module and tables.is_table(value) and base is not torch.nn.Module:
                self._table(value, f"{cls.__name__}.{name}")
            elif is_module and type(value) is property and type(value.fget) is types.FunctionType:
                self._pending.append((value.fget, f"{cls.__name__}.{name}"))

    def _attribute_of_class(self, value: object, name: str, where: str, base: type) -> None:
        if name in _WHEN_MADE:
            self._postponed.append((value, where, frozenset({("made", base), "__class__", "type"})))
        elif name in _SELDOM_CALLED or not name.startswith("__"):
            if name in _CALLED_BY_TORCH:
                self._pending.append((value, where))
            else:
                called = hasattr(torch.nn.Module, name) or not all(map(_is_own_or_module, base.__mro__))
                names = _SHOWS if name in _SHOWS else {name} if called or name in BY_SYNTAX else {name, METHOD}
                self._postponed.append((value, where, frozenset(names)))
        else:
            self._pending.append((value, where))


def _is_own_or_module(cls: type) -> bool:
    """True where nobody but the person, and `nn.Module` those that it has itself, calls methods of a class."""
    return cls in (object, torch.nn.Module, abc.ABC) or is_own_class(cls)


def _names_of(cls: type) -> list[str]:
    """Of its attributes, and of its fields where it is a dataclass, which `dataclasses.fields` and its like read."""
    return [*(name for name in vars(cls) if name not in _CLASS_NOTES), *vars(cls).get("__dataclass_fields__", ())]


@functools.lru_cache(maxsize=4096)
def _names_in(code: types.CodeType) -> frozenset[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return frozenset(code.co_names).union(*map(_names_in, inner))
