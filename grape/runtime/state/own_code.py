"""Which code, modules and classes are the person's own, and what such code mentions by name."""

from __future__ import annotations

import dis
import sys
import types

from ...tracing import is_own_code

__all__ = ["is_followed", "is_own_class", "is_own_module", "names_in"]

_GLOBAL_INSTRUCTIONS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})


def is_followed(code: types.CodeType) -> bool:
    """True for the person's own code, that of a REPL or of `exec` included."""
    name = code.co_filename
    return is_own_code(name) or (name.startswith("<") and not name.startswith("<frozen"))


def is_own_module(module: types.ModuleType | None) -> bool:
    """True for the notebook and for modules that the person wrote."""
    if module is None:
        return False
    file = getattr(module, "__file__", None)
    return module.__name__ == "__main__" or (isinstance(file, str) and is_own_code(file))


def is_own_class(cls: type) -> bool:
    """True for a class of the person's, wherever it says that it was made."""
    if is_own_module(sys.modules.get(cls.__module__)):
        return True
    methods = (f for f in vars(cls).values() if isinstance(f, types.FunctionType))
    return any(is_own_code(method.__code__.co_filename) for method in methods)


_mentioned: dict[int, tuple[types.CodeType, frozenset[str], frozenset[str]]] = {}


def names_in(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The globals that a code object mentions, and all names in it, attributes included; nested code too."""
    known = _mentioned.get(id(code))
    if known is None:
        instructions = dis.get_instructions(code)
        names = {i.argval for i in instructions if i.opname in _GLOBAL_INSTRUCTIONS}
        every = set(code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                inner = names_in(constant)
                names |= inner[0]
                every |= inner[1]
        known = _mentioned[id(code)] = (code, frozenset(names), frozenset(every))
    return known[1:]
