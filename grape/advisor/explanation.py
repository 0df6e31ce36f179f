"""The documentation page of a finding code."""

from __future__ import annotations

import difflib
from importlib import resources

from ..errors import UsageError
from ..model import CODES


def explain(code: str) -> str:
    """The page of `code` ("GR101", or its name "host-sync") as Markdown. Raises `UsageError` for an unknown code."""
    wanted = code.strip()
    by_name = {name: known for known, name in CODES.items()}
    known = by_name.get(wanted.lower(), wanted.upper())
    if known not in CODES:
        close = difflib.get_close_matches(wanted.upper(), CODES, n=1, cutoff=0.6) or [
            by_name[name] for name in difflib.get_close_matches(wanted.lower(), by_name, n=1, cutoff=0.5)
        ]
        hint = f"; did you mean {close[0]} ({CODES[close[0]]})?" if close else f"; codes: {', '.join(CODES)}"
        raise UsageError(f"unknown finding code '{wanted}'{hint}")
    return resources.files(__package__).joinpath("pages", f"{known}.md").read_text(encoding="utf-8")
