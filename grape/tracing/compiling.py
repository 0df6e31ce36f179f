"""Calls of functions that `torch.compile` was given, and how its compiler is kept away from Grape's own code.

What torch compiles is for the function modes that were on the stack then. Beside a mode of Grape's it would compile
everything once more, for that call only, and after some times no more: from then on the code would run as written, with
other bits.

While such a function runs, the compiler takes up each frame that begins in its thread, Grape's as well: it would
compile the tracer, for seconds, or refuse to, as an error of the person's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from .imports import when_imported
from .positions import is_grape_code

_MODULE = "torch._dynamo.eval_frame"
_ASKED = "_callback_from_stance"
"""Such a call asks it for the compiler, in front of everything else; None means that there is none."""


_acts: list[Callable[[], None]] = []
_undone: list[Callable[[], None]] = []


def before_compiled(act: Callable[[], None]) -> Callable[[], None]:
    """Have `act` called at the begin of each such call, in its thread; the result undoes it."""
    _acts.append(act)
    if not _undone:
        _undone.append(_patched())

    def undo() -> None:
        if act in _acts:
            _acts.remove(act)
        if not _acts and _undone:
            _undone.pop()()

    return undo


def around_compilation(begins: Callable[[], None], ends: Callable[[], None]) -> Callable[[], None]:
    """Have `begins` called as the compiler takes up a frame, and `ends` once it has; the result undoes it."""

    def begun(_: object) -> None:
        begins()

    def ended(_: object) -> None:
        ends()

    def register() -> None:
        known = sys.modules["torch._dynamo.callback"].callback_handler  # forgets all where the person resets it
        if begun not in known.start_callbacks:
            known.register_start_callback(begun)
            known.register_end_callback(ended)

    forget = before_compiled(register)

    def undo() -> None:
        forget()
        known = getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
        if known is not None and begun in known.start_callbacks:
            known.remove_start_callback(begun)
            known.remove_end_callback(ended)

    return undo


def _patched() -> Callable[[], None]:
    patched: list[tuple[ModuleType, Callable[[object], object]]] = []

    def patch(module: ModuleType) -> None:
        asked = getattr(module, _ASKED, None)
        if asked is None:
            return

        def answer(callback: object) -> object:
            found = asked(callback)
            if found is not None:
                for act in list(_acts):
                    act()
            return found

        setattr(module, _ASKED, answer)
        patched.append((module, asked))

    forget = when_imported(_MODULE, patch)

    def undo() -> None:
        forget()
        for module, asked in patched:
            setattr(module, _ASKED, asked)

    return undo


_ALONE = frozenset({"__torch_dispatch__", "issue"})
"""Names of functions in which nothing of the person's is to be compiled."""
_seen: set[str] = set()
_waiting: list[Callable[[], None]] = []
_frames: Any = vars(torch._C)["_dynamo"].eval_frame


def keep_uncompiled() -> None:
    """Have the compiler pass by Grape's code, from the next call on that may compile: most programs have none."""
    if _waiting:
        return

    def keep() -> None:
        while _waiting:
            _waiting.pop()()
        _keep_all()

    def keep_unasked(module: ModuleType) -> None:
        if not hasattr(module, _ASKED):
            _keep_all()

    _waiting.append(before_compiled(keep))
    _waiting.append(when_imported(_MODULE, keep_unasked))


def _keep_all() -> None:
    """The code of all modules of Grape's that are there, and of their closures."""
    for name, module in list(sys.modules.items()):
        if name not in _seen and name.startswith("grape."):
            _seen.add(name)
            for value in list(vars(module).values()):
                if getattr(value, "__module__", None) == name:  # else another module of Grape's holds it
                    _keep(value)


def _keep(value: Any) -> None:
    if isinstance(value, type) and value.__module__.startswith("grape."):
        for member in list(vars(value).values()):
            _keep(member)
    elif isinstance(value, (classmethod, staticmethod)):
        _keep(value.__func__)
    elif isinstance(value, property):
        _keep(value.fget)
    elif isinstance(value, FunctionType):
        _keep_code(value.__code__)


def _keep_code(code: CodeType) -> None:
    if not is_grape_code(code.co_filename):
        return
    action = _frames._FrameAction
    below = action.SKIP if code.co_name in _ALONE else action.DEFAULT  # else the person's code runs in it
    _frames.set_code_exec_strategy(code, _frames._FrameExecStrategy(action.SKIP, below))
    for part in code.co_consts:
        if isinstance(part, CodeType):
            _keep_code(part)
