"""Which engine serves a cell."""

from __future__ import annotations

from collections.abc import Callable

from ..options import Options, engine_named
from .cell import Session
from .past.history import Past
from .process import engine
from .running import Cell
from .streamed.cell import StreamedSession

__all__ = ["session_for"]


def session_for(
    *,
    options: Options,
    cell: Cell,
    namespace: dict[str, object],
    on_progress: Callable[[str], None] | None = None,
    file_names: Callable[[str], str] | None = None,
) -> Session | StreamedSession:
    """The session of a cell that begins now: regions look, and what they left is for operator streams, unless the
    options name one of them. Raises `UsageError` for an engine that does not exist.
    """
    chosen = engine_named(options.engine)
    past = _left_to_streams(options, cell) if chosen == "auto" else None
    if chosen == "streams" or past is not None:
        return StreamedSession(options=options, cell=cell, file_names=file_names, namespace=namespace, past=past)
    return Session(options=options, cell=cell, namespace=namespace, on_progress=on_progress, file_names=file_names)


def _left_to_streams(options: Options, cell: Cell) -> Past | None:
    if cell.mode != "leave" or not engine().situation.serves:
        return None
    past = engine().history.of(cell.key, options.applied)
    return past if past is not None and past.streamless is None and past.evidence.torch_ran else None
