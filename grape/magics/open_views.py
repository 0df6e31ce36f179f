"""The views that are open in front ends, and what they can do for a cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..widgets.report import ReportWidget

OPEN: dict[str, ReportWidget] = {}
"""The widget of each cell, by the cell's id (or by the widget's own where the front end names no cell)."""


def close_views() -> None:
    """Close every view that is open; what they showed leaves the page."""
    while OPEN:
        OPEN.popitem()[1].close()


def place(source: str, replaces: str, cell: str) -> bool:
    """Have a view that is open put `source` into the cell `cell`. False where no front end can."""
    able = [widget for widget in OPEN.values() if widget.comm is not None and widget.places]
    if able:
        able[-1].place(source, replaces, cell)
    return bool(able)
