"""Surveys what the statements of a run work on, from the values that their names have: which may be part of a region.

Nothing runs here but look-ups in modules, classes and the attributes of `nn.Module`s. A statement that is left out runs
as written, in its place; one that is let in by mistake is refused by the region, as any code with effects is.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from ..rewrite.outlining import is_work
from ..runtime.guarding.structure import Unsupported, flatten
from ..tracing import is_own_code

_MISSING = object()
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_PURE = frozenset(
    getattr(builtins, name)
    for name in (
        *("abs", "all", "any", "bool", "dict", "divmod", "enumerate", "float", "getattr", "hasattr", "int"),
        *("isinstance", "issubclass", "len", "list", "max", "min", "pow", "range", "round", "slice", "sorted", "str"),
        *("sum", "tuple", "type", "zip"),
    )
)
OWNERS: tuple[type, ...] = (torch.optim.Optimizer, torch.amp.GradScaler)
"""Classes besides tensors and modules whose methods may be part of a region."""
_LEFT_OUT = frozenset({"save", "load", "manual_seed", "seed", "set_default_dtype", "set_num_threads", "synchronize"})
_SETTINGS = frozenset(
    {
        "train",
        "eval",
        "requires_grad_",
        "to",
        "cuda",
        "cpu",
        "half",
        "float",
        "double",
        "bfloat16",
        "zero_grad",
        "apply",
    }
    | {"load_state_dict", "state_dict", "register_buffer", "register_forward_hook", "register_forward_pre_hook"}
)
"""Methods of modules that change how they compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Consecutive statements of a run. `region`: they may become one."""

    statements: tuple[ast.stmt, ...]
    region: bool


def holds_tensors(value: object) -> bool:
    """True if this is an object of the person's or of a library's (a KV cache, a model output) with tensors in it, and
    nothing else whose state matters.
    """
    if type(value).__module__.split(".")[0] in ("torch", "builtins", "collections") or callable(value):
        return False
    try:
        return bool(flatten((value,), "it").leaves)
    except Unsupported:
        return False


class SurveyedValues:
    """Looks names up in a namespace as code in it would."""

    def __init__(self, namespace: Mapping[str, object]) -> None:
        self._namespace = namespace
        self._holders: dict[int, tuple[object, bool]] = {}

    def _is_holder(self, value: object) -> bool:
        if id(value) not in self._holders:
            self._holders[id(value)] = value, holds_tensors(value)
        return self._holders[id(value)][1]

    def value(self, node: ast.expr) -> object:
        """The value that a name or a chain of attributes stands for; `_MISSING` where that cannot be told without
        running.
        """
        if isinstance(node, ast.Name):
            value = self._namespace.get(node.id, _MISSING)
            return vars(builtins).get(node.id, _MISSING) if value is _MISSING else value
        if not isinstance(node, ast.Attribute):
            return _MISSING
        base = self.value(node.value)
        if isinstance(base, torch.Tensor):
            return getattr(torch.Tensor, node.attr, _MISSING)
        if isinstance(base, torch.nn.Module):
            for kind in ("_modules", "_parameters", "_buffers"):
                if node.attr in base.__dict__.get(kind, ()):
                    return base.__dict__[kind][node.attr]
            return base.__dict__.get(node.attr, getattr(type(base), node.attr, _MISSING))
        if isinstance(base, (types.ModuleType, type)):
            return getattr(base, node.attr, _MISSING)
        if isinstance(base, OWNERS):
            return getattr(type(base), node.attr, _MISSING)
        if self._is_holder(base):
            return getattr(base, "__dict__", {}).get(node.attr, inspect.getattr_static(type(base), node.attr, _MISSING))
        return _MISSING

    def may_join(self, statement: ast.stmt) -> bool:
        """True where the statement may be part of a region, as far as its values tell."""
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and not self._is_known(node):
                return False
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                written: object = self.value(node.value)
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                written = self.value(node.target)
            else:
                continue
            if not isinstance(written, (torch.Tensor, *_PLAIN)):
                return False
        return True

    def touches_tensors(self, statement: ast.stmt) -> bool:
        """True where the statement reads or makes a tensor, or calls what may."""
        for node in ast.walk(statement):
            if isinstance(node, ast.Name):
                if _is_tensorial(self.value(node)):
                    return True
            elif isinstance(node, ast.Call) and (_is_tensorial(self.value(node.func)) or self._is_of_missing(node)):
                return True
        return False

    def _is_of_missing(self, call: ast.Call) -> bool:
        """True where this calls a method that tensors have, of something that is not known (a name within a region)."""
        if not isinstance(call.func, ast.Attribute) or self.value(call.func) is not _MISSING:
            return False
        return self.value(call.func.value) is _MISSING and hasattr(torch.Tensor, call.func.attr)

    def picks(self, statement: ast.stmt, numbers: Collection[str]) -> bool:
        """True where the statement only takes an item of a list, tuple or dict, found by one of these numbers.

        In a region each number would be a key of its own; the item is what the next statements work on.
        """
        value = statement.value if isinstance(statement, ast.Assign) else None
        if not isinstance(value, ast.Subscript) or not isinstance(self.value(value.value), (list, tuple, dict)):
            return False
        read = {node.id for node in ast.walk(value.slice) if isinstance(node, ast.Name)}
        return not read.isdisjoint(numbers) and not any(isinstance(node, ast.Call) for node in ast.walk(value.slice))

    def _is_method_of_holder(self, func: ast.expr) -> bool:
        """``cache.reorder_cache``"""
        return isinstance(func, ast.Attribute) and self._is_holder(self.value(func.value))

    def _is_known(self, call: ast.Call) -> bool:
        """True where what is called works on tensors or plain values and has no effect that is known of."""
        callee = self.value(call.func)
        if callee is _MISSING:
            return self._is_of_missing(call)
        if isinstance(call.func, ast.Attribute):
            of_module = isinstance(self.value(call.func.value), torch.nn.Module)
            if call.func.attr in (_SETTINGS if of_module else _LEFT_OUT):
                return False
        if isinstance(callee, type):
            return callee in _PURE or (callee.__module__.startswith("torch") and hasattr(callee, "__enter__"))
        if isinstance(callee, torch.nn.Module):
            return True
        if isinstance(callee, types.FunctionType) and is_own_code(callee.__code__.co_filename):
            return True
        if isinstance(callee, types.FunctionType) and self._is_method_of_holder(call.func):
            return True
        if callee in _PURE if isinstance(callee, types.BuiltinFunctionType) else False:
            return True
        return _is_of_torch(callee) or getattr(callee, "__module__", None) == math.__name__


def _is_of_torch(value: object) -> bool:
    module = getattr(value, "__module__", None) or getattr(getattr(value, "__objclass__", None), "__module__", None)
    if not callable(value):
        return False
    return (isinstance(module, str) and module.split(".")[0] == "torch") or _belongs_to_tensor(value)


def _belongs_to_tensor(value: object) -> bool:
    owner = getattr(value, "__objclass__", None) or getattr(value, "__self__", None)
    return isinstance(owner, type) and issubclass(torch.Tensor, owner)


def _is_tensorial(value: object) -> bool:
    """A tensor, a module, a few of them in a container, a function of torch's or of the person's."""
    if isinstance(value, (torch.Tensor, torch.nn.Module)):
        return True
    if isinstance(value, types.FunctionType) and is_own_code(value.__code__.co_filename):
        return True
    if isinstance(value, (list, tuple)):
        return any(isinstance(item, (torch.Tensor, torch.nn.Module)) for item in value[:8])
    return not isinstance(value, (types.ModuleType, type)) and value is not _MISSING and _is_of_torch(value)


def divide(
    statements: Sequence[ast.stmt], surveyed: SurveyedValues, apart: Callable[[ast.stmt], bool]
) -> list[Segment]:
    """The statements in order, in segments; those that `apart` names are in no region."""
    joins = [surveyed.may_join(item) and not apart(item) for item in statements]
    touches = [surveyed.touches_tensors(item) for item in statements]
    segments: list[Segment] = []
    pending: list[int] = []

    def add(indices: Sequence[int], region: bool) -> None:
        if not indices:
            return
        items = tuple(statements[i] for i in indices)
        if not region and segments and not segments[-1].region:
            items = (*segments.pop().statements, *items)
        segments.append(Segment(statements=items, region=region))

    def close() -> None:
        inner = [i for i in pending if touches[i]]
        if not inner:
            add(pending, False)
        else:
            first, last = pending.index(inner[0]), pending.index(inner[-1]) + 1
            add(pending[:first], False)
            add(pending[first:last], is_work([statements[i] for i in pending[first:last]]))
            add(pending[last:], False)
        pending.clear()

    for index in range(len(statements)):
        if joins[index]:
            pending.append(index)
        else:
            close()
            add([index], False)
    close()
    return segments


def called_functions(statement: ast.stmt, surveyed: SurveyedValues) -> list[types.CodeType]:
    """The code of the person's functions that the statement calls by name."""
    found = []
    for node in ast.walk(statement):
        if isinstance(node, ast.Call):
            value = surveyed.value(node.func)
            if isinstance(value, torch.nn.Module):
                value = type(value).forward
            if isinstance(value, types.FunctionType):
                found.append(value.__code__)
    return found
