"""A namespace to run code in that shares nothing with the person's own: what the code uses, copied; random states that
stay as they are.
"""

from __future__ import annotations

import ast
import copy
import inspect
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import getstate, setstate

import torch

from ..originals import numpy_generator
from ..runtime.dispatch.trampoline import typed_code
from .safety import Unsafe, names_bound, names_used


@contextmanager
def randomness_kept() -> Iterator[None]:
    """The random states of torch, Python and NumPy are the same behind the block."""
    numpy = numpy_generator()
    python, arrays = getstate(), numpy.get_state() if numpy is not None else None
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        setstate(python)
        if numpy is not None:
            numpy.set_state(arrays)


def copied(trees: Sequence[ast.AST], namespace: Mapping[str, object], most_bytes: int) -> dict[str, object]:
    """Copies of what the trees name in `namespace`, aliases kept. Raises `Unsafe` where something has no copy.

    Functions of the notebook become functions of the new namespace, in the code that the person wrote; modules of
    Python are shared. `most_bytes` bounds the tensors that are copied.
    """
    fresh: dict[str, object] = {"__name__": namespace.get("__name__", "__main__"), "__builtins__": __builtins__}
    memo: dict[int, object] = {}
    wanted = set().union(*map(names_used, trees))
    bound = set().union(*map(names_bound, trees))
    seen: set[str] = set()
    held = 0
    while wanted:
        name = wanted.pop()
        if name in seen or name not in namespace:
            continue
        seen.add(name)
        value = namespace[name]
        if isinstance(value, types.FunctionType) and value.__globals__ is namespace:
            fresh[name] = _function(value, fresh, memo)
            wanted |= set(typed_code(value).co_names)
            continue
        if isinstance(value, (types.ModuleType, type)):
            fresh[name] = value
            continue
        held += _bytes(value)
        if held > most_bytes:
            raise Unsafe(f"what it uses is larger than {most_bytes >> 20} MB")
        try:
            fresh[name] = copy.deepcopy(value, memo)
        except Exception as error:
            if name in bound:
                continue  # most often a result that the code makes anew; if it does not, running it will tell
            why = (str(error).splitlines() or [type(error).__name__])[0]
            raise Unsafe(f"`{name}` cannot be copied: {why}") from None
    return fresh


def _function(function: types.FunctionType, fresh: dict[str, object], memo: dict[int, object]) -> types.FunctionType:
    code = typed_code(function)
    made = types.FunctionType(code, fresh, function.__name__, copy.deepcopy(function.__defaults__, memo))
    made.__kwdefaults__ = copy.deepcopy(function.__kwdefaults__, memo)
    if inspect.iscoroutinefunction(function):
        raise Unsafe(f"`{function.__name__}` waits")
    return made


def _bytes(value: object) -> int:
    if isinstance(value, torch.Tensor):
        return value.untyped_storage().nbytes()
    if isinstance(value, torch.nn.Module):
        return sum(_bytes(tensor) for tensor in (*value.parameters(), *value.buffers()))
    if isinstance(value, dict):
        return sum(map(_bytes, value.values()))
    if isinstance(value, (list, tuple, set)):
        return sum(map(_bytes, value))
    return 0
