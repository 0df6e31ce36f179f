"""The files that `grape run` writes of a report: JSON, one HTML page, the interactive view, a trace."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from ...errors import UsageError
from ...render.files import write_text
from ...render.html.page import read_view, view_json, view_page
from ...render.timeline.view import View
from ...widgets import script, style

NO_TIMELINE = "no call of {} was profiled: there is memory to draw, and no timeline"

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Grape: {title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }}
section {{ margin-bottom: 3rem; }}
pre {{ background: #f5f5f5; color: #222; padding: .75rem; overflow-x: auto; }}
{style}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
{sections}
</main>
{script}</body>
</html>
"""

_SECTION = """\
<section id="{id}">
<h2>{title}</h2>
{source}{html}
{view}</section>"""

_SOURCE = "<details><summary>Source</summary><pre>{source}</pre></details>\n"

_VIEW = """\
<div class="grape-timelines" data-beside="{beside}"><noscript>Timelines are drawn with JavaScript.</noscript></div>
<script type="application/json">{data}</script>
"""

_START = """\
<script type="module">
{script}
for (const place of document.querySelectorAll(".grape-timelines")) {{
  startPage(place, place.nextElementSibling.textContent, place.dataset.beside === "true");
}}
</script>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One report of a page, below its title and the source that ran; `html` is a fragment, `view` what to draw."""

    id: str
    title: str
    html: str
    source: str = ""
    view: View | None = None


def json_text(reports: Sequence[Mapping[str, object]]) -> str:
    """One report as its `to_dict()`; several as ``{"version": 1, "cells": [...]}`` in the order of the notebook."""
    content = reports[0] if len(reports) == 1 else {"version": 1, "cells": list(reports)}
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def html_page(title: str, sections: Sequence[Section]) -> str:
    """A page that stands alone. Where a section has timelines it draws them; else nothing in it runs."""
    draws = any(map(_draws, sections))
    return _PAGE.format(
        title=escape(title),
        sections="\n".join(map(_section, sections)),
        style=style() if draws else "",
        script=_START.format(script=script()) if draws else "",
    )


def _draws(section: Section) -> bool:
    return section.view is not None and bool(section.view.data["timelines"])


def _section(section: Section) -> str:
    view = ""
    if section.view is not None and _draws(section):
        data = view_json(section.view).replace("<", "\\u003c")
        view = _VIEW.format(data=data, beside=str(bool(section.html)).lower())
    source = _SOURCE.format(source=escape(section.source)) if section.source else ""
    return _SECTION.format(id=section.id, title=escape(section.title), source=source, html=section.html, view=view)


def check_view_name(file: str | None) -> None:
    """Raises `UsageError` where the end of the name does not tell what to write."""
    if file is not None and Path(file).suffix.lower() not in (".html", ".json"):
        raise UsageError(f"cannot tell the format of '{file}'; end its name in .html, or in .json for grape view")


def write_drawn(file: str | None, what: str, text: str | None, number: int | None) -> None:
    """Write a "view" (a page, or what `grape view` reads) or a "trace" to the file that was named, if one was; of one
    of several cells to a file with its number.
    """
    if file is None or text is None:
        return
    name = Path(file)
    target = str(name if number is None else name.with_name(f"{name.stem}-cell-{number}{name.suffix}"))
    if what == "view" and name.suffix.lower() == ".html":
        text = view_page(read_view(text, target), script=script(), style=style())
    write_text(target, text, f"the {what}")
