"""Python effects that a replay would not repeat: output, files, log records, host random numbers, sleeping.

Changes of Python state are found by the guards, which are compared after the call; this watch sees what leaves no
trace in any object that the guards reach. For one traced call it looks at every function of a library that is called
(`calls`), and stands in for some that have effects: those are seen in threads of autograd's as well.
"""

from __future__ import annotations

import builtins
import logging
import sys
import time
import types
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import update_wrapper
from random import getstate, setstate
from threading import get_ident
from typing import Any, ClassVar, TextIO

import torch

from ...model import Position, Reason, Refused
from ...originals import numpy_generator
from ...tracing import PositionFinder
from ..backends.protocol import CaptureFailed
from ..dispatch.trampoline import prune_traceback
from .calls import CallWatch, is_of_the_person
from .environment import settings
from .levels import python_warn, warn_outside

_WATCHED: tuple[tuple[object, str], ...] = (
    (builtins, "print"),
    (builtins, "input"),
    (builtins, "open"),
    (time, "sleep"),
    (logging.Logger, "callHandlers"),
    (torch.cuda, "manual_seed"),
    (torch.cuda, "manual_seed_all"),
)
"""`torch.manual_seed` calls the last. A seed that the person has just set leaves the state as it was; nothing else
would tell that a replay does not set it."""
_STATES: tuple[types.ModuleType, ...] = (torch.cuda, torch.cuda.random)
"""Where `get_rng_state` and `set_rng_state` of a device's generator are looked up: `fork_rng`, checkpointing. A capture
may set the state, and its replay would not."""


SHOWN = "a warning"
"""Stands among the effects for a warning of torch's that was shown. One that comes once is no effect of later calls."""


class _Stream:
    """Stands in for `sys.stdout` or `sys.stderr`; everything but the note goes to the stream itself."""

    def __init__(self, stream: TextIO, note: Callable[[str], None]) -> None:
        self._stream = stream
        self._note = note

    def write(self, text: str) -> int:
        self._note("write")
        return self._stream.write(text)

    @property  # type: ignore[misc]  # `isinstance` asks it
    def __class__(self) -> Any:
        return type(self._stream)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


class EffectWatch:
    """Context manager; `found` lists the effects of this thread as (name, position of the person's line)."""

    _current: ClassVar[EffectWatch | None] = None
    _all_warnings: ClassVar[bool] = False

    def __init__(self, positions: PositionFinder) -> None:
        self._positions = positions
        self._thread = get_ident()
        self._undo = ExitStack()
        self.found: list[tuple[str, Position | None]] = []
        self.direct = False
        """True if the person's own code calls what has one of these effects; else a library may have done it once, for
        all later calls."""
        self.set: str | None = None
        """A setting of torch's that the call leaves otherwise than it found it, which a library may do once."""
        self.calls = CallWatch(self._note)

    def __enter__(self) -> EffectWatch:
        EffectWatch._current = self
        self._random, self._settings = _random_states(), settings()
        for owner, name in _WATCHED:
            self._replace(owner, name, self._noting(name, getattr(owner, name)))
        self._replace(warnings, "warn", self._noting_warnings(python_warn()))
        self._replace(warnings, "_showwarnmsg", self._noting_shown(warnings._showwarnmsg))  # type: ignore[attr-defined]
        self._states: list[torch.Tensor] = []
        for owner in _STATES:
            self._replace(owner, "get_rng_state", self._keeping(owner.get_rng_state))
            self._replace(owner, "set_rng_state", self._noting_changes(owner.set_rng_state, owner.get_rng_state))
        if any(action == "always" for action, *_ in warnings.filters):  # at each call anew
            self._replace(warnings, "_showwarnmsg", self._noting("warn", warnings._showwarnmsg))  # type: ignore[attr-defined]
        for name in ("stdout", "stderr"):
            self._replace(sys, name, _Stream(getattr(sys, name), self._note))
        self.calls.start()
        return self

    def __exit__(self, *_: object) -> None:
        if EffectWatch._current is self:
            self.stop()

    @staticmethod
    def is_at_work() -> bool:
        """True where a call is watched just now."""
        return EffectWatch._current is not None

    @classmethod
    def stop(cls) -> None:
        """End the watch that is active, if there is one: its call is over, or the region was given up."""
        watch, EffectWatch._current = EffectWatch._current, None
        if watch is not None:
            watch.calls.stop()
            watch._undo.close()
            before, after = watch._random, _random_states()
            changed = [name for name, state in after.items() if name in before and before[name] != state]
            came = [name for name in after if name not in before]  # it may have been drawn from; the next call tells
            watch.found += [(f"{name}.random", None) for name in (*changed, *came)]
            watch.direct |= bool(changed)
            now = settings()
            watch.set = next((name for name, value in watch._settings.items() if now[name] != value), None)

    def _replace(self, owner: object, name: str, value: object) -> None:
        original = getattr(owner, name)
        if isinstance(value, types.FunctionType):
            update_wrapper(value, original, updated=())
            del value.__wrapped__  # type: ignore[attr-defined]
        setattr(owner, name, value)

        def restore() -> None:
            if getattr(owner, name) is value:  # else somebody has redirected it since
                setattr(owner, name, original)

        self._undo.callback(restore)

    def _noting(self, name: str, function: Callable[..., object]) -> Callable[..., object]:
        def noted(*args: object, **kwargs: object) -> object:
            self._note(name)
            try:
                return function(*args, **kwargs)
            except BaseException as error:
                prune_traceback(error)
                raise

        return noted

    def _noting_warnings(self, function: Callable[..., None]) -> Callable[..., None]:
        """`warnings.warn`, which counts the frames above it: it is told how many there are. Libraries warn at each call
        of what they will no longer do, for Python to show it once: as with torch's own, to be shown is the effect.
        """

        def warn(message: object, category: object = None, stacklevel: int = 1, *more: object, **named: Any) -> None:
            caller = sys._getframe(1)
            if self._all_warnings or is_of_the_person(caller.f_code):
                self._note("warn")
            try:
                warn_outside(function, caller, message, category, stacklevel, *more, **named)
            except BaseException as error:
                prune_traceback(error)
                raise

        return warn

    def _noting_shown(self, function: Callable[..., None]) -> Callable[..., None]:
        """The function that shows warnings which are not to be ignored and were not shown yet. torch's own come by
        nowhere else.
        """

        def show(message: object) -> None:
            if not self.found:
                self._note(SHOWN)
            function(message)

        return show

    def _keeping(self, function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def kept(*args: object, **kwargs: object) -> torch.Tensor:
            state = function(*args, **kwargs)
            if self._is_mine():
                self._states.append(state)
            return state

        return kept

    def _noting_changes(self, function: Callable[..., None], now: Callable[..., torch.Tensor]) -> Callable[..., None]:
        """Setting the state that the call itself found, and from which nothing was drawn since, changes nothing."""

        def noted(new_state: torch.Tensor, *args: object, **kwargs: object) -> None:
            known = any(state is new_state for state in self._states)
            if not known or _bytes(now(*args, **kwargs)) != _bytes(new_state):
                self._note("set_rng_state")
            function(new_state, *args, **kwargs)

        return noted

    def _is_mine(self) -> bool:
        """True where this thread runs the watched call, or a hook for it in a thread of autograd's, but for what the
        garbage collector calls.
        """
        mine = get_ident() == self._thread or torch._C._current_graph_task_id() != -1
        return mine and not self.calls.collects()

    def _note(self, name: str, direct: bool = True) -> None:
        if EffectWatch._current is self and self._is_mine():
            user, _ = self._positions.find(1)
            self.found.append((name, self._positions.at(user) if user is not None else None))
            self.direct |= direct


class EffectBan(EffectWatch):
    """Like `EffectWatch`, but an effect does not happen: it raises `CaptureFailed` instead.

    For code that runs although a plain call would have skipped it. The host's random generators are put back.
    """

    _all_warnings = True

    def __enter__(self) -> EffectBan:
        self._python, self._numpy = getstate(), numpy_generator()
        self._drawn = None if self._numpy is None else self._numpy.get_state()
        super().__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        setstate(self._python)
        if self._numpy is not None:
            self._numpy.set_state(self._drawn)
        if self.found and exception[0] is None:
            raise self._refusal(self.found[0][0])

    def _note(self, name: str, direct: bool = True) -> None:
        super()._note(name, direct)
        if EffectWatch._current is self and self._is_mine():
            raise self._refusal(name)

    def _refusal(self, name: str) -> CaptureFailed:
        return CaptureFailed("GR404", f"a branch that was not taken calls {name}(), which a replay would not repeat")


def _bytes(state: torch.Tensor) -> bytes:
    """Without an operator, which the trace would show."""
    return bytes(state.untyped_storage())


def _random_states() -> dict[str, object]:
    """The states of the host's global random generators, in comparable form."""
    states: dict[str, object] = {"random": getstate()}
    drawn = numpy_generator()
    if drawn is not None:
        name, keys, *rest = drawn.get_state()
        states["numpy"] = (name, keys.tobytes(), *rest)
    return states


def effect_of(watch: EffectWatch) -> Refused | None:
    """Why a call with these effects cannot be replayed; None if it has none."""
    if watch.calls.beside_another:
        return Refused.because(Reason.PROFILED)
    if not watch.found:
        changed = f"a setting of torch ({watch.set})"
        return Refused.because(Reason.CHANGES, changed=changed) if watch.set is not None else None
    name, at = watch.found[0]
    return Refused.because(Reason.WARNS, at) if name == SHOWN else Refused.because(Reason.CALLS, at, call=name)
