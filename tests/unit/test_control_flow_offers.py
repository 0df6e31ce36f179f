"""GR102 as a person meets it: the rewrite is compared, advised, shown and handed over as one and the same."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import pytest
import torch

from grape.magics.rewrites import AppliedRewrites, diff_text
from grape.options import Options
from grape.rewrite.control_flow import Rewritten, rewrite_control_flow
from grape.sessions import Cell, Session

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

    def observed(self, source: str, name: str) -> Any:
        path = str(self._folder / name)
        cell = Cell(name=path, source=source, filename=path)
        session = Session(options=Options(), cell=cell, namespace=self.names, file_names=lambda file: file)
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
    report = notebook.observed(USE, "use.py")
    findings = [finding for finding in report.findings if finding.code == "GR102" and finding.fix is not None]
    assert [finding.at.line for finding in findings if finding.at is not None] == [2, 4]
    applied = AppliedRewrites()
    for finding in findings:
        assert finding.fix is not None and finding.fix.verified, finding.fix
        assert "let the device decide, as in the rewrite below" in (finding.advice or "")
        assert "torch.where" not in (finding.advice or "")
        assert finding.fix.diff.rstrip() in diff_text(report, finding.fix.id)
        applied.apply(report, finding.fix.id, None)
    handed = applied.last()
    assert (handed.file, handed.old) == (defined, DEFINE)
    whole = rewrite_control_flow(DEFINE, filename="define.py")
    assert isinstance(whole, Rewritten)
    assert whole.source.count("_flow.") == handed.new.count("_flow.")
    notebook.run(handed.new, "handed.py")
    report = notebook.observed(USE, "use.py")
    (region,) = report.to_dict()["regions"]
    assert (region["outcome"], region["verified"]) == ("replayed", "identical") and region["replays"] > 0
    assert all(torch.equal(one, other) for one, other in zip(notebook.names["found"], expected, strict=True))
    assert not [finding for finding in report.findings if finding.code in ("GR101", "GR102")]
