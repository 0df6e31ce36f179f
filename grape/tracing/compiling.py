"""Calls of functions that `torch.compile` was given.

What torch compiles is for the function modes that were on the stack then. Beside a mode of Grape's it would compile
everything once more, for that call only, and after some times no more: from then on the code would run as written, with
other bits.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from .imports import when_imported

_MODULE = "torch._dynamo.eval_frame"
_ASKED = "_callback_from_stance"
"""Such a call asks it for the compiler, in front of everything else; None means that there is none."""


def before_compiled(act: Callable[[], None]) -> Callable[[], None]:
    """Have `act` called at the begin of each such call, in its thread; the result undoes it."""
    patched: list[tuple[ModuleType, Callable[[object], object]]] = []

    def patch(module: ModuleType) -> None:
        asked = getattr(module, _ASKED, None)
        if asked is None:
            return

        def answer(callback: object) -> object:
            found = asked(callback)
            if found is not None:
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


def unseen_by_compilers(function: Callable[..., object]) -> None:
    """Have torch's compiler look neither into `function` nor into what that calls.

    It compiles any frame that begins while one of its functions runs, and the tracer works in the breaks of a graph:
    the person would get graphs of Grape's code, and warnings about it.
    """
    frames: Any = torch._C._dynamo.eval_frame
    written: Any = function
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(written.__code__, frames._FrameExecStrategy(skip, skip))
