"""While the tracer does its own work, Grape's profile function is not called for it."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["Unwatched"]

_CHEAP = sys.version_info < (3, 12)
"""From 3.12 on code is rewritten at each change of the profile function; there it stays, and lets Grape's code pass."""


class Unwatched:
    """Context manager. A profile function of Grape's is one with an attribute `watches`, true until it is ended; those
    of others stay.
    """

    __slots__ = ("_watch",)

    def __enter__(self) -> None:
        self._watch: Any = None
        if _CHEAP:
            watch = sys.getprofile()
            if getattr(watch, "watches", False):
                self._watch = watch
                sys.setprofile(None)

    def __exit__(self, *_: object) -> None:
        if self._watch is not None and self._watch.watches:
            sys.setprofile(self._watch)
