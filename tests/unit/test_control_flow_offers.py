"""GR102 as a person meets it: the rewrite is compared, advised, shown and handed over as one and the same."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import pytest
import torch

from grape.magics.rewriting.rewrites import AppliedRewrites, diff_text
from grape.options import Options
from grape.render.units import shown_diff
from grape.rewrite.control_flow import RewrittenFlow, rewrite_control_flow
from grape.sessions import Cell, Session, seen
from grape.sessions.gains import TakenFixes, gains
from tests.unit.sample_evidence import measured, region

DEFINE = """\
def solve(x):
    while x.abs().sum() > 1:
        x = x * 0.5
    if x[0] > 0:
        x = x + 1
    return x * 2
"""
USE = "found = [solve(x) for x in starts]\n"


pytestmark = pytest.mark.usefixtures("closed_engine")


class Notebook:
    """Cells in one namespace, each a file, observed where asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.names: dict[str, Any] = {"__name__": "__main__", "torch": torch}
        self.names["starts"] = [torch.randn(4, generator=torch.Generator().manual_seed(n)) * 4 for n in range(24)]

    def run(self, source: str, name: str) -> str:
        path = self._folder / name
        path.write_text(source)
        linecache.checkcache(str(path))
        linecache.getlines(str(path))
        with torch.no_grad():
            exec(compile(source, str(path), "exec"), self.names)
        return str(path)

    def observed(self, source: str, name: str, taken: tuple[TakenFixes, ...] = ()) -> Any:
        path = str(self._folder / name)
        cell = Cell(name=path, source=source, filename=path, taken=taken)
        session = Session(options=Options(), cell=cell, namespace=self.names, file_names=str)
        session.open()
        self.run(source, name)
        session.close(None)
        assert session.report is not None
        return session.report


def test_what_is_advised_is_what_is_shown_and_handed_over(tmp_path: Path) -> None:
    notebook = Notebook(tmp_path)
    defined = notebook.run(DEFINE, "define.py")
    notebook.run(USE, "plain.py")
    expected = notebook.names["found"]
    report = notebook.observed(USE, "use.py").with_fixes()
    findings = [finding for finding in report.findings if finding.code == "GR102" and finding.fix is not None]
    assert [finding.at.line for finding in findings if finding.at is not None] == [2, 4]
    applied = AppliedRewrites()
    for finding in findings:
        assert finding.fix is not None and finding.fix.verified, finding.fix
        assert "let the device decide, as in the rewrite below" in (finding.advice or "")
        assert "torch.where" not in (finding.advice or "")
        assert shown_diff(finding.fix.diff).rstrip() in diff_text(report, finding.fix.id)
        applied.apply(report, finding.fix.id, None)
    handed = applied.last()
    assert (handed.file, handed.old) == (defined, DEFINE)
    whole = rewrite_control_flow(DEFINE, filename="define.py")
    assert isinstance(whole, RewrittenFlow)
    assert whole.source.count("_flow.") == handed.new.count("_flow.")
    notebook.run(handed.new, "handed.py")
    report = notebook.observed(USE, "use.py")
    (region,) = report.to_dict()["regions"]
    assert (region["outcome"], region["verified"]) == ("replayed", "identical") and region["replays"] > 0
    assert all(torch.equal(one, other) for one, other in zip(notebook.names["found"], expected, strict=True))
    assert not [finding for finding in report.findings if finding.code in ("GR101", "GR102")]


def test_the_next_report_says_what_fixes_brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def as_on_a_gpu(*arguments: Any, backend: str) -> list[str]:
        assert backend == "tape" and gains(*arguments, backend=backend) == []
        return gains(*arguments, backend="cuda")

    monkeypatch.setattr(seen, "gains", as_on_a_gpu)
    notebook = Notebook(tmp_path)
    notebook.run(DEFINE, "define.py")
    report = notebook.observed(USE, "use.py")
    before = next(region for region in report.regions if region.name == "solve")
    applied = AppliedRewrites()
    for number in (1, 2):
        applied.apply(report, number, None)
    (taken,) = applied.taken()
    assert (taken.region, taken.fixes) == ("solve", "fixes 1, 2 (GR102)")
    assert taken.before_ms == (before.after_ms if 2 * before.replays > before.calls else before.before_ms).median_ms
    assert not notebook.observed(USE, "use.py", applied.taken()).evidence.notes, "the rewritten cell did not run yet"
    notebook.run("%%grape\n".replace("%", "# ") + applied.last().new, "handed.py")
    report = notebook.observed(USE, "use.py", applied.taken())
    assert not report.evidence.notes, "other source than the one that was handed over"
    notebook.run(applied.last().new, "handed.py")
    report = notebook.observed(USE, "use.py", applied.taken())
    (note,) = report.evidence.notes
    assert note.startswith("fixes 1, 2 (GR102): solve took ") and " a call before it and " in note
    assert note in str(report)
    applied.undo(0, None)
    assert applied.taken() == ()


@pytest.mark.parametrize(
    ("before", "after", "predicted", "expected"),
    [
        (4.0, 0.5, 3.2, "f took 2.00 ms a call before it and 0.500 ms now; about 3.20 ms were predicted"),
        (4.0, None, None, "f took 2.00 ms a call before it and 4.00 ms now"),
        (None, None, 1.0, None),
    ],
)
def test_a_gain_is_told_from_what_runs_now(
    before: float | None, after: float | None, predicted: float | None, expected: str | None
) -> None:
    found = region(
        name="f",
        replays=40 if after else 0,
        before_ms=measured(before) if before else None,
        after_ms=measured(after) if after else None,
    )
    taken = TakenFixes(fixes="fix 1 (GR101)", source="x = 1\n", region="f", before_ms=2.0, predicted_ms=predicted)
    here = found.at.file
    told = gains([taken], [found], [(here, "%%grape --save\nx = 1")], backend="cuda")
    assert told == ([f"fix 1 (GR101): {expected}"] if expected else [])
    assert gains([taken], [found], [(here, "x = 2"), ("elsewhere", "x = 1")], backend="cuda") == []
    assert gains([taken], [found], [(here, "x = 1")], backend="tape") == []
