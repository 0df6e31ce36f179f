"""`%grape history` and `%grape compare`: the runs of a notebook, and what changed between them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import grape
from grape.errors import UsageError
from grape.magics.history import MOST_RUNS, History
from grape.model import Position
from grape.render import Report, build_report
from tests.integration.notebook import Notebook
from tests.unit.sample_evidence import cell, host_sync, launch_bound, region, sample

SETUP = """\
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).eval()
start = torch.ones(1, 8)
"""
CELL = """\
%%grape
x = start
with torch.no_grad():
    for _ in range(20):
        x = net(x)
"""


def made(*findings: object, **changes: object) -> Report:
    return build_report(cell(region(), **changes), list(findings))  # type: ignore[arg-type]


def lines(history: History) -> list[str]:
    return re.sub(r"\d\d:\d\d:\d\d", "TIME", history.text()).splitlines()


def test_each_run_has_a_line_and_what_changed_in_the_same_cell() -> None:
    history = History()
    history.add(made(host_sync(), launch_bound()), "a = 1\nb = 2\n", "cell-1")
    history.add(made(), "other = 1\n", "cell-2")
    history.add(made(launch_bound()), "a = 1\nb = 3\nc = 4\n", "cell-1")
    first, second, third, source, gone, hint = lines(history)
    assert [line.split()[:3] for line in (first, second, third)] == [[n, "TIME", "In[4]"] for n in ("1", "2", "3")]
    assert "0.86" in first or "860 ms" in first
    assert source == "      source since run 1: 2 lines new, 1 gone"
    assert gone.startswith("      + gone: GR101 host-sync")
    assert hint == "%grape compare A B shows two of them side by side"


def test_cells_without_a_name_are_known_by_their_source() -> None:
    history = History()
    history.add(made(), "x = model(x)\ny = 1\n", None)
    history.add(made(), "import json\nprint(json.dumps({}))\n", None)
    history.add(made(), "x = model(x)\ny = 2\n", None)
    history.add(made(), "out = []\nfor n in range(3, 60):\n    y = cat([y, net(y)])\n    out.append(y.shape)\n", None)
    history.add(made(), "with no_grad():\n    x = ones(2, 64)\n    for i in range(200):\n        x = step(x)\n", None)
    assert [line for line in lines(history) if line.startswith("      source")] == [
        "      source since run 1: 1 line new, 1 gone"
    ]


def test_it_is_bounded() -> None:
    history = History()
    for number in range(MOST_RUNS + 5):
        history.add(made(), f"x = {number}\n", None)
    assert len(history) == MOST_RUNS and history.numbers() == list(range(6, MOST_RUNS + 6))
    assert lines(history)[0] == f"the last {MOST_RUNS} of {MOST_RUNS + 5} runs"


def test_two_runs_are_compared_with_their_sources() -> None:
    history = History()
    history.add(made(host_sync()), "a = 1\nb = 2\n", None)
    history.add(made(), "a = 1\nb = 3\n", None)
    shown = history.compare("1", "2").splitlines()
    assert shown[0] == "1 better"
    assert shown[-6:] == ["--- run 1", "+++ run 2", "@@ -1,2 +1,2 @@", " a = 1", "-b = 2", "+b = 3"]
    assert history.compare("2", "2").endswith("the source is the same")


def test_a_file_of_an_earlier_session_is_compared_with_its_versions(tmp_path: Path) -> None:
    history, later = History(), History()
    history.add(made(host_sync()), "a = 1\n", None)
    history.add(made(), "a = 2\n", None)
    file = tmp_path / "runs.json"
    content = json.loads(history.to_json())
    for run in content["runs"]:
        run["versions"]["torch"] = "2.0"
    file.write_text(json.dumps(content))
    later.add(made(), "a = 2\n", None)
    versions = later._runs[0].versions
    later._runs[0] = replace(later._runs[0], versions={**versions, "torch": "2.1"})
    shown = later.compare(f"{file}:1", "1")
    assert "  torch 2.0, now 2.1" in shown and "-a = 1" in shown and shown.startswith("1 better")
    assert later.compare(str(file), "1").startswith("no significant change"), "its last run"
    report = tmp_path / "report.json"
    report.write_text(made(host_sync()).to_json())
    assert later.compare(str(report), "1").startswith("1 better")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON"),
        ('{"version": 1}', "holds no report of Grape"),
        ('{"version": 1, "runs": [{}]}', "is a damaged history: KeyError"),
        ('{"version": 1, "runs": []}', "is a damaged history: ValueError"),
        ('{"runs": [{"number": 1, "report": {}, "source": "", "versions": {}}]}', "holds no report of Grape"),
    ],
)
def test_files_that_are_no_history(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "odd.json").write_text(content)
    history = History()
    history.add(made(), "", None)
    with pytest.raises(UsageError, match=re.escape(said)):
        history.compare(str(tmp_path / "odd.json"), "1")


def test_what_is_kept_holds_nothing_of_the_persons() -> None:
    history = History()
    evidence, findings = sample()
    history.add(build_report(evidence, findings), "x", None)
    assert json.loads(json.dumps(history._runs[0].to_dict()))["report"]["regions"]


def test_the_runs_of_a_notebook(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("%grape history")
    assert notebook.said == "nothing has run under %%grape yet\n"
    notebook.under_grape(CELL)
    notebook.under_grape(CELL.replace("20", "21"))
    notebook.run("%grape history").raise_error()
    assert "source since run 1: 1 line new, 1 gone" in notebook.said
    notebook.run("%grape compare 1 2").raise_error()
    assert "-    for _ in range(20):" in notebook.said and "  was: " in notebook.said
    assert not list(tmp_path.iterdir())
    notebook.run("%grape history runs.json").raise_error()
    assert [run["number"] for run in json.loads((tmp_path / "runs.json").read_text())["runs"]] == [1, 2]
    notebook.run("%grape reset")
    notebook.run("%grape history")
    assert notebook.said == "nothing has run under %%grape yet\n"


def test_a_next_step_is_shown_once_for_a_cell_until_it_is_another_one() -> None:
    history = History()
    blocked = made(host_sync(at=Position(file="In[4]", line=11, function="f")), file="In[4]")
    later = made(host_sync(at=Position(file="In[9]", line=11, function="f")), file="In[9]")
    step = "next: fix GR101 at In[{}], line 11, as said there"
    assert step.format(4) in history.as_shown(blocked, "a = 1\n").to_text(width=200)
    shown = history.as_shown(later, "a = 1\n")
    assert "next: " not in shown.to_text(width=200) and "next:" not in shown.to_html()
    assert shown == later and step.format(9) in later.to_text(width=200), "the report itself is whole"
    assert step.format(4) in history.as_shown(blocked, "a = 2\n").to_text(width=200), "the cell was edited"
    assert "next: later cells use the same graphs" in history.as_shown(made(), "a = 1\n").to_text(width=200)
    assert step.format(9) in history.as_shown(later, "a = 1\n").to_text(width=200)
    history.clear()
    assert step.format(9) in history.as_shown(later, "a = 1\n").to_text(width=200)


def test_below_a_cell_that_runs_again_its_step_is_not_repeated(notebook: Notebook) -> None:
    source = "%%grape --profile\ntotal = 0.0\nfor _ in range(20):\n    total += net(start).sum().item()\n"
    said = []
    for _ in range(3):
        notebook.under_grape(source)
        said.append("next: " in notebook.said)
    assert said == [True, False, False]
    assert grape.last is not None and "next: " in grape.last.to_text()
