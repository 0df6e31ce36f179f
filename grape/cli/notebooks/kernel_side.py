"""Functions that `grape run` calls in the notebook's kernel, between cells. Runs there; nothing is bound in its
namespace.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...render import Report

_before: Report | None = None


def prepare() -> None:
    """Load the extension where it is not loaded, and remember the last report."""
    from IPython.core.getipython import get_ipython

    import grape

    global _before
    shell = get_ipython()
    assert shell is not None and shell.extension_manager is not None
    shell.extension_manager.load_extension("grape")
    _before = grape.last


def collect(notebook: str, width: int, color: bool, extra: tuple[str, ...] = ()) -> str:
    """The report of the cell that just ran, as JSON with the fields of `CellReport`; "null" where it made none."""
    from dataclasses import replace

    import grape

    report = grape.last
    if report is None or report is _before:
        return "null"
    from grape.sessions.running import IN_THE_NOTEBOOK

    notes = tuple([note.removesuffix(IN_THE_NOTEBOOK) for note in report.evidence.notes])
    report = replace(report.with_fixes(), notebook=notebook, evidence=replace(report.evidence, notes=notes))
    return json.dumps(
        {
            "report": json.loads(report.to_json()),
            "html": report.to_html(),
            "text": report.to_text(width=width, color=color),
            **{name: rendered(report, name) for name in extra},
            "has_timeline": report.has_timeline,
        }
    )


def rendered(report: Report, what: str) -> str:
    """The text of a "view", for `grape view`, or of a "trace"."""
    from ...render.html.page import view_json
    from ...render.timeline.chrome import trace_text
    from ...render.timeline.view import build_view

    return view_json(build_view(report)) if what == "view" else trace_text(report)
