"""The files that `grape run` writes: one JSON text, one HTML page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from .kernel import CellReport

__all__ = ["Section", "html_page", "json_text"]

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
</style>
</head>
<body>
<h1>{title}</h1>
{sections}
</body>
</html>
"""

_SECTION = """\
<section id="{id}">
<h2>{title}</h2>
<details><summary>Source</summary><pre>{source}</pre></details>
{html}
</section>"""


def json_text(reports: Sequence[CellReport]) -> str:
    """One report as its `to_dict()`; several as ``{"version": 1, "cells": [...]}`` in the order of the notebook."""
    content = reports[0].report if len(reports) == 1 else {"version": 1, "cells": [item.report for item in reports]}
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One report of a page, below its title and the source that ran; `html` is a fragment."""

    id: str
    title: str
    source: str
    html: str


def html_page(title: str, sections: Sequence[Section]) -> str:
    """A page that stands alone."""
    shown = [
        _SECTION.format(id=one.id, title=escape(one.title), source=escape(one.source), html=one.html)
        for one in sections
    ]
    return _PAGE.format(title=escape(title), sections="\n".join(shown))
