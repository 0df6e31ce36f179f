"""Does code start processes that do its work, how, and is that for a device? Told from names: whoever asks must not
touch one, which children that are forked off could not use any more.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Collection, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Literal

from ..quiet import syntax_tree

Starts = Literal["fork", "spawn"]
"""Children that are forked off need a parent that has used no device; those that are spawned are new."""

_LAUNCHERS = frozenset({"notebook_launcher", "debug_launcher", "elastic_launch"})
_ALONE = "notebook_launcher"
"""It runs one process in the notebook's own."""
_START = "start_processes"
_SPAWN = "spawn"
"""Generators of random numbers have such a method as well."""
_ITS_MODULES = frozenset({"mp", "multiprocessing"})
_OF_RANKS = frozenset(
    {"init_process_group", "Accelerator", "Fabric", "Trainer", "DistributedDataParallel", "DDP", "fully_shard", "FSDP"}
)
_OF_DEVICES = frozenset({"cuda", "nccl", "device", "set_device"})
_MOST_STEPS = 4
_OF_THE_SHELL = re.compile(r"^(\s*)[%!?].*$", re.MULTILINE)


def starts_processes(source: str, namespace: Mapping[str, object]) -> Starts | None:
    """How `source` starts processes, itself or through functions of `namespace`; None where it does not, or cannot be
    parsed.
    """
    called, given = _calls(source)
    found = {_by_call(call, given, namespace) for call in called}
    names = {call.func.id for call in called if isinstance(call.func, ast.Name)}
    if "fork" in found or _reaches(names, namespace, _MOST_STEPS, lambda used: _by_names(used, namespace) == "fork"):
        return "fork"
    if "spawn" in found or _reaches(names, namespace, _MOST_STEPS, lambda used: _by_names(used, namespace) is not None):
        return "spawn"
    return None


@functools.lru_cache(maxsize=16)
def _calls(source: str) -> tuple[list[ast.Call], dict[str, str]]:
    """The calls in `source`, and the names that it imports from modules, with what they stand for."""
    tree = syntax_tree(_OF_THE_SHELL.sub(r"\1pass", source))
    nodes = list(ast.walk(tree)) if tree is not None else []
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    given = {name.asname or name.name: f"{node.module}.{name.name}" for node in imports for name in node.names}
    return [node for node in nodes if isinstance(node, ast.Call)], given


def _by_call(call: ast.Call, given: Mapping[str, str], namespace: Mapping[str, object]) -> Starts | None:
    name = _last_name(call.func)
    known = given.get(name) or f"{_module_of(namespace.get(name))}.{name}"
    if name == _SPAWN:
        of_torch = isinstance(call.func, ast.Attribute) and _last_name(call.func.value) in _ITS_MODULES
        return "spawn" if of_torch or known.startswith("torch.multiprocessing") else None
    name = known.rpartition(".")[2] if name in given else name
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if name == _START:
        method = keywords.get("start_method")
        spawned = method is None or (isinstance(method, ast.Constant) and method.value != "fork")
        return "spawn" if spawned else "fork"
    alone = name == _ALONE and _is_one(keywords.get("num_processes"), namespace)
    return "fork" if name in _LAUNCHERS and not alone else None


def _is_one(number: ast.expr | None, namespace: Mapping[str, object]) -> bool:
    if isinstance(number, ast.Constant):
        return number.value == 1
    return isinstance(number, ast.Name) and namespace.get(number.id) == 1


def _by_names(used: Collection[str], namespace: Mapping[str, object]) -> Starts | None:
    """How a function with these names starts processes."""
    if any(name in used for name in _LAUNCHERS) or (_START in used and "fork" in used):
        return "fork"
    of_torch = any(name in used for name in _ITS_MODULES) or _module_of(namespace.get(_SPAWN)).startswith("torch.multi")
    return "spawn" if _START in used or (_SPAWN in used and of_torch) else None


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
    if not isinstance(function, FunctionType) or _module_of(function).partition(".")[0] == "torch":
        return True
    used = _names(function.__code__)
    return bool(used & wanted) or _reaches(used, function.__globals__, _MOST_STEPS, lambda names: bool(names & wanted))


def _reaches(
    names: Collection[str], namespace: Mapping[str, object], steps: int, wanted: Callable[[set[str]], bool]
) -> bool:
    """True where the names in a function of `namespace` are `wanted` that `names` lead to; libraries are left alone."""
    for name in names:
        function = namespace.get(name)
        if type(function) is not FunctionType or function.__globals__ is not namespace:  # asks nothing of other objects
            continue
        used = _names(function.__code__)
        if wanted(used) or (steps > 1 and _reaches(used - {name}, namespace, steps - 1, wanted)):
            return True
    return False


def _module_of(value: object) -> str:
    """Of a function or a class. An object of the person's would be asked for its attribute."""
    return str(getattr(value, "__module__", "")) if type(value) in (FunctionType, BuiltinFunctionType, type) else ""


def _names(code: CodeType) -> set[str]:
    """Names, keywords, and texts that could be a name (a device, a backend), of a code and of those inside it."""
    found = {*code.co_names, *code.co_varnames}
    for const in code.co_consts:
        if isinstance(const, CodeType):
            found |= _names(const)
        parts = const if isinstance(const, tuple) else (const,)
        found.update(part.partition(":")[0] for part in parts if isinstance(part, str))
    return found
