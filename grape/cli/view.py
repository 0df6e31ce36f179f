"""`grape view`: a recorded view, or a report, as one HTML page that needs nothing else."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import UsageError
from ..render.files import write_text
from ..render.html.page import read_view, view_page
from ..widgets import script, style
from .files import parse_json, read_text
from .written.page import Section, html_page

_PAGES = ('id="grape-view"', "<title>Grape: ")


def view(arguments: argparse.Namespace) -> int:
    """Read FILE.json and write the page into the current directory unless told where. Raises `UsageError`."""
    source = Path(arguments.file).expanduser()
    text = read_text(arguments.file)
    content = parse_json(text, arguments.file)
    if _is_report(content):
        page = _report_page(content, source)
    else:
        page = view_page(read_view(text, source.name), script=script(), style=style())
    target = Path(arguments.out).expanduser() if arguments.out else Path(source.with_suffix(".html").name)
    if target.exists() and target.samefile(source):
        raise UsageError(f"'{arguments.file}' would be overwritten; name another file with --out")
    if not arguments.out and target.exists() and not any(mark in read_text(str(target)) for mark in _PAGES):
        raise UsageError(f"'{target}' exists and is no page of Grape's; name another file with --out")
    write_text(target, page, "the page")
    print(f"wrote {target}")
    return 0


def _is_report(content: object) -> bool:
    """True for what ``--json`` wrote, of one cell or of several."""
    reports = content.get("cells", [content]) if isinstance(content, dict) else []
    return isinstance(reports, list) and any(
        {"verdict", "findings"} <= set(one) for one in reports if isinstance(one, dict)
    )


def _report_page(content: object, source: Path) -> str:
    """Its summary: a report holds figures, and no events to draw."""
    from ..render.comparison import damaged, reports_of
    from ..render.timeline.recorded import recorded_report

    sections = []
    for number, one in enumerate(reports_of(content, source.name), start=1):
        with damaged(source.name):
            report = recorded_report(one)
            html = report.to_html()
        sections.append(Section(id=f"report-{number}", title=report.evidence.file, html=html))
    return html_page(source.name, sections)
