"""Code that looks at the stack that it is called on, or has somebody look at the code that runs.

Between a caller and a callable that Grape took over lie frames of Grape's. Tracebacks and warnings are told without
them; `sys._getframe`, a trace function or a profiler sees them. So a function that looks is never taken over, and
before a statement that may bring somebody in who looks, everything is given back.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import sys
import traceback
import types
import warnings
import weakref
from collections.abc import Iterator, Mapping

import torch.autograd.profiler
import torch.profiler
from torch.nn import Module

from ...tracing import is_own_code
from ..state.classes import is_a
from .trampoline import written_code

_LOOKING = frozenset(
    {
        *("_getframe", "_getframemodulename", "_current_frames", "currentframe", "getouterframes", "f_back"),
        *("extract_stack", "print_stack", "format_stack", "walk_stack", "stacklevel"),
    }
)
_LOOKERS = frozenset(
    id(function)
    for function in (sys._getframe, warnings.warn, inspect.stack, inspect.currentframe, traceback.extract_stack)
)
"""Under whatever name: what is imported by its own name is not counted for."""
_WATCHING = frozenset(
    {
        *("settrace", "setprofile", "settrace_all_threads", "setprofile_all_threads", "cProfile", "monitoring"),
        *("set_trace", "breakpoint", "addaudithook"),
    }
)
_WALKING = frozenset({"next_functions"})
"""A replay makes no autograd graph; a result whose graph a `backward` inside consumed gets another one, with no node
of a parameter's gradient."""
_PROFILERS = frozenset(
    id(profiler)
    for profiler in (
        torch.profiler.profile,
        torch.autograd.profiler.profile,
        torch.autograd.profiler.emit_nvtx,
        torch.autograd.profiler.emit_itt,
    )
)
"""They would count the tracer's operators beside the person's own."""
_MOST = 400
"""Functions that are looked into."""

_words: dict[int, tuple[weakref.ref[types.CodeType], frozenset[str]]] = {}
"""By identity, since code hashes by all that it holds; weakly, since an outlined loop's holds the names of its cell."""


def looks_at_frames(names: frozenset[str], namespace: Mapping[str, object]) -> bool:
    """True where code that mentions `names`, with these globals, may ask who called it, or what that calls."""
    return any(_looks(words, known) for words, known, _ in _reached(names, namespace))


def _looks(words: frozenset[str], known: Mapping[str, object]) -> bool:
    found = words & _LOOKING or {"inspect", "stack"} <= words
    return bool(found) or any(id(known.get(word)) in _LOOKERS for word in words)


def brings_watchers(names: frozenset[str], namespace: Mapping[str, object]) -> bool:
    """True where code that mentions `names` may set a trace function, start a profiler or add an audit hook, or walk
    through the autograd graph of a result.
    """
    return any(_watches(words, known) for words, known, _ in _reached(names, namespace))


def _watches(words: frozenset[str], known: Mapping[str, object]) -> bool:
    found = words & (_WATCHING | _WALKING) or ("profiler" in words and words & {"profile", "emit_nvtx", "emit_itt"})
    return bool(found) or any(id(known.get(word)) in _PROFILERS for word in words)


def modules_look_at_frames(namespace: Mapping[str, object]) -> bool:
    """True where a class of modules in `namespace` asks who calls it: all modules are called through Grape."""
    own = {
        value.__name__: value
        for value in list(namespace.values())
        if is_a(value, type) and value.__module__ == "__main__" and issubclass(value, Module)
    }
    return looks_at_frames(frozenset(own), own)


def stays_as_written(function: types.FunctionType) -> bool:
    """True where it is not to be taken over: it looks at frames, or may call itself and, each time through Grape, would
    reach the limit of recursion sooner.
    """
    code = written_code(function)
    names = mentioned_in(code)
    reached = _reached(names, _globals_of(function, names))
    return any(_looks(words, known) or (one and written_code(one) is code) for words, known, one in reached)


def mentioned_in(code: types.CodeType | ast.AST) -> frozenset[str]:
    """The names of variables, attributes and keyword arguments in `code`."""
    if isinstance(code, types.CodeType):
        known = _words.get(id(code))
        if known is None or known[0]() is not code:
            if len(_words) > 10 * _MOST:
                _words.clear()
            known = _words[id(code)] = weakref.ref(code), frozenset(_of_code(code))
        return known[1]
    found: set[str] = set()
    for node in ast.walk(code):
        name = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "arg", None)
        if isinstance(name, str):
            found.add(name)
    return frozenset(found)


def _of_code(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _of_code(constant)
        elif isinstance(constant, tuple):  # names of keyword arguments, among others
            yield from (item for item in constant if isinstance(item, str))


def _reached(
    names: frozenset[str], namespace: Mapping[str, object]
) -> Iterator[tuple[frozenset[str], Mapping[str, object], types.FunctionType | None]]:
    """`names`, and what the person's own functions mention that these lead to, each with what it names, and
    which function that is; None for methods that are met by their names only, on whatever object."""
    yield names, namespace, None
    methods, seen = _methods(), dict[int, bool]()
    pending = [(names, namespace, True)]
    while pending and len(seen) < _MOST:
        names, namespace, known = pending.pop()
        found = [(function, known) for name in names for function in _functions_of(namespace.get(name), names)]
        found += [(function, False) for name in names for function in methods.get(name, ())]
        for function, known in found:
            if seen.get(id(function)) not in (True, known) and is_own_code(written_code(function).co_filename):
                seen[id(function)] = known
                words = mentioned_in(written_code(function))
                pending.append((words, _globals_of(function, words), known))
                yield words, pending[-1][1], function if known else None


def _methods() -> dict[str, list[types.FunctionType]]:
    """Those of the notebook's classes by their names: code may call each on whatever it is given."""
    found: dict[str, list[types.FunctionType]] = {}
    for value in list(vars(sys.modules["__main__"]).values()):
        if is_a(value, type) and value.__module__ == "__main__":
            for name, method in vars(value).items():
                function = getattr(method, "__func__", method)  # a class method, or a static one
                if isinstance(function, types.FunctionType):
                    found.setdefault(name, []).append(function)
    return found


def _globals_of(function: types.FunctionType, names: frozenset[str]) -> dict[str, object]:
    """The values of `names` in it, those that it closes over included."""
    space = function.__globals__
    found = {name: space[name] for name in names if name in space}
    for name, cell in zip(written_code(function).co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # not bound yet
            found[name] = cell.cell_contents
    return found


def _functions_of(value: object, names: frozenset[str]) -> list[types.FunctionType]:
    """The functions that code may call which has `value` and mentions `names`."""
    if is_a(value, types.FunctionType):
        inner = value.__dict__.get("__wrapped__")
        return [value, inner] if isinstance(inner, types.FunctionType) else [value]
    if is_a(value, types.MethodType):
        return _functions_of(value.__func__, names)
    cls = value if is_a(value, type) else type(value)
    if getattr(cls, "__module__", None) != "__main__":
        return []
    members = [vars(base) for base in cls.__mro__ if base.__module__ == "__main__"]
    called = names | {"__init__", "__call__", "forward"}
    return [m for one in members for name, m in one.items() if name in called and isinstance(m, types.FunctionType)]
