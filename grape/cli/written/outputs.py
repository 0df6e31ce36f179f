"""Files that a run is asked to write, the terminal it prints to, and what --fail-on looks for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from ...errors import UsageError
from ...render.files import check_writable
from ...render.json_types import ReportJson

_SEVERITIES = {"blocker": ("blocker",), "costly": ("blocker", "costly")}


def check_outputs(source: Path, kind: str, files: Sequence[str]) -> None:
    """Find out before a long run that a file cannot be written. `source`, a `kind`, runs. Raises `UsageError`."""
    seen: set[Path] = set()
    for file in files:
        check_writable(file)
        target = Path(file).expanduser()
        resolved = target.resolve()
        if resolved == source.resolve() or (target.exists() and source.exists() and target.samefile(source)):
            raise UsageError(f"'{file}' is the {kind} itself, which is never changed; name another file")
        if resolved in seen:
            raise UsageError(f"'{file}' is named twice; give each output a file of its own")
        seen.add(resolved)


def width() -> int:
    """Columns of the terminal, within reason."""
    return max(40, min(shutil.get_terminal_size((100, 24)).columns, 160))


def has_color(stream: object) -> bool:
    isatty = getattr(stream, "isatty", None)
    return bool(isatty and isatty()) and "NO_COLOR" not in os.environ


def found(reports: Iterable[tuple[str, ReportJson]], fail_on: str | None) -> str | None:
    """A line about findings as severe as --fail-on asks; None where there are none. Reports come with their places."""
    if fail_on is None:
        return None
    places = [
        f"{finding['code']} in {place}" + (f", line {finding['line']}" if finding["line"] else "")
        for place, report in reports
        for finding in report["findings"]
        if finding["severity"] in _SEVERITIES[fail_on]
    ]
    if not places:
        return None
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    return f"--fail-on {fail_on}: {'; '.join(places[:3])}{more}"
