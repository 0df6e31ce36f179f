"""Which engine serves a cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..options import Options, engine_named
from .cell import Session
from .past.history import CellKey, Mode, Past, key_of
from .process import engine
from .running import Cell
from .streamed.cell import StreamedSession
from .streamed.lead import leads, may_be_looked_at


def plan(source: str, namespace: Mapping[str, object], options: Options) -> tuple[Mode, CellKey | None]:
    """How much attention a cell gets that begins now, and under which key its history is kept."""
    owner, key = engine(), key_of(source, namespace)
    past = owner.history.of(key, options.applied)
    if past is None or not past.settled:
        first = past is None or (past.led is not None and not may_be_looked_at(past.led))
        return ("stream" if first and key is not None and leads(owner, options) else "watch"), key
    if not past.served:
        return "leave", key
    return ("serve" if owner.has_graphs else "watch"), key


def session_for(
    *,
    options: Options,
    cell: Cell,
    namespace: dict[str, object],
    on_progress: Callable[[str], None] | None = None,
    file_names: Callable[[str], str] | None = None,
) -> Session | StreamedSession:
    """The session of a cell that begins now: on a GPU streams come first, elsewhere regions look, and what they left is
    for streams, unless the options name one of them. Raises `UsageError` for an engine that does not exist.
    """
    chosen = engine_named(options.engine)
    past = _left_to_streams(options, cell) if chosen == "auto" else None
    first = cell.mode == "stream" or (cell.mode == "watch" and cell.key is None and leads(engine(), options))
    if chosen == "streams" or past is not None or first:
        return StreamedSession(
            options=options, cell=cell, file_names=file_names, namespace=namespace, past=past, leads=chosen == "auto"
        )
    return Session(options=options, cell=cell, namespace=namespace, on_progress=on_progress, file_names=file_names)


def _left_to_streams(options: Options, cell: Cell) -> Past | None:
    if cell.mode != "leave" or not engine().context.serves:
        return None
    past = engine().history.of(cell.key, options.applied)
    return past if past is not None and past.streamless is None and past.evidence.torch_ran else None
