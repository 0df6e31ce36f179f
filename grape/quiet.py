"""Work of Grape's without warnings, collections and draws, in the middle of somebody's cell.

`warnings.catch_warnings` is not for that: entering and leaving it makes Python forget which warnings it has shown, and
those that are shown once would come again.
"""

from __future__ import annotations

import ast
import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from random import getstate, setstate


@contextmanager
def same_random_stream() -> Iterator[None]:
    """Python's own generator is the person's: libraries draw from it where nobody expects it (rich, on import)."""
    state = getstate()
    try:
        yield
    finally:
        setstate(state)


@contextmanager
def without_collections() -> Iterator[None]:
    """No garbage is collected inside. Syntax trees and traces are many objects: made all at once they would have Python
    look through everything that torch has loaded, for a tenth of a second and more. In a capture a collection could
    free CUDA objects, which a capture forbids.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def without_warnings() -> Iterator[None]:
    """No warning is shown or raised inside; which ones were shown before stays known."""
    filters = warnings.filters
    warnings.filters = [("ignore", None, Warning, None, 0)]
    try:
        yield
    finally:
        warnings.filters = filters


def syntax_tree(source: str) -> ast.Module | None:
    """None where `source` is no Python."""
    try:
        with without_warnings():
            return ast.parse(source)
    except (SyntaxError, ValueError):
        return None
