"""Rich for Grape's own text, in a copy that nobody else sees while the person has not imported it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from ..quiet import same_random_stream

__all__ = ["own_rich"]

_DRAWS = "rich.style"
"""The module that draws from Python's own generator when it is imported."""
_LOCK = threading.RLock()
_OURS: dict[str, ModuleType] = {}


@contextmanager
def own_rich() -> Iterator[None]:
    """Inside, `rich` may be imported. What that draws is drawn nowhere, and an import of the person's that comes later
    is a first one, as without Grape: it draws.
    """
    with _LOCK:
        if _DRAWS in sys.modules:
            yield
            return
        theirs = _taken_out()
        sys.modules.update(_OURS)
        try:
            with same_random_stream():
                yield
        finally:
            _OURS.update(_taken_out())
            sys.modules.update(theirs)


def _taken_out() -> dict[str, ModuleType]:
    names = [name for name in list(sys.modules) if name == "rich" or name.startswith("rich.")]
    return {name: sys.modules.pop(name) for name in names}
