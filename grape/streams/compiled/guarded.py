"""Functions of `torch.compile`: the key is away while torch may look at frames for its compiler.

The compiler's guards compare the dispatch keys that a thread includes. With the key of streams among them nothing fits
that was compiled without it, and nothing that is compiled meanwhile fits afterwards. So the key leaves, behind what is
pending, where a compiled function is called. It comes back for the graphs in it, which torch calls with its compiler
turned off, and at the end. What runs between the graphs is issued as written.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

import torch
import torch._guards

from ...tracing import when_imported

_MODULE = "torch._dynamo.eval_frame"
_BEGINS, _ENDS, _SKIP = "set_eval_frame", "_maybe_set_eval_frame", "skip_code"
"""Torch's wrappers call the first one to turn the compiler off, and hand the second one at their end what that gave."""
_STANCE = "_stance"
"""What a person says that torch's compiler should do for a while."""
_COMPILED, _DISABLED = "compile_wrapper", "_fn"
"""Those wrappers, around what is compiled and around what is not to be, as the graphs."""


class Key:
    """The key of a stream, in the thread that calls: `serves` says whether the stream defers anything now."""

    def __init__(self, extension: ModuleType, flush: Callable[[], None], serves: Callable[[], bool]) -> None:
        self._extension, self._flush, self._serves = extension, flush, serves

    def is_in(self) -> bool:
        return bool(self._extension.key_included())

    def leave(self) -> None:
        """Behind what is pending, whose errors are raised here. Also then it has left."""
        try:
            self._flush()
        finally:
            self._extension.include_key(False)

    def enter(self) -> None:
        """Where the stream is open and not paused."""
        self._extension.include_key(self._serves())

    def apart(self, call: Callable[[], object]) -> object:
        """Run what launches kernels without operators: behind what is pending, and with nothing deferred."""
        if not self.is_in():
            return call()
        try:
            self.leave()
            return call()
        finally:
            self.enter()


@dataclass(slots=True)
class _Call:
    """Of a wrapper that runs. Its frame, by number, lives as long."""

    frame: int
    prior: object
    compiled: bool
    was_in: bool
    out: bool
    """The key is out for this call's guards only."""
    over: bool = False


class _Calls(threading.local):
    """Of this thread, the innermost last."""

    def __init__(self) -> None:
        self.running: list[_Call] = []

    def of(self, frame: FrameType) -> _Call | None:
        """Of the wrapper with this frame, which is the innermost one from here on."""
        for at in reversed(range(len(self.running))):
            if self.running[at].frame == id(frame):
                del self.running[at + 1 :]
                return self.running[at]
        return None


def watch(key: Key) -> Callable[[], None]:
    """Keep the key away from guards, also where torch's compiler is imported later; the result undoes it."""
    patched: list[tuple[ModuleType, str, object]] = []

    def patch(module: ModuleType) -> None:
        begins, ends, skip = (getattr(module, name, None) for name in (_BEGINS, _ENDS, _SKIP))
        if begins is None or ends is None or skip is None or not hasattr(module, _STANCE):
            return
        for name, plain, new in zip((_BEGINS, _ENDS), (begins, ends), _around(begins, ends, module, key), strict=True):
            skip(new.__code__)  # it may be called while the compiler is on, which would look at it
            patched.append((module, name, plain))
            setattr(module, name, new)

    forget = when_imported(_MODULE, patch)

    def undo() -> None:
        forget()
        for module, name, one in patched:
            setattr(module, name, one)

    return undo


def _around(begins: Any, ends: Any, module: Any, key: Key) -> tuple[Any, Any]:
    here = _Calls()
    compiles = torch._guards.CompileContext.try_get

    def set_eval_frame(callback: object) -> object:
        prior = begins(callback)
        if callback is None:
            begun(sys._getframe(1), prior)
        return prior

    def begun(frame: FrameType, prior: object) -> None:
        """Or over: torch's wrappers turn the compiler off at both places."""
        last = here.running[-1] if here.running else None
        own = here.of(frame) if last is not None else None
        inside = last is not None and last.out and not compiles()
        if own is not None:
            own.over = True
        elif frame.f_code.co_name == _DISABLED and inside:
            key.enter()
            here.running.append(_Call(id(frame), prior, compiled=False, was_in=False, out=False))
        elif frame.f_code.co_name == _COMPILED:
            was_in = key.is_in()
            if was_in and getattr(module, _STANCE).stance != "force_eager":  # which calls nothing but the person's code
                try:
                    key.leave()
                except BaseException:
                    key.enter()
                    raise
                here.running.append(_Call(id(frame), prior, compiled=True, was_in=True, out=True))
            elif not was_in and last is not None:
                here.running.append(_Call(id(frame), prior, compiled=True, was_in=False, out=inside))

    def maybe_set_eval_frame(callback: object) -> object:
        own = here.of(sys._getframe(1)) if here.running else None
        if own is None or not (own.over or (own.compiled and own.prior is callback)):
            return ends(callback)
        here.running.pop()
        if own.was_in:
            prior = ends(callback)
            key.enter()
            return prior
        try:
            if key.is_in():
                key.leave()
        finally:
            prior = ends(callback)
        return prior

    return set_eval_frame, maybe_set_eval_frame
