"""Follows what functions of the person's mention: globals, closures, imports, attributes of modules."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterable

from ..dispatch.trampoline import written_code
from .classes import is_a
from .contents import attribute_names
from .libraries import BUILTINS, INTROSPECTION, READS_ALL, is_pure, why_not
from .names import ABSENT, Names, Opaque, TooLarge
from .own_code import ANY_NAME, is_followed, is_own_module, mentioned_in, reads_any_name


class Mentions(Names):
    """The part of a walk that follows code.

    `_handed` are modules that code may hand on as a whole, so that others read them, and what was followed of each.
    """

    def __init__(self, roots: tuple[object, ...]) -> None:
        super().__init__(roots)
        self._handed: dict[int, tuple[types.ModuleType, set[object]]] = {}

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
                self.attributes.append((cell, "cell_contents", ABSENT))
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
        self._mention(mentioned.words)
        for name in mentioned.imports:
            module = sys.modules.get(name, ABSENT)
            self.items.append((sys.modules, name, module))
            if isinstance(module, types.ModuleType):
                self._imported(module, mentioned.words, mentioned.of(name), {id(module)})
                if is_own_module(module):
                    self._hand_on(module)
        builtins = vars(sys.modules["builtins"])
        for name in filter(str.isidentifier, mentioned.globals):  # others were put there by a tool that instruments
            value = namespace.get(name, ABSENT)
            self.items.append((namespace, name, value))
            if value is ABSENT:
                value = builtins.get(name, ABSENT)
                self.items.append((builtins, name, value))
            if is_a(value, types.ModuleType):
                self._imported(value, mentioned.words, mentioned.of(name), {id(value)})
                if mentioned.chains.get(name) is None:
                    self._hand_on(value)
            elif value is not ABSENT:
                if type(value) is types.FunctionType:
                    self._global_names.setdefault(id(value), []).append((id(namespace), name))
                self._pending.append((value, name))

    def _mention(self, words: Iterable[str]) -> None:
        hidden = INTROSPECTION.intersection(words)
        if hidden:
            raise Opaque(f"`{min(hidden)}`", "is read, which nobody compares")
        self._mentioned.update(words)

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
        if own:
            self.attributes.append((module, "__class__", types.ModuleType))
        self._not_there(space, used or frozenset(), own)

    def _not_there(self, space: dict[str, object], used: frozenset[str], own: bool) -> None:
        """What code reads of a module that does not have it. The person's may make attributes when it is asked."""
        missing = used - space.keys()
        self.items += [(space, name, ABSENT) for name in sorted(missing)]
        if own and missing:
            self.items.append((space, "__getattr__", space.get("__getattr__", ABSENT)))
            self._pending.append((space.get("__getattr__"), f"{space.get('__name__')}.__getattr__"))

    def _hand_on(self, module: types.ModuleType) -> None:
        self._handed.setdefault(id(module), (module, set()))

    def _follow_handed(self) -> bool:
        """Follow what code anywhere can read of modules that were handed on; False where nothing new was found."""
        found = False
        for module, known in list(self._handed.values()):
            new = {word for word in self._mentioned - known if isinstance(word, str)}
            known |= self._mentioned
            if new and (not new.isdisjoint(vars(module)) or is_own_module(module)):
                self._imported(module, frozenset(new), frozenset(new) if is_own_module(module) else None, {id(module)})
                found = True
        return found

    def _builtin(self, value: object, where: str) -> None:
        """A function in C, or a method in C of some object."""
        owner, name = getattr(value, "__self__", None), getattr(value, "__name__", "")
        if owner is not None and not issubclass(type(owner), (type, types.ModuleType)):
            self._pending.append((owner, where))
            return
        module = getattr(value, "__module__", None)
        if name in READS_ALL:  # under whatever name
            self._mentioned.add(name)
        if module == "builtins" and name in BUILTINS and not (name == where and name in ANY_NAME):
            raise Opaque(f"{name}()", "reads or changes more than its arguments")
        if not is_pure(module):
            raise Opaque(f"{module}.{name}()", "reads or changes more than its arguments")
