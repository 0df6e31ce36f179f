"""Warnings of operators that Grape calls in the place of the person's code name the line that called there.

torch warns of the innermost frame of Python's, which is Grape's while it looks on. Python counts by that place how
often a warning was shown, so that another name in what is shown would not be enough.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from .positions import is_between

_EVERY = ("always", None, Warning, None, 0)


@contextmanager
def warnings_of_the_caller() -> Iterator[None]:
    """Have what is warned of in the block be warned of where the code stands that Grape is called by."""
    filters, show = warnings.filters, warnings._showwarnmsg  # type: ignore[attr-defined]
    every = [_EVERY]

    def again(message: warnings.WarningMessage) -> None:
        frame = _place_of(message)
        warnings.filters, warnings._showwarnmsg = filters, show  # type: ignore[attr-defined]
        try:
            _warn(message, frame)
        finally:
            warnings.filters, warnings._showwarnmsg = every, again  # type: ignore[attr-defined]

    warnings.filters, warnings._showwarnmsg = every, again  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if warnings.filters is every:
            warnings.filters = filters
        if warnings._showwarnmsg is again:  # type: ignore[attr-defined]
            warnings._showwarnmsg = show  # type: ignore[attr-defined]


def _place_of(message: warnings.WarningMessage) -> FrameType | None:
    """The frame that `message` names, or, where that is one of Grape's, the next one outside."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and (frame.f_code.co_filename, frame.f_lineno) != (message.filename, message.lineno):
        frame = frame.f_back
    while frame is not None and is_between(frame):
        frame = frame.f_back
    return frame


def _warn(message: warnings.WarningMessage, frame: FrameType | None) -> None:
    if frame is None:  # of a file that it was told
        filename, line, names = message.filename, message.lineno, {}
    else:
        filename, line, names = frame.f_code.co_filename, frame.f_lineno, frame.f_globals
    warnings.warn_explicit(
        message.message,
        message.category,
        filename,
        line,
        names.get("__name__"),
        names.setdefault("__warningregistry__", {}),
        source=message.source,
    )
