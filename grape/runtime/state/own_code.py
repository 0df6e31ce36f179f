"""Which code, modules and classes are the person's own, and what such code mentions by name."""

from __future__ import annotations

import dis
import sys
import types
from typing import Any

from ...tracing import is_own_code

__all__ = ["ANY_NAME", "is_followed", "is_own_class", "is_own_module", "names_in", "reads_any_name"]

_GLOBAL_INSTRUCTIONS = frozenset(
    {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_GLOBAL", "DELETE_GLOBAL"}
)


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


ANY_NAME = frozenset({"globals", "eval", "exec"})
"""Builtin functions by which code reads names that it does not mention."""


def reads_any_name(code: types.CodeType, namespace: dict[str, Any]) -> str | None:
    """Which of `globals`, `eval` and `exec` the code calls, nested code included, if one; `namespace` has its globals.

    Grape's own rewrites call ``_flow.names(globals(), ...)`` with names that the code beside it mentions; that is none.
    """
    owner = attribute = ""
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if not instruction.opname.startswith("LOAD_") or not isinstance(name, str):
            continue
        if name in ANY_NAME and instruction.opname in _GLOBAL_INSTRUCTIONS and name not in namespace:
            module = getattr(namespace.get(owner), "__name__", "")
            if (name, attribute) != ("globals", "names") or not str(module).startswith("grape."):
                return name
        owner, attribute = attribute, name
    nested = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return next((found for one in nested if (found := reads_any_name(one, namespace)) is not None), None)


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
