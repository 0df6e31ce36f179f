"""Rich for Grape's own text, in a copy that nobody else sees while the person has not imported it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from ..quiet import same_random_stream

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
        theirs = _taken_out(_names()) if "rich" in sys.modules else {}
        sys.modules.update(_OURS)
        loaded = len(sys.modules)
        try:
            with same_random_stream():
                yield
        finally:
            names = _names() if len(sys.modules) != loaded else list(_OURS)  # a look at all takes 0.1 ms
            _OURS.update(_taken_out(names))
            sys.modules.update(theirs)


def _names() -> list[str]:
    return [name for name in list(sys.modules) if name == "rich" or name.startswith("rich.")]


def _taken_out(names: list[str]) -> dict[str, ModuleType]:
    return {name: sys.modules.pop(name) for name in names if name in sys.modules}
