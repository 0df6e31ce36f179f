"""The one engine of the process, and what is asked of it from outside a cell."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping

from ..failures import surviving
from ..model import CellEvidence
from ..originals import perf_counter
from ..render import Report, build_report
from .engine import Engine

_engine: Engine | None = None
_report: Report | None = None
"""Of a cell that ran while there was no engine."""


def engine() -> Engine:
    """The process's engine; made at the first call."""
    global _engine, _report
    if _engine is None:
        _engine = Engine()
        _engine.report, _report = _report, None
    return _engine


def engine_there_is() -> Engine | None:
    """The process's engine; None where nothing has made it."""
    return _engine


def leave_to_child() -> None:
    """In a process that was forked off in a cell: that cell's session is the parent's."""
    if _engine is not None:
        _engine.session = None


def engine_and_ms() -> tuple[Engine, float]:
    """The engine, and the milliseconds it took to make. Where torch was not there yet, its import is the cell's."""
    began = perf_counter() if "torch" in sys.modules else None
    owner = engine()
    return owner, (perf_counter() - began) * 1e3 if began is not None else 0.0


def close_engine() -> None:
    """Take back every patch and release everything, if there is an engine."""
    if _engine is not None:
        _engine.close()


def release_abandoned(namespace: Mapping[str, object]) -> list[str]:
    """A cell without Grape has ended in `namespace`: see `Engine.release_abandoned` and `Engine.undo_slower`, whose
    sentences this gives.
    """
    if _engine is None or _engine.session is not None or not _engine.interceptor.is_here:
        return []
    told = []
    if _engine.has_graphs:
        told = _engine.interceptor.undisturbed(_engine.undo_slower)
        _engine.release_abandoned(namespace)
    else:
        _engine.context.store.sweep()
    return told


def preload() -> None:
    """Import what the first session needs, and make what the first report needs, so that the first cell does not wait
    for it. No device is touched: processes that are forked later may need it.
    """
    if "ipykernel" in sys.modules:
        with contextlib.suppress(ImportError):
            from ..render.timeline import view  # noqa: F401
            from ..widgets import report  # noqa: F401
    from .. import fixing, native, outlining, profiling, runtime, streams, tracing  # noqa: F401
    from ..fixing import later  # noqa: F401
    from ..runtime.accounts import settling  # noqa: F401

    with surviving("it showed a report of nothing"):
        nothing = build_report(CellEvidence(file="", source="", device="", backend="", wall_ms=0.0), ())
        nothing.to_text()
        nothing.to_html()
    if native.ready():
        with surviving("it loaded what operator streams need"):  # the first cell tries again
            native.load()
        with contextlib.suppress(ImportError):
            import cuda.bindings.driver  # noqa: F401


def keep_report(report: Report) -> None:
    """For `last_report`, of a session that has no engine."""
    global _report
    if _engine is not None:
        _engine.report = report
    else:
        _report = report


def last_report() -> Report | None:
    """The report of the last session that ended, or None."""
    return _engine.report if _engine is not None else _report
