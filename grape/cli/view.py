"""`grape view`: the interactive view of a recorded report, as one HTML page that needs nothing else."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..render.files import write_text
from ..render.page import read_view, view_page
from ..widgets import script, style
from .files import parse_json, read_text

__all__ = ["view"]

_PAGE = 'id="grape-view"'


def view(arguments: argparse.Namespace) -> int:
    """Read FILE.json and write the page into the current directory unless told where. Raises `UsageError`."""
    source = Path(arguments.file).expanduser()
    text = read_text(arguments.file)
    _check_kind(parse_json(text, arguments.file), arguments.file)
    page = view_page(read_view(text, source.name), script=script(), style=style())
    target = Path(arguments.out).expanduser() if arguments.out else Path(source.with_suffix(".html").name)
    if target.exists() and target.samefile(source):
        raise UsageError(f"'{arguments.file}' would be overwritten; name another file with --out")
    if not arguments.out and target.exists() and _PAGE not in read_text(str(target)):
        raise UsageError(f"'{target}' exists and is no page of Grape's; name another file with --out")
    write_text(target, page, "the page")
    print(f"wrote {target}")
    return 0


def _check_kind(content: Any, file: str) -> None:
    """A report is what people have at hand; it has figures, and no events to draw."""
    reports = content.get("cells", [content]) if isinstance(content, dict) else []
    kinds = [set(one) for one in reports if isinstance(one, dict)] if isinstance(reports, list) else []
    if any({"verdict", "findings"} <= kind for kind in kinds):
        raise UsageError(
            f"'{file}' is a report, which holds no timelines to draw; %grape view FILE.json writes a view in a "
            "notebook, and grape compare reads reports"
        )
