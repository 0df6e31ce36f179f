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
from ..dispatch.trampoline import written_code
from . import tables
from .classes import is_a, why_odd
from .contents import attribute_names, contents_of_set, read
from .libraries import INTROSPECTION, READS_ALL, is_pure, why_not
from .namespaces import Item
from .own_code import ANY_NAME, is_followed, is_own_class, is_own_module, mentioned_in, reads_any_name
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
        self._tables: dict[int, dict[Any, Any]] = {}
        self.settings: list[Item] = []
        """Of libraries, which may make them when they are first called: nobody puts them back."""
        self._roots = roots
        self._pending: list[tuple[object, str]] = []
        self._postponed: list[tuple[object, str, frozenset[object]]] = []

    def _watch(self, state: Callable[[], object]) -> None:
        self.states.append((state, state()))

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

    def _names(self, code: types.CodeType, namespace: dict[str, object]) -> None:
        """Follow what code of the person's mentions."""
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
            self.items.append((sys.modules, name, module))
            if isinstance(module, types.ModuleType):
                self._imported(module, mentioned.words, mentioned.of(name), {id(module)})
        builtins = vars(sys.modules["builtins"])
        for name in filter(str.isidentifier, mentioned.globals):  # others were put there by a tool that instruments
            value = namespace.get(name, ABSENT)
            self.items.append((namespace, name, value))
            if value is ABSENT:
                value = builtins.get(name, ABSENT)
                self.items.append((builtins, name, value))
            if is_a(value, types.ModuleType):
                self._imported(value, mentioned.words, mentioned.of(name), {id(value)})
            elif value is not ABSENT:
                if type(value) is types.FunctionType:
                    self._global_names.setdefault(id(value), []).append((id(namespace), name))
                self._pending.append((value, name))

    def _imported(
        self, module: types.ModuleType, names: frozenset[str], used: frozenset[str] | None, above: set[int]
    ) -> None:
        """Follow what code that mentions these names can read from an imported module (``config.SCALE``); of which
        `used` are those that it can read of the module, and not only of something else (``self.load`` is no
        ``torch.load``); None where it reads nothing of this module.
        """
        space = vars(module)
        own = is_own_module(module)
        checked = not own and not str(space.get("__name__")).startswith("grape.")
        denied = why_not(module, used) if checked and used is not None else None
        if denied is not None:
            raise Opaque(f"`{denied}`", "reads or changes more than its arguments")
        wanted = names if not own or not names & READS_ALL else names | space.keys()
        for name in [name for name in wanted if name in space]:  # a library may have thousands
            value = space[name]
            self.items.append((space, name, value))
            if is_a(value, types.ModuleType):
                if id(value) not in above:
                    above.add(id(value))
                    self._imported(value, names, used if used and name in used else None, above)
            else:
                self._pending.append((value, f"{space.get('__name__')}.{name}"))

    def _of_library(self, function: types.FunctionType, where: str) -> None:
        """Follow what a library's function was made around: with `@torch.no_grad()` that is the person's own code."""
        if not is_pure(function.__module__) or function.__name__ in INTROSPECTION:
            raise Opaque(f"{function.__module__}.{function.__name__}()", "reads or changes more than its arguments")
        if function.__module__ == "copy":  # of a class in C, or of the person's, it may be told how
            self._table(copyreg.dispatch_table, where)
        for cell in function.__closure__ or ():
            contents = read(cell, "cell_contents", None)
            if type(contents) in CALLABLES:
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
                uncalled = {METHOD} if all(map(_is_own_or_module, base.__mro__)) else set()
                self._postponed.append((value, where, frozenset({name, *uncalled})))
        else:
            self._pending.append((value, where))


def _is_own_or_module(cls: type) -> bool:
    """True where nobody but the person, and `nn.Module`, calls methods of a class."""
    return cls in (object, torch.nn.Module, abc.ABC) or is_own_class(cls)


def _names_of(cls: type) -> list[str]:
    """Of its attributes, and of its fields where it is a dataclass, which `dataclasses.fields` and its like read."""
    return [*(name for name in vars(cls) if name not in _CLASS_NOTES), *vars(cls).get("__dataclass_fields__", ())]


@functools.lru_cache(maxsize=4096)
def _names_in(code: types.CodeType) -> frozenset[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return frozenset(code.co_names).union(*map(_names_in, inner))
