"""Cells without Grape are served by what streams learned in cells with it."""

from __future__ import annotations

from ...streams import Stream, shared
from ..engine import CELLS
from ..process import engine
from .by_streams import hindrance


def begin_plain_cell() -> bool:
    """A cell without Grape begins: what streams learned serves it. True where `end_plain_cell` has to be called."""
    if not shared.serves(CELLS) or engine().session is not None or hindrance(engine()):
        return False
    if engine().has_graphs:
        return False  # they serve the cell, as nothing of theirs does inside a stream
    from ...runtime import hold_off, let_through

    hold_off(shared)
    entered = isinstance(shared.enter(None), Stream)
    if not entered:
        let_through(shared)
    return entered


def end_plain_cell() -> None:
    """It has ended. What was issued late may raise."""
    from ...runtime import let_through

    try:
        shared.leave()
    finally:
        let_through(shared)
