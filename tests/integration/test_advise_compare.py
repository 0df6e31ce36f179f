"""`grape advise` and `grape compare` on files: what they print, what they write, and how they fail."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from grape.cli import main
from grape.errors import UsageError
from grape.render import build_report
from grape.render.comparison import compare_reports, comparison_text, reports_of
from tests.integration.notebook_files import notebook_file
from tests.unit.sample_evidence import sample

TRAINING = """\
import torch
model = torch.nn.Linear(4, 4)
losses = []
for i in range(9):
    loss = model(torch.zeros(4)).sum()
    loss.backward()
    losses.append(loss.item())
    print(loss)
"""


def run(*words: str | Path) -> int:
    return main([str(word) for word in words])


def test_advise_a_notebook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = notebook_file(
        tmp_path,
        new_markdown_cell("# Title"),
        "import torch\nimport os\nos.abort()",
        "%%bash\nls",
        "%%grape\n" + TRAINING,
    )
    content = path.read_bytes()
    assert run("advise", path, "--json", tmp_path / "found.json") == 0
    assert path.read_bytes() == content
    out = capsys.readouterr().out
    assert out.splitlines()[0] == (
        "notebook.ipynb: 2 findings in the source alone; what they cost is unknown until the code runs"
    )
    assert "GR101 host-sync, cell 3, line 8\n  `loss.item()` makes the CPU wait for the GPU\n" in out
    assert out.splitlines()[-1] == f"next: grape run {path} measures what it costs"
    found = json.loads((tmp_path / "found.json").read_text())
    assert [(f["code"], f["file"], f["line"]) for f in found["findings"]] == [
        ("GR101", "cell 3", 8),
        ("GR101", "cell 3", 9),
    ]
    assert all(f["predicted_ms_per_call"] is None and f["severity"] == "hint" for f in found["findings"])


def test_advise_a_file_shows_five_at_most(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.py"
    path.write_text(TRAINING + "    print(loss)\n" * 6)
    assert run("advise", path) == 0
    out = capsys.readouterr().out
    assert out.startswith("train.py: 8 findings") and out.count("GR101") == 5
    assert "and 3 more: --json FILE writes all of them" in out


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("for i in range(9):\n    print(i)\n", "quiet.py: no PyTorch code\n"),
        ("import torch\nx = torch.zeros(3)\n", "quiet.py: nothing found in the source alone\n"),
    ],
)
def test_advise_is_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, said: str) -> None:
    path = tmp_path / "quiet.py"
    path.write_text(source)
    assert run("advise", path) == 0
    assert capsys.readouterr().out.startswith(said)


def test_advise_runs_and_imports_nothing(tmp_path: Path) -> None:
    """Neither the person's code, nor torch."""
    path = tmp_path / "a.py"
    path.write_text("import torch\nopen('made', 'w')\nraise SystemExit(7)\n" + TRAINING)
    code = f"import sys; from grape.cli import main; main(['advise', {str(path)!r}]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False\n") and not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.py", b"for i in\n", "line 1: invalid syntax; grape advise reads Python"),
        ("a.py", b"\xff\xfe\x00", "is no Python file: it is not UTF-8 text"),
        ("a.py", b"x = 1\x00", "source code string cannot contain null bytes"),
        ("a.txt", b"x = 1", "is neither a notebook (.ipynb) nor a Python file (.py)"),
        ("a.ipynb", b"x = 1", "is not a notebook: broken JSON"),
        ("missing.py", None, "cannot read"),
    ],
)
def test_advise_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes | None, said: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    assert run("advise", path) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err and err.count("\n") == 1


def test_a_notebook_with_100_mb_of_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = new_output("stream", text="x" * 100_000_000)
    path = notebook_file(tmp_path, new_code_cell(TRAINING, outputs=[output]), name="large.ipynb")
    size = path.stat().st_size
    assert run("advise", path) == 0
    assert capsys.readouterr().out.startswith("large.ipynb: 2 findings")
    assert path.stat().st_size == size > 100_000_000


# -- compare ---------------------------------------------------------------------------------------------------------

FINDING = {
    "code": "GR101",
    "name": "host-sync",
    "severity": "blocker",
    "file": "In[2]",
    "line": 4,
    "end_line": 4,
    "message": "`loss.item()` makes the CPU wait for the GPU once per call (0.02 ms)",
    "evidence": {},
    "predicted_ms_per_call": 1.5,
    "fix": None,
}
REGION = {
    "name": "step",
    "outcome": "refused",
    "reason": "GR101",
    "before_ms": {"median": 4.0, "iqr": 0.2, "n": 30},
    "after_ms": None,
}
REPORT: dict[str, Any] = {
    "version": 1,
    "device": "NVIDIA H200",
    "verdict": "not accelerated: step stays eager",
    "cell": {},
    "regions": [REGION],
    "findings": [FINDING],
}


def changed(**region: Any) -> dict[str, Any]:
    report = copy.deepcopy(REPORT)
    report["regions"][0].update(region)
    return report


def texts(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, str]]:
    return [(change.kind, change.text) for change in compare_reports([old], [new])]


def test_a_region_that_replays_now() -> None:
    new = changed(outcome="replayed", reason=None, after_ms={"median": 1.0, "iqr": 0.1, "n": 30})
    new["findings"] = []
    assert texts(REPORT, new) == [
        ("better", "step: refused (GR101), now replayed"),
        ("better", "step: 4.0x faster per call (4.00 -> 1.00 ms)"),
        (
            "better",
            "gone: GR101 host-sync, line 4, about 1.50 ms per call: "
            "`loss.item()` makes the CPU wait for the GPU once per call (0.02 ms)",
        ),
    ]
    assert comparison_text([REPORT], [new]).splitlines()[0] == "3 better"
    assert [kind for kind, _ in texts(new, REPORT)] == ["worse", "worse", "worse"]


@pytest.mark.parametrize(("median", "kind"), [(4.19, "same"), (4.21, "worse"), (3.81, "same"), (3.79, "better")])
def test_times_differ_where_their_ranges_do_not_overlap(median: float, kind: str) -> None:
    new = changed(before_ms={"median": median, "iqr": 0.2, "n": 30})
    assert [k for k, _ in texts(REPORT, new)] == [kind]


def test_a_finding_that_moved_or_measured_otherwise_is_the_same() -> None:
    new = copy.deepcopy(REPORT)
    new["findings"][0].update(line=9, message="`loss.item()` makes the CPU wait for the GPU 2 times per call (0.5 ms)")
    assert [kind for kind, _ in texts(REPORT, new)] == ["same"]
    assert comparison_text([REPORT], [new]).splitlines()[0] == "no significant change"


def test_other_devices_regions_and_cells() -> None:
    new = changed(name="other")
    new["device"] = "CPU"
    assert texts(REPORT, new) == [
        ("note", "another device: NVIDIA H200, now CPU; times do not compare"),
        ("note", "step: no region any more"),
        ("note", "other: a new region, refused (GR101)"),
    ]
    several = compare_reports([REPORT], [REPORT, REPORT])
    assert several[0].text == "1 cell measured, now 2"


@pytest.mark.parametrize("content", [1, [], {}, {"cells": []}, {"cells": [1]}, {"version": 1}])
def test_what_is_no_report(content: Any) -> None:
    with pytest.raises(UsageError, match=r"^'a\.json' holds no report of Grape; write one with --json$"):
        reports_of(content, "a.json")


def test_another_version() -> None:
    with pytest.raises(UsageError, match="has version 2 of the report; this Grape reads version 1"):
        reports_of({**REPORT, "version": 2}, "a.json")


def test_compare_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two, broken = (tmp_path / name for name in ("a.json", "b.json", "c.json"))
    one.write_text(json.dumps(REPORT))
    two.write_text(json.dumps({"version": 1, "cells": [REPORT, REPORT]}))
    broken.write_text("{")
    assert run("compare", one, one) == 0
    assert capsys.readouterr().out == (
        "no significant change\n  was: not accelerated: step stays eager\n  now: not accelerated: step stays eager\n"
        "= step: no significant change per call (4.00 -> 4.00 ms)\n"
    )
    assert run("compare", two, two) == 0
    assert "= cell 2, step: no significant change" in capsys.readouterr().out
    assert run("compare", one, broken) == 2
    assert "is not JSON: it ends in the middle" in capsys.readouterr().err
    assert run("compare", one, tmp_path / "missing.json") == 2


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (860.0, 300.0, [("better", "the cell: 2.9x faster (0.86 -> 0.30 s)")]),
        (300.0, 420.0, [("worse", "the cell: 1.4x slower (0.30 -> 0.42 s)")]),
        (300.0, 329.0, []),
        (None, 329.0, []),
    ],
)
def test_what_the_whole_cell_took(before: float | None, after: float, said: list[tuple[str, str]]) -> None:
    old, new = build_report(*sample()).to_dict(), build_report(*sample()).to_dict()
    old["cell"]["wall_ms"], new["cell"]["wall_ms"] = before, after
    for cell in (old["cell"], new["cell"]):
        cell["served"]["regions"] = 0.5
    told = [(change.kind, change.text) for change in compare_reports([old], [new]) if "the cell" in change.text]
    assert told == said


def test_of_a_cell_that_nothing_served_neither_run_is_better() -> None:
    """The first contains what Grape looked for."""
    old, new = build_report(*sample()).to_dict(), build_report(*sample()).to_dict()
    served = {"streams": 0.0, "regions": 0.0, "as_written": 1.0}
    for report, wall_ms, own_ms in ((old, 970.0, 600.0), (new, 290.0, 1.0)):
        report["cell"] |= {"wall_ms": wall_ms, "served": served, "own_ms": {"observe": own_ms, "record": 0.0}}
    first, *_ = compare_reports([old], [new])
    assert first.text == "the cell: 0.97 -> 0.29 s, as written both times; Grape itself took 600 ms of the first"
    assert comparison_text([old], [new]).startswith("no significant change\n")
    new["cell"]["served"] = served | {"regions": 0.4, "as_written": 0.6}
    first, *_ = compare_reports([old], [new])
    assert (first.kind, first.text) == ("better", "the cell: 3.3x faster (0.97 -> 0.29 s)")


def test_on_a_cpu_nothing_is_called_faster() -> None:
    old, new = build_report(*sample()).to_dict(), build_report(*sample()).to_dict()
    for report, wall_ms in ((old, 970.0), (new, 290.0)):
        report["cell"] |= {"backend": "tape", "wall_ms": wall_ms}
    assert new["regions"][0]["outcome"] == "replayed"
    new["regions"][0]["after_ms"] = {**new["regions"][0]["after_ms"], "median": 0.01}
    told = compare_reports([old], [new])
    assert {change.kind for change in told} <= {"note", "same"} and "faster" not in str(told)
    assert told[0].text.startswith("the cell: 0.97 -> 0.29 s")


def test_which_regions_share_a_finding_may_differ() -> None:
    old, new = build_report(*sample()).to_dict(), build_report(*sample()).to_dict()
    new["findings"][0]["message"] += "; in `Net`, and alike in `Other`"
    assert compare_reports([old], [old]) == compare_reports([old], [new])
