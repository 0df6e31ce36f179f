"""`grape view`: the interactive view of a recorded report, as one HTML page that needs nothing else."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import UsageError
from ..render.files import write_text
from ..render.page import read_view, view_page
from ..widgets import script, style

__all__ = ["view"]


def view(arguments: argparse.Namespace) -> int:
    """Read FILE.json and write the page, beside it unless told where. Raises `UsageError`."""
    source = Path(arguments.file).expanduser()
    try:
        text = source.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"'{source.name}' is not JSON") from None
    except OSError as error:
        raise UsageError(f"cannot read '{arguments.file}': {error.strerror}") from None
    page = view_page(read_view(text, source.name), script=script(), style=style())
    target = Path(arguments.out).expanduser() if arguments.out else source.with_suffix(".html")
    if target.exists() and target.samefile(source):
        raise UsageError(f"'{arguments.file}' would be overwritten; name another file with --out")
    write_text(target, page, "the page")
    print(target)
    return 0
