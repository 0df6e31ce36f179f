"""Does code start processes that do its work, and is that for a device? Told from names: whoever asks must not touch
one, which children that are forked off could not use any more.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Mapping
from types import CodeType, FunctionType

from ..quiet import without_warnings

__all__ = ["may_be_a_rank", "starts_processes"]

_STARTERS = frozenset({"notebook_launcher", "debug_launcher", "start_processes", "elastic_launch"})
_SPAWN = "spawn"
"""Generators of random numbers have such a method as well."""
_ITS_MODULES = frozenset({"mp", "multiprocessing"})
_OF_RANKS = frozenset(
    {"init_process_group", "Accelerator", "Fabric", "Trainer", "DistributedDataParallel", "DDP", "fully_shard", "FSDP"}
)
_OF_DEVICES = frozenset({"cuda", "nccl", "device", "set_device"})
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
    names = {one.id for one in called if isinstance(one, ast.Name)}
    return _reaches(names, namespace, _MOST_STEPS, _spawns(namespace))


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


def may_be_a_rank(function: object) -> bool:
    """True where `function`, which a process is started for, names a process group or a device, itself or through
    functions of its module; also where it is no plain function. One of many workers that do neither would only take
    memory of the device.
    """
    wanted = _OF_RANKS | _OF_DEVICES
    if not isinstance(function, FunctionType) or str(function.__module__).partition(".")[0] == "torch":
        return True
    used = _names(function.__code__)
    return bool(used & wanted) or _reaches(used, function.__globals__, _MOST_STEPS, lambda names: bool(names & wanted))


def _spawns(namespace: Mapping[str, object]) -> Callable[[set[str]], bool]:
    of_its_own = _is_of_multiprocessing(_module_of(namespace.get(_SPAWN)))
    return lambda names: bool(names & _STARTERS or (_SPAWN in names and (names & _ITS_MODULES or of_its_own)))


def _reaches(
    names: Collection[str], namespace: Mapping[str, object], steps: int, wanted: Callable[[set[str]], bool]
) -> bool:
    """True where the names in a function of `namespace` are `wanted` that `names` lead to; libraries are left alone."""
    for name in names:
        function = namespace.get(name)
        if not isinstance(function, FunctionType) or function.__globals__ is not namespace:
            continue
        used = _names(function.__code__)
        if wanted(used) or (steps > 1 and _reaches(used - {name}, namespace, steps - 1, wanted)):
            return True
    return False


def _module_of(value: object) -> object:
    return getattr(value, "__module__", "")


def _names(code: CodeType) -> set[str]:
    """Names, keywords, and texts that could be a name (a device, a backend), of a code and of those inside it."""
    found = {*code.co_names, *code.co_varnames}
    for const in code.co_consts:
        if isinstance(const, CodeType):
            found |= _names(const)
        parts = const if isinstance(const, tuple) else (const,)
        found.update(part.partition(":")[0] for part in parts if isinstance(part, str))
    return found
