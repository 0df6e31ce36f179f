"""Work of an assistant on files: profile, look at findings, propose a rewrite, prove it, apply it, undo it."""

from __future__ import annotations

import copy
import json
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import UsageError
from ...render.files import write_bytes
from ...render.json_types import FindingJson, ReportJson
from ...render.units import shown_diff
from ...rewrite import split_magic, unified_diff
from ..apply import checked
from ..files import ScriptText, read_json
from ..notebooks.notebook import code_cells, read_notebook
from ..parser import is_script
from ..written.rewriting import (
    Accepted,
    Findings,
    RawNotebook,
    accepted,
    cell_text,
    rewritten_notebook,
    rewritten_script,
)
from .processes import ran
from .proof import Program, prove

MOST_REPORTS = 32
_TAIL = 2000
"""Characters of a program's output that are handed on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Profiled:
    """A file as it was when it ran, and what was reported of it: one report for each cell."""

    number: int
    path: Path
    shown: str
    words: tuple[str, ...]
    content: bytes
    reports: tuple[ReportJson, ...]

    def findings(self) -> list[FindingJson]:
        return [finding for report in self.reports for finding in report["findings"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Applied:
    number: int
    path: Path
    old: bytes
    new: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rewritten:
    """`said` tells of each fix; `before` and `after` are what runs, `content` the file with the rewrites."""

    content: bytes
    before: Program
    after: Program
    diff: str
    said: tuple[str, ...]


class Work:
    """Of one server. Files are named from `folder`, in which programs run; one thing is done at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._reports: dict[int, _Profiled] = {}
        self._applied: list[_Applied] = []
        self._count = 0
        self._changes = 0
        self._lock = threading.Lock()

    def profile(
        self,
        path: str,
        *,
        arguments: Sequence[str] = (),
        cells: Sequence[int] = (),
        engine: str | None = None,
        timeout_s: float = 600.0,
    ) -> dict[str, object]:
        """Run a script, or a notebook, under Grape. Raises a `GrapeError`."""
        with self._lock:
            file = self._file(path)
            if is_script(file.name) and cells:
                raise UsageError(f"cells are for notebooks, and '{path}' is a script")
            if not is_script(file.name) and arguments:
                raise UsageError(f"arguments are for scripts, and '{path}' is a notebook")
            content = file.read_bytes()
            with tempfile.TemporaryDirectory(prefix="grape-report-") as place:
                out = Path(place) / "report.json"
                words = ["-m", "grape", "run", "--json", str(out)]
                words += [word for number in cells for word in ("--cell", str(number))]
                words += ["--engine", engine] if engine is not None else []
                done = ran([*words, str(file), *arguments], folder=self._folder, timeout_s=timeout_s)
                if not out.exists():
                    raise UsageError(f"no report of '{path}': {_last(done.err) or f'exit code {done.code}'}")
                read = read_json(str(out))
            self._count += 1
            reports = tuple(read.get("cells", [read]))
            made = _Profiled(
                number=self._count,
                path=file,
                shown=path,
                words=tuple(arguments),
                content=content,
                reports=reports,
            )
            self._reports[made.number] = made
            while len(self._reports) > MOST_REPORTS:
                del self._reports[next(iter(self._reports))]
            return {
                "report": made.number,
                "file": path,
                "exit_code": done.code,
                "cells": [_summary(report) for report in reports],
                "findings": len(made.findings()),
                "rewrites": sum(finding["fix"] is not None for finding in made.findings()),
                "stdout_tail": done.out[-_TAIL:],
            }

    def findings(self, report: int) -> dict[str, object]:
        """All findings of a report, numbered from 1. Raises `UsageError`."""
        made = self._known(report)
        shown = [
            {
                "finding": number,
                **{key: finding[key] for key in ("code", "name", "severity", "file", "line", "end_line", "message")},
                "predicted_ms_per_call": finding["predicted_ms_per_call"],
                "has_rewrite": finding["fix"] is not None,
                "rewrite_compared": bool(finding["fix"] and finding["fix"]["verified"]),
            }
            for number, finding in enumerate(made.findings(), start=1)
        ]
        return {"report": report, "file": made.shown, "findings": shown}

    def propose(self, report: int, findings: Sequence[int]) -> dict[str, object]:
        """The rewrites of these findings together, as a difference; nothing is written. Raises a `GrapeError`."""
        made = self._known(report)
        rewritten = self._rewrite(made, findings)
        return {"report": report, "file": made.shown, "diff": rewritten.diff, "said": list(rewritten.said)}

    def prove(
        self, report: int, findings: Sequence[int], *, repeats: int = 3, timeout_s: float = 600.0
    ) -> dict[str, object]:
        """Run the original and the rewritten program and compare them. Raises a `GrapeError`."""
        if not 0 <= repeats <= 20:
            raise UsageError(f"repeats is a number from 0 to 20, not {repeats}")
        made = self._known(report)
        rewritten = self._rewrite(made, findings)
        with self._lock:
            folder = self._folder if is_script(made.path.name) else made.path.parent
            proof = prove(rewritten.before, rewritten.after, folder=folder, repeats=repeats, timeout_s=timeout_s)
        return {"report": report, "file": made.shown, **proof.to_dict()}

    def apply(self, report: int, findings: Sequence[int]) -> dict[str, object]:
        """Write the rewrites into the file, if that is as it was when it ran. Raises a `GrapeError`."""
        made = self._known(report)
        rewritten = self._rewrite(made, findings)
        with self._lock:
            if made.path.read_bytes() != made.content:
                raise UsageError(f"'{made.shown}' is not as it was when it ran; profile it again")
            write_bytes(made.path, rewritten.content, "the rewritten file")
            self._changes += 1
            change = _Applied(
                number=self._changes,
                path=made.path,
                old=made.content,
                new=rewritten.content,
            )
            self._applied.append(change)
        return {"change": change.number, "file": made.shown, "said": list(rewritten.said), "diff": rewritten.diff}

    def undo(self, change: int | None = None) -> dict[str, object]:
        """Give a file back what it held before a change, the last one where none is named. Raises `UsageError`."""
        with self._lock:
            known = {one.number: one for one in self._applied}
            number = change if change is not None else max(known, default=0)
            found = known.get(number)
            if found is None:
                there = ", ".join(map(str, known)) or "there is none"
                raise UsageError(f"no change {number} to undo ({there})" if change else "there is no change to undo")
            if found.path.read_bytes() != found.new:
                raise UsageError(f"'{found.path}' was edited since change {number}; it is left as it is")
            write_bytes(found.path, found.old, "the file as it was")
            self._applied.remove(found)
            return {"undone": number, "file": str(found.path), "changes": [one.number for one in self._applied]}

    def _file(self, path: str) -> Path:
        file = (self._folder / Path(path).expanduser()).resolve()
        if not (is_script(file.name) or file.suffix == ".ipynb"):
            raise UsageError(f"'{path}' is neither a script (.py) nor a notebook (.ipynb)")
        if not file.is_file():
            raise UsageError(f"there is no file '{path}' in {self._folder}")
        return file

    def _known(self, report: int) -> _Profiled:
        found = self._reports.get(report)
        if found is None:
            raise UsageError(f"no report {report} ({', '.join(map(str, self._reports)) or 'profile a file first'})")
        return found

    def _rewrite(self, made: _Profiled, numbers: Sequence[int]) -> _Rewritten:
        findings = made.findings()
        if not numbers:
            raise UsageError("name at least one finding")
        for number in numbers:
            if not 1 <= number <= len(findings):
                raise UsageError(f"no finding {number} in report {made.number}, which has {len(findings)}")
            if findings[number - 1]["fix"] is None:
                raise UsageError(f"finding {number} ({findings[number - 1]['code']}) has no rewrite")
        chosen = [Findings(findings=[findings[number - 1] for number in numbers])]
        taken = list(accepted(chosen, codes=None, unverified=True))
        if is_script(made.path.name):
            return self._rewrite_script(made, taken)
        return self._rewrite_notebook(made, taken)

    def _rewrite_script(self, made: _Profiled, taken: list[Accepted]) -> _Rewritten:
        script = ScriptText.of(made.content, made.shown)
        source, said = rewritten_script(script.text, taken, made.reports[0]["cell"]["file"], made.shown)
        content = script.encoded(source)
        return _Rewritten(
            content=content,
            before=Program(path=made.path, words=made.words, source=made.content),
            after=Program(path=made.path, words=made.words, source=content),
            diff=shown_diff(unified_diff(script.text, source, made.shown)),
            said=tuple(said),
        )

    def _rewrite_notebook(self, made: _Profiled, taken: list[Accepted]) -> _Rewritten:
        raw: RawNotebook = json.loads(made.content)
        after = copy.deepcopy(raw)
        changed, said = rewritten_notebook(after, taken, made.shown)
        runs = {cell.number for cell in code_cells(read_notebook(made.path)) if cell.kind != "empty"}
        versions = [[cell_text(cell) for cell in one["cells"] if cell["cell_type"] == "code"] for one in (raw, after)]
        diffs = [unified_diff(versions[0][n - 1], versions[1][n - 1], f"cell {n}") for n in changed]
        programs = [
            Program(
                path=made.path,
                cells=tuple((n, split_magic(text)[1]) for n, text in enumerate(texts, start=1) if n in runs),
                changed=tuple(changed),
            )
            for texts in versions
        ]
        return _Rewritten(
            content=checked(after).encode("utf-8"),
            before=programs[0],
            after=programs[1],
            diff=shown_diffs(diffs),
            said=tuple(said),
        )


def shown_diffs(diffs: Sequence[str]) -> str:
    return "\n".join(map(shown_diff, diffs))


def _summary(report: ReportJson) -> dict[str, object]:
    """The part of a report that tells where to look."""
    cell = report["cell"]
    return {
        "verdict": report["verdict"],
        "device": report["device"],
        "file": cell["file"],
        **{key: cell[key] for key in ("wall_ms", "plain_ms", "slower", "error")},
        "regions": [
            {key: region[key] for key in ("name", "file", "line", "outcome", "reason", "calls", "replays", "speedup")}
            for region in report["regions"]
        ],
    }


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("grape: ") if lines else ""
