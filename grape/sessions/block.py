"""`grape.session`: Grape for a `with` block."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ..errors import UsageError
from ..options import Options, budget_bytes
from .cell import Cell, Session

__all__ = ["session"]


@contextmanager
def session(options: Options | None = None, **settings: Any) -> Iterator[Session]:
    """Do for a `with` block what `%%grape` does for a cell; what it yields has the `.report`, as has `grape.last`.

    `settings` are fields of `Options` (``session(profile=True)``); a memory budget may be text. Functions of the
    calling module and modules called in the block are candidates. Raises `UsageError` for unknown settings, a budget
    that is no size, or a session inside a session. An exception of the block propagates; what was observed until then
    is still reported.
    """
    try:
        chosen = replace(options or Options(), **settings)
    except TypeError as error:
        raise UsageError(f"unknown setting: {error}") from None
    if chosen.rewrite:
        raise UsageError("rewrite is for cells: a `with` block is part of a file, which runs as it is written")
    chosen = replace(chosen, memory_budget=budget_bytes(chosen.memory_budget))
    frame = inspect.currentframe()
    caller = frame.f_back.f_back if frame is not None and frame.f_back is not None else None
    filename = caller.f_code.co_filename if caller is not None else "?"
    namespace: dict[str, Any] = {**caller.f_globals} if caller is not None else {}
    if caller is not None and caller.f_locals is not caller.f_globals:
        local = caller.f_locals
        namespace.update(local)
        if type(local) is dict and caller.f_code.co_flags & inspect.CO_OPTIMIZED:
            local.clear()  # a function's: until 3.13 a copy, which would keep what it holds alive
    cell = Cell(name=filename, source="".join(linecache.getlines(filename)), filename=filename)
    current = Session(options=chosen, cell=cell, namespace=namespace)
    current.open()
    failure: BaseException | None = None
    try:
        yield current
    except BaseException as error:
        failure = error
        raise
    finally:
        current.close(failure)
