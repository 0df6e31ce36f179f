"""Which functions of a namespace are the person's own and may become regions, and where `torch.compile` is at work."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ...tracing import is_own_code
from ..state.classes import is_a

_ASYNC = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def compiles(namespace: Mapping[str, object]) -> bool:
    """True where a function, a method or a module in `namespace` goes through `torch.compile`."""
    for value in list(namespace.values()):
        is_class = is_a(value, type) and value.__module__ == "__main__"
        for member in list(vars(value).values()) if is_class else [value]:
            if is_a(member, types.FunctionType) and "_torchdynamo_orig_callable" in member.__dict__:
                return True
            if is_a(member, torch.nn.Module) and is_compiled(member):
                return True
    return False


def is_compiled(module: torch.nn.Module) -> bool:
    """True where calls of the module go through `torch.compile`."""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def call_in_their_own_way() -> bool:
    """True where there is a class of modules, other than torch's, that brings a `__call__`."""
    classes, known = [torch.nn.Module], {torch.nn.Module}
    for one in classes:
        new = [sub for sub in type.__subclasses__(one) if sub not in known]
        if any("__call__" in vars(sub) and not sub.__module__.startswith("torch.") for sub in new):
            return True
        known.update(new)
        classes += new
    return False


def call_by(one: object, other: Any, holds: Callable[[], object]) -> None:
    """Have modules called by `other` where they are called by `one`, as long as it `holds`. As the compiler takes up a
    frame, what it makes of a call, and what that is guarded by, depends on `nn.Module.__call__` being torch's.
    """
    if holds() and torch.nn.Module.__call__ is one:
        torch.nn.Module.__call__ = other  # type: ignore[method-assign]


def tell_plain_call(patch: object, original: object, compiler: types.ModuleType) -> None:
    """The compiler was imported beside the patch, as a new optimizer has it: for good it would take the patch for what
    torch calls modules by, and each module for one whose call somebody replaced.
    """
    if getattr(compiler, "unpatched_nn_module_call", None) is patch:
        compiler.unpatched_nn_module_call = original  # type: ignore[attr-defined]


def last_line(code: types.CodeType) -> int:
    lines = [line for _, _, line in code.co_lines() if line is not None]
    nested = [last_line(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return max([code.co_firstlineno, *lines, *nested])


def candidates(namespace: Mapping[str, object]) -> Iterator[types.FunctionType]:
    """The functions in `namespace` that the person wrote, and methods of their classes."""
    for value in list(namespace.values()):
        if is_a(value, types.FunctionType):
            if _is_candidate(value):
                yield value
        elif is_a(value, type) and value.__module__ == "__main__":
            for name, member in list(vars(value).items()):
                hidden = name.startswith("__") and name != "__call__"
                forward = name in ("forward", "__call__") and issubclass(value, torch.nn.Module)
                if isinstance(member, types.FunctionType) and not hidden and not forward and _is_candidate(member):
                    yield member


def _is_candidate(function: types.FunctionType) -> bool:
    code = function.__code__
    return (
        is_own_code(code.co_filename)
        and not code.co_flags & _ASYNC
        and not hasattr(function, "__wrapped__")
        and function.__module__ == "__main__"
    )
