"""`warnings.warn` counts the frames above it by `stacklevel`, and Grape's lie between a caller and what it calls."""

from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

from ...tracing.positions import OWN_FOLDER, is_between
from ..dispatch.trampoline import is_trampoline, prune_traceback

_users = 0


def warn_outside(
    warn: Callable[..., None],
    caller: types.FrameType,
    message: object,
    category: object = None,
    stacklevel: int = 1,
    *more: object,
    **named: Any,
) -> None:
    """Call `warn`, which is Python's, as `caller` did that called a function of Grape's in its place.

    Where a filter makes an error of it, the caller is to remove Grape's frames from the traceback.
    """
    prefixes = named.get("skip_file_prefixes")
    if prefixes:  # the first frame of all counts wherever it is
        level = max(2, stacklevel) + (not caller.f_code.co_filename.startswith(prefixes))
        warn(message, category, level, *more, **{**named, "skip_file_prefixes": (*prefixes, OWN_FOLDER)})
    else:
        warn(message, category, 1 + _level(stacklevel, caller), *more, **named)


def python_warn() -> Callable[..., None]:
    """`warnings.warn` without what counts from outside."""
    warn: Callable[..., None] = warnings.warn
    return warn.__wrapped__ if _counts(warn) else warn  # type: ignore[attr-defined]


def count_from_outside() -> Callable[[], None]:
    """Have `warnings.warn` leave out Grape's frames, until every function that this returns was called."""
    global _users
    _users += 1
    if not _counts(warnings.warn):
        warnings.warn = _counting(warnings.warn)
    over = False

    def no_more() -> None:
        nonlocal over
        global _users
        if over:
            return
        over = True
        _users -= 1
        if not _users and _counts(warnings.warn):  # else somebody has replaced it since
            warnings.warn = python_warn()

    return no_more


def _counts(warn: object) -> bool:
    return getattr(warn, "__code__", None) is _CODE


def _counting(function: Any) -> Any:
    @wraps(function)
    def warn(message: object, category: object = None, stacklevel: int = 1, *more: object, **named: Any) -> None:
        try:
            warn_outside(function, sys._getframe(1), message, category, stacklevel, *more, **named)
        except BaseException as error:
            prune_traceback(error)
            raise

    return warn


_CODE: types.CodeType = _counting(warnings.warn).__code__


def _level(level: int, caller: types.FrameType | None) -> int:
    """The `stacklevel` with which `warnings.warn`, called by a function of Grape's, names the frame that it would name
    with `level`, called by `caller`, if Grape did not stand between.
    """
    found = 1
    while caller is not None and level > 0:
        if not caller.f_code.co_filename.startswith("<frozen importlib._bootstrap"):  # Python does not count them
            found += 1
            level -= not (is_between(caller) or is_trampoline(caller.f_code))
        caller = caller.f_back
    return found + level
