"""Does code start processes that do its work? Told from names: whoever asks must not touch a device, which children
that are forked off could not use any more.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from types import CodeType, FunctionType

from ..quiet import without_warnings

__all__ = ["starts_processes"]

_STARTERS = frozenset({"notebook_launcher", "debug_launcher", "start_processes", "elastic_launch"})
_SPAWN = "spawn"
"""Generators of random numbers have such a method as well."""
_ITS_MODULES = frozenset({"mp", "multiprocessing"})
_MOST_STEPS = 4
_OF_THE_SHELL = re.compile(r"^(\s*)[%!?].*$", re.MULTILINE)


def starts_processes(source: str, namespace: Mapping[str, object]) -> bool:
    """True where `source` calls a launcher, itself or through functions of `namespace`. A source that cannot be parsed
    calls nothing.
    """
    try:
        with without_warnings():
            tree = ast.parse(_OF_THE_SHELL.sub(r"\1pass", source))
    except (SyntaxError, ValueError):
        return False
    nodes = list(ast.walk(tree))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    given = {name.asname or name.name: f"{node.module}.{name.name}" for node in imports for name in node.names}
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    if any(_is_starter(function, given, namespace) for function in called):
        return True
    return _reaches({one.id for one in called if isinstance(one, ast.Name)}, namespace, _MOST_STEPS)


def _is_starter(function: ast.expr, given: Mapping[str, str], namespace: Mapping[str, object]) -> bool:
    name = _last_name(function)
    if name != _SPAWN:
        return name in _STARTERS or given.get(name, "").rpartition(".")[2] in _STARTERS
    if isinstance(function, ast.Attribute):
        return _last_name(function.value) in _ITS_MODULES
    return _is_of_multiprocessing(given.get(name) or _module_of(namespace.get(name)))


def _is_of_multiprocessing(module: object) -> bool:
    return str(module).startswith("torch.multiprocessing")


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _reaches(names: Collection[str], namespace: Mapping[str, object], steps: int) -> bool:
    """Through functions that live in `namespace`; those of libraries are left alone."""
    for name in names:
        function = namespace.get(name)
        if not isinstance(function, FunctionType) or function.__globals__ is not namespace:
            continue
        used = _names(function.__code__)
        spawns = _SPAWN in used and (used & _ITS_MODULES or _is_of_multiprocessing(_module_of(namespace.get(_SPAWN))))
        if used & _STARTERS or spawns or (steps > 1 and _reaches(used - {name}, namespace, steps - 1)):
            return True
    return False


def _module_of(value: object) -> object:
    return getattr(value, "__module__", "")


def _names(code: CodeType) -> set[str]:
    return {*code.co_names}.union(*(_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)))
