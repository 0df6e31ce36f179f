"""The runs of this notebook session under Grape: what they took, and what changed from one to the next.

Kept in memory, the last `MOST_RUNS` of them; a file is written only where somebody names one.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..render.comparison import compare_reports, comparison_text, damaged, reports_of
from ..render.jsontext import plain
from ..render.units import duration, one_line, plural
from ..render.verdict.next_step import next_step

if TYPE_CHECKING:
    from ..render import Report

MOST_RUNS = 100
_ALIKE = 0.7
"""Cells without a name of the front end's are the same one where so much of their source is. Two loops that have
nothing but Python in common come to 0.6."""
_SHOWN_CHANGES = 3
_WIDTH = 100
_FILE = re.compile(r"(?P<file>.+\.json)(?::(?P<number>\d+))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a cell. `report` is its `to_dict()`; `source` is what was typed; `cell` the front end's name of it."""

    number: int
    cell: str | None
    at: float
    source: str
    report: Mapping[str, Any]
    versions: Mapping[str, str]

    @property
    def name(self) -> str:
        return str(self.report["cell"]["file"])

    def to_dict(self) -> dict[str, object]:
        began = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(self.at))
        return {
            "number": self.number,
            "cell": self.cell,
            "at": began,
            "versions": dict(self.versions),
            "source": self.source,
            "report": plain(self.report),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run as it is shown; `plain` is "" where that is not known."""

    number: int
    at: str
    cell: str
    took: str
    plain: str
    verdict: str
    changes: tuple[str, ...]


class History:
    """The last runs, numbered from 1 as they came."""

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._count = 0
        self._steps: dict[str, str | None] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def clear(self) -> None:
        self._runs.clear()
        self._steps.clear()
        self._count = 0

    def numbers(self) -> list[int]:
        return [run.number for run in self._runs]

    def add(self, report: Report, source: str, cell: str | None) -> None:
        """A run has ended."""
        self._count += 1
        run = Run(
            number=self._count,
            cell=cell,
            at=time.time(),
            source=source,
            report=report.to_dict(),
            versions=_versions(),
        )
        self._runs = [*self._runs[1 - MOST_RUNS :], run]

    def as_shown(self, report: Report, source: str) -> Report:
        """`report` as it stands below its cell: without the next step that the last run of the same source had, too."""
        step = next_step(report)
        said = step.replace(report.evidence.file, "") if step is not None else None
        told = said is not None and self._steps.pop(source, None) == said
        self._steps[source] = said
        while len(self._steps) > MOST_RUNS:
            del self._steps[next(iter(self._steps))]
        return replace(report, step_told=True) if told else report

    def text(self) -> str:
        """A line for each run, and below it what changed since the run of the same cell before."""
        if not self._runs:
            return "nothing has run under %%grape yet"
        lines = []
        for row in self.rows():
            times = row.took + (f", plain {row.plain}" if row.plain else "")
            lines.append(f"{row.number:>4}  {row.at}  {row.cell}  {times}  {row.verdict}")
            lines += [f"      {change}" for change in row.changes]
        if self._count > len(self._runs):
            lines.insert(0, f"the last {len(self._runs)} of {self._count} runs")
        return "\n".join([*lines, "%grape compare A B shows two of them side by side"])

    def rows(self) -> list[RunRow]:
        """The runs as they are shown, each with what changed since the run of the same cell before."""
        found = []
        for index, run in enumerate(self._runs):
            before = _before(run, self._runs[:index])
            found.append(_row(run, _changes(before, run) if before is not None else []))
        return found

    def to_json(self) -> str:
        """All runs, for a file."""
        content = {"version": 1, "runs": [run.to_dict() for run in self._runs]}
        return json.dumps(content, indent=1, allow_nan=False) + "\n"

    def compare(self, first: str, second: str) -> str:
        """Say what changed from one run to another: numbers of `text`, or files of reports or of a history. Raises
        `UsageError`.
        """
        one, other = self._find(first), self._find(second)
        for run, name in ((one, first), (other, second)):
            with damaged(name):
                comparison_text([run.report], [run.report])
        parts = [comparison_text([one.report], [other.report]), *_new_versions(one, other)]
        if one.source and other.source:
            diff = difflib.unified_diff(
                one.source.splitlines(), other.source.splitlines(), f"run {first}", f"run {second}", lineterm="", n=2
            )
            parts += list(diff) or ["  the source is the same"]
        return "\n".join(parts)

    def _find(self, name: str) -> Run:
        if name.isascii() and name.isdigit():
            for run in self._runs:
                if run.number == int(name):
                    return run
            known = f"{self._runs[0].number} to {self._runs[-1].number}" if self._runs else "there is none"
            raise UsageError(f"no run {name} in %grape history ({known})")
        match = _FILE.fullmatch(name)
        if match is None:
            raise UsageError(f"%grape compare takes numbers of %grape history or .json files, not '{name}'")
        return _read(match["file"], int(match["number"]) if match["number"] else None)


def _row(run: Run, changes: list[str]) -> RunRow:
    cell = run.report["cell"]
    return RunRow(
        number=run.number,
        at=time.strftime("%H:%M:%S", time.localtime(run.at)),
        cell=run.name,
        took=duration(cell["wall_ms"]),
        plain=duration(cell["plain_ms"]) if cell["plain_ms"] is not None else "",
        verdict=one_line(run.report["verdict"], _WIDTH),
        changes=tuple(changes),
    )


def _before(run: Run, earlier: Sequence[Run]) -> Run | None:
    """The last run of the same cell, as the front end names it or, where it does not, as its source tells."""
    for known in reversed(earlier):
        if run.cell is not None and known.cell is not None:
            if run.cell == known.cell:
                return known
        elif known.source == run.source or difflib.SequenceMatcher(None, known.source, run.source).ratio() >= _ALIKE:
            return known
    return None


def _changes(before: Run, run: Run) -> list[str]:
    """In a few lines: source, versions, what became better or worse."""
    lines = [line for line in difflib.ndiff(before.source.splitlines(), run.source.splitlines()) if line[0] in "+-"]
    gone, come = (sum(line[0] == sign for line in lines) for sign in "-+")
    source = [f"source since run {before.number}: {plural(come, 'line')} new, {gone} gone"] if lines else []
    told = {"better", "worse", *(["note"] if source else [])}  # times as written count where somebody rewrote it
    found = [change for change in compare_reports([before.report], [run.report]) if change.kind in told]
    marks = {"better": "+", "worse": "-", "note": " "}
    shown = [f"{marks[change.kind]} {one_line(change.text, _WIDTH)}" for change in found[:_SHOWN_CHANGES]]
    rest = len(found) - len(shown)
    more = [f"and {plural(rest, 'more change')}: %grape compare {before.number} {run.number}"] if rest else []
    return [*source, *_new_versions(before, run), *shown, *more]


def _new_versions(before: Run, run: Run) -> list[str]:
    """Versions that are others now, of what both know."""
    return [
        f"  {name} {old}, now {run.versions[name]}"
        for name, old in before.versions.items()
        if name in run.versions and run.versions[name] != old
    ]


def _versions() -> dict[str, str]:
    from .. import __version__

    torch = sys.modules.get("torch")
    found = {"grape": __version__, "python": sys.version.split()[0]}
    if torch is not None:
        found["torch"] = str(torch.__version__)
    return found


def _read(file: str, number: int | None) -> Run:
    """A run of a file: of a history the one with this number, or the last; else the report of ``--json``."""
    try:
        content = json.loads(Path(file).expanduser().read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"cannot read '{file}': {error.strerror or error}; check the path") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"'{file}' is not JSON: {' '.join(str(error).split())[:120]}") from None
    if not isinstance(content, dict) or "runs" not in content:
        (report, *more) = reports_of(content, file)
        if more:
            raise UsageError(f"'{file}' holds the reports of {len(more) + 1} cells; name a file of one")
        return Run(number=0, cell=None, at=0.0, source="", report=report, versions={})
    try:
        runs = {run["number"]: run for run in content["runs"]}
        chosen = runs.get(number if number is not None else max(runs))
        if chosen is None:
            raise UsageError(f"no run {number} in '{file}' (it has {', '.join(map(str, runs))})")
        (report,) = reports_of(chosen["report"], file)
        return Run(
            number=chosen["number"],
            cell=None,
            at=0.0,
            source=chosen["source"],
            report=report,
            versions=chosen["versions"],
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"'{file}' is a damaged history: {type(error).__name__}: {error}") from None


history = History()
"""Of this process; ``%grape reset`` and unloading forget it."""
