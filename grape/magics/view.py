"""The interactive view of a report: shown after the static summary where a front end can show widgets."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING

from IPython.core.displaypub import DisplayPublisher

from ..errors import UsageError
from .history import history
from .open_views import OPEN
from .rewriting.rewrites import rewrites, why_no_fix

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from ..model import Finding
    from ..render import Report
    from ..widgets.report import Actions, ReportWidget

EVENTS_AT_ONCE = 500
"""Views of more events are completed after the cell: laying out a thousand takes 8 ms."""


def show_view(shell: InteractiveShell, report: Report) -> None:
    """Display the view of `report`. Nothing is shown without a front end, without anywidget, or with nothing to draw
    and no rewrite to ask for.

    The view of an earlier run of the same cell is closed: its output is gone.
    """
    if getattr(shell, "kernel", None) is None or type(shell.display_pub) is DisplayPublisher:
        return
    from ..render.timeline.view import build_view, events_of
    from ..rewrite.likely import has_likely_fix

    known = _cell_id(shell)
    before = OPEN.pop(known, None) if known is not None else None
    if before is not None:
        before.close()
    events = events_of(report)
    if not (events or any(one.fix or has_likely_fix(report.evidence, one) for one in report.findings)):
        return
    try:
        from ..widgets.report import ReportWidget
    except ImportError:
        return
    from IPython.display import display

    loop = _running_loop() if events > EVENTS_AT_ONCE else None
    view = build_view(report) if loop is None else build_view(report, limit=0)
    widget = ReportWidget(view.data, view.blob, _actions(report))
    OPEN[known or str(widget.model_id)] = widget
    display(widget)
    if loop is not None:
        loop.call_soon(_complete, widget, report)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _complete(widget: ReportWidget, report: Report) -> None:
    """Give the view its timelines, once the cell is over and the person has the report."""
    from ..render.timeline.view import build_view

    if widget.comm is not None:
        view = build_view(report)
        widget.show({**view.data, "findings": widget.view["findings"]}, view.blob)


def page_of(report: Report) -> str:
    """The view as an HTML page that stands alone."""
    from ..render.html.page import view_page
    from ..render.timeline.view import build_view
    from ..widgets import script, style

    return view_page(build_view(report.with_fixes()), script=script(), style=style())


def _cell_id(shell: InteractiveShell) -> str | None:
    try:
        found = shell.get_parent().get("metadata", {}).get("cellId")  # type: ignore[attr-defined]  # of ipykernel's
    except (AttributeError, LookupError):
        return None
    return str(found) if found else None


def _actions(report: Report) -> Actions:
    """The actions of the buttons; what they hand over is a cell's source to paste, for no cell runs while they act."""
    from ..widgets.report import Actions, Answer

    def finding_of(fix: int) -> Finding:
        found = next((one for one in report.with_fixes().findings if one.fix is not None and one.fix.id == fix), None)
        if found is None:
            raise UsageError(f"no fix {fix} in this report")
        return found

    def apply(fix: int) -> Answer:
        rewrites.apply(report, fix, None)
        new = rewrites.last()
        message = f"run this in the place of {new.file}"
        return Answer(message=message, applied=True, source=new.new, replaces=new.replaces, cell=new.file)

    def undo(fix: int) -> Answer:
        known = rewrites.find(finding_of(fix))
        if known is None:
            return Answer(message=f"fix {fix} is not applied", applied=False)
        index, old = known
        rewrites.undo(index, None)
        others = tuple(one.fix.id for one in old.findings if one.fix is not None and one.fix.id != fix)
        message = f"undone: {old}; run this in the place of {old.file}"
        given = {"source": old.old, "replaces": old.new, "cell": old.file}
        return Answer(message=message, applied=False, others=others, **given)

    def fixes() -> list[dict[str, object]]:
        from ..render.timeline.view import findings_view

        whole = report.with_fixes()
        return findings_view(whole, lambda finding: why_no_fix(whole, finding))

    def trace() -> str:
        from ..render.timeline.chrome import trace_text

        return trace_text(report)

    def undo_region(name: str) -> Answer:
        from .. import sessions

        row = next((region for region in report.regions if region.name == name), None)
        if row is None:
            raise UsageError(f"no region {name} in this report")
        return Answer(message=sessions.engine().undo_at(row.file, row.line), applied=False)

    return Actions(
        apply=apply,
        undo=undo,
        undo_region=undo_region,
        trace=trace,
        page=lambda: page_of(report),
        fixes=fixes if any(finding.fixable for finding in report.findings) else None,
        runs=lambda: [asdict(row) for row in history.rows()],
    )
