"""Rewrites are made, and compared, when somebody asks for them; the end of a cell parses nothing for them."""

from __future__ import annotations

import copy
import linecache
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from grape.fixing import later, offers
from grape.fixing.later import FixesLater
from grape.options import Options
from grape.render import Report, build_report
from grape.sessions import Cell, Session
from tests.unit.sample_evidence import cell, host_sync, region

CELL = """\
kept = []
for x in xs:
    y = torch.tanh(x) * 2
    kept.append(y.sum().item())
"""


class Runs:
    """Cells in one namespace, each under a session."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.names: dict[str, Any] = {"torch": torch, "xs": [torch.ones(4) * n for n in range(12)]}

    def observed(self, source: str = CELL, name: str = "cell.py") -> Report:
        path = str(self._folder / name)
        Path(path).write_text(source)
        linecache.checkcache(path)
        linecache.getlines(path)
        session = Session(
            options=Options(),
            cell=Cell(name=path, source=source, filename=path),
            namespace=self.names,
            file_names=str,
        )
        session.open()
        exec(compile(source, path, "exec"), self.names)
        session.close(None)
        assert session.report is not None
        return session.report


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setattr(linecache, "cache", {})  # functions of other tests' cells may use the names of this one
    return Runs(tmp_path)


def test_no_rewrite_is_made_and_nothing_parsed_until_somebody_asks(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    import libcst

    made: list[str] = []
    parsed, fixed, verified = libcst.parse_module, offers.find_fix, offers.verify
    monkeypatch.setattr(libcst, "parse_module", lambda *args, **more: made.append("parsed") or parsed(*args, **more))
    monkeypatch.setattr(offers, "find_fix", lambda *args: made.append("made") or fixed(*args))
    monkeypatch.setattr(offers, "verify", lambda *args, **more: made.append("compared") or verified(*args, **more))
    report = runs.observed()
    (finding,) = (one for one in report.findings if one.code == "GR101")
    assert finding.fixable and finding.fix is None
    said = report.to_dict()["findings"]
    assert [(one["fixable"], one["fix"]) for one in said if one["code"] == "GR101"] == [(True, None)]
    report.to_text(), report.to_html(), report.to_json()
    assert made == []

    whole = report.with_fixes()
    assert {"parsed", "made", "compared"} <= set(made)
    (fixed_one,) = (one for one in whole.findings if one.code == "GR101")
    assert fixed_one.fix is not None and fixed_one.fix.verified
    assert "+    kept.append(y.sum().detach().clone())" in fixed_one.fix.diff
    count = len(made)
    again = report.to_dict(fixes=True)
    assert [one["fix"] for one in again["findings"] if one["code"] == "GR101"] == [fixed_one.fix.to_dict()]
    assert report.to_json(fixes=True) == whole.to_json() and len(made) == count, "made once"
    assert whole.with_fixes() is whole and report.findings[0].fix is None


def test_a_report_is_copied_without_the_objects_of_the_person(runs: Runs) -> None:
    runs.names["socket"] = open  # what no pickle takes along
    runs.names["unpicklable"] = lambda: None
    report = runs.observed()
    for other in (pickle.loads(pickle.dumps(report)), copy.deepcopy(report)):
        assert other == report
        fixes = [one.fix for one in other.with_fixes().findings if one.fix is not None]
        assert [(fix.verified, fix.why) for fix in fixes] == [(False, later.A_SCRIPT)]


def test_while_a_cell_runs_nothing_is_compared_and_afterwards_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    evidence, findings = cell(region()), (host_sync(),)
    seen: list[tuple[Any, str]] = []

    def with_fixes(evidence: Any, findings: Any, namespace: Any, *, ran: Any, may_not: str) -> Any:
        seen.append((namespace, may_not))
        return findings

    monkeypatch.setattr(offers, "with_fixes", with_fixes)
    running = [True]
    fixes = FixesLater(lambda: evidence, findings, {"x": 1}, busy=lambda: running[0])
    report = build_report(evidence, findings, fixes)
    report.with_fixes()
    running[0] = False
    report.with_fixes()
    report.with_fixes()
    assert seen == [(None, later.A_CELL_RUNS), ({"x": 1}, later.A_SCRIPT)]


def test_the_text_says_where_a_rewrite_is() -> None:
    known = "\n" * 7 + "kept = []\nfor x in xs:\n    y = f(x)\n    kept.append(y.item())\n"
    evidence, finding = replace(cell(region()), source=known), host_sync()
    asked, unasked = build_report(evidence, (finding,)), build_report(evidence, (finding,), lambda: (finding,))
    step = "next: fix GR101 at In[4], line 11, as said there\n"
    assert step in asked.to_text(width=200)
    assert "next: %grape diff shows a rewrite for GR101 at In[4], line 11\n" in unasked.to_text(width=200)
    assert step in unasked.with_fixes().to_text(width=200)
    printed = replace(evidence, source=known.replace("kept.append", "print"))
    assert step in build_report(printed, (finding,), lambda: (finding,)).to_text(width=200)


def test_where_somebody_asked_in_vain_no_rewrite_is_promised() -> None:
    known = "\n" * 7 + "kept = []\nfor x in xs:\n    exec(code)\n    kept.append(y.item())\n"
    evidence, finding = replace(cell(region()), source=known), host_sync()
    report = build_report(evidence, (finding,), FixesLater(lambda: evidence, (finding,), None))
    assert "next: %grape diff shows a rewrite for GR101 at In[4], line 11\n" in report.to_text(width=200)
    report.with_fixes()
    assert "next: fix GR101 at In[4], line 11, as said there\n" in report.to_text(width=200)


_FIRST_CELL = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("import torch")
for module in [name for name in sys.modules if name.partition(".")[0] in ("libcst", "rich")]:
    del sys.modules[module]
shell.run_line_magic("load_ext", "grape")
def loaded():
    names = {"libcst", "rich", "anywidget", "grape.fixing.offers"} & set(sys.modules)
    own = {"own rich"} if "rich" in sys.modules["grape.render.own_rich"]._OURS else set()
    print("loaded:", sorted(names | own))
loaded()
shell.run_cell("%%grape\\nfor i in range(9):\\n    v = torch.ones(3).sum().item()")
loaded()
shell.run_cell("%grape diff")
loaded()
"""


def test_the_first_cell_imports_what_it_shows_and_no_more(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FIRST_CELL],
        capture_output=True,
        text=True,
        env={**__import__("os").environ, "IPYTHONDIR": str(tmp_path)},
        timeout=240,
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("loaded: ")]
    # rich, which the text of a report needs, comes with the extension where torch is there already, for Grape alone.
    asked = "loaded: ['grape.fixing.offers', 'libcst', 'own rich']"
    assert said == ["loaded: ['own rich']", "loaded: ['own rich']", asked], done.stdout + done.stderr
