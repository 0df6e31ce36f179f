"""`grape.session`: Grape for a `with` block."""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ..errors import UsageError
from ..options import Options, budget_bytes, with_settings
from .cell import Session
from .choice import session_for
from .running import Cell
from .streamed.cell import StreamedSession


@contextmanager
def session(options: Options | None = None, **settings: Any) -> Iterator[Session | StreamedSession]:
    """Do for a `with` block what `%%grape` does for a cell; what it yields has the `.report`, as has `grape.last`.

    `settings` are fields of `Options` (``session(engine="streams")``); a memory budget may be text. Functions of the
    calling module and modules called in the block are candidates of regions; streams serve the thread of the block.
    Raises `UsageError` for unknown settings, a budget that is no size, an engine that does not exist, or a session
    inside a session. Nothing tells that a block is the same as an earlier one: under ``auto`` streams serve each on a
    GPU, and where they cannot, regions look at it anew, however long that takes. An exception of the block propagates;
    what was observed until then is still reported.
    """
    chosen = with_settings(options or Options(), settings)
    if chosen.rewrite:
        raise UsageError("rewrite is for cells: a `with` block is part of a file, which runs as it is written")
    chosen = replace(chosen, memory_budget=budget_bytes(chosen.memory_budget))
    filename, line, namespace = _caller()
    source = "".join(linecache.getlines(filename))
    named = _of_a_notebook()
    cell = Cell(name=named(filename) if named else filename, source=source, filename=filename, line=line)
    current = session_for(options=chosen, cell=cell, namespace=namespace, file_names=named)
    current.open()
    failure: BaseException | None = None
    try:
        yield current
    except BaseException as error:
        failure = error
        raise
    finally:
        current.close(failure)
        failure = None  # else its traceback, this frame and what they hold wait for the garbage collector


def _of_a_notebook() -> Callable[[str], str] | None:
    """Gives the name to show of a file, as `In[4]` where it is a cell; None in a script."""
    ask = getattr(sys.modules.get("IPython"), "get_ipython", None)
    label = getattr(getattr(ask() if ask is not None else None, "compile", None), "format_code_name", None)
    if label is None:
        return None

    def shown(file: str) -> str:
        known = label(file)
        return str(known[1]) if known else file

    return shown


def _caller() -> tuple[str, int, dict[str, object]]:
    """The file, the line and the names of the code with the `with` block.

    No frame is kept: one that knows itself would keep the block's results, and with them the memory of graphs, until
    the garbage collector comes.
    """
    frame = sys._getframe(2).f_back  # `session`, then contextlib
    if frame is None:
        return "?", 0, {}
    namespace: dict[str, object] = {**frame.f_globals}
    if frame.f_locals is not frame.f_globals:
        local = frame.f_locals
        namespace.update(local)
        if type(local) is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            local.clear()  # a function's: until 3.13 a copy, which would keep what it holds alive
    return frame.f_code.co_filename, frame.f_lineno, namespace
