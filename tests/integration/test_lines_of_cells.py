"""The lines of cells that run: which took the time, in which run, and that looking changes nothing."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import grape
from grape.profiling import TimelineRecorder, line_events
from grape.render.lines import warm_lines
from tests.integration.notebook import Notebook

events = pytest.mark.skipif(sys.version_info < (3, 12), reason="this Python has no events of lines")

SETUP = """
import time
import torch
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).eval()
xs = [torch.randn(8, 64) for _ in range(60)]
def busy(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
"""

PYTHON = """%%grape
for i in range(8):
    busy(0.03)
    busy(0.01)
total = i
"""
SERVED = """%%grape
with torch.no_grad():
    kept = []
    for x in xs:
        y = net(x)
        time.sleep(0.002)
        kept.append(y)
"""


def lines(report: dict[str, Any]) -> dict[int, float]:
    known = report["cell"]["lines"]
    assert known is not None
    return {line["line"]: line["ms"] for line in known["lines"]}


@events
def test_lines_of_python_take_what_they_took(notebook: Notebook) -> None:
    report = notebook.under_grape(PYTHON)
    took = lines(report)
    cell = report["cell"]
    own_ms = sum(ms for purpose, ms in cell["own_ms"].items())
    assert sum(took.values()) == pytest.approx(cell["wall_ms"] - own_ms, rel=0.03), "they add up to the cell's own time"
    assert took[3] / (took[3] + took[4]) == pytest.approx(0.75, abs=0.1)
    assert notebook["total"] == 7


FUNCTION = """%%grape
def work(n):
    s = 0.0
    for k in range(n):
        s += len(str(busy(0.004)))
    busy(0.02)
    return s
for i in range(4):
    r = work(5)
"""


@events
def test_a_function_whose_loop_goes_through_grape_is_told_by_its_own_lines(notebook: Notebook) -> None:
    took = lines(notebook.under_grape(FUNCTION))
    assert took[5] > 70.0 and took[6] > 70.0, "80 ms each, or more on a machine that is busy"
    assert took[5] + took[6] > 0.8 * sum(took.values()), "the line that calls it takes next to nothing itself"


@events
def test_the_report_shows_them_beside_the_source(notebook: Notebook) -> None:
    notebook.under_grape(PYTHON)
    assert grape.last is not None
    third = warm_lines(grape.last)[2]
    assert third.text == "    busy(0.03)" and third.took
    assert f"   3 {third.took:>5} " in grape.last.to_text() and f">{third.took}<" in grape.last.to_html()


@events
def test_a_run_that_replays_keeps_the_lines_of_the_one_that_was_watched(notebook: Notebook) -> None:
    runs = [notebook.under_grape(SERVED) for _ in range(3)]
    known = [run["cell"]["lines"] for run in runs]
    assert known[0]["run"] == 1 and known[1] is not None
    slept = next(line for line in known[0]["lines"] if line["line"] == 6)
    assert slept["ms"] > 60, "120 ms in all, less for calls of the region that a look may be of"
    assert all(one["lines"] for one in known)


def test_the_threads_of_a_cell_are_as_many_as_before(notebook: Notebook) -> None:
    notebook.run("import sys\nbefore = len(sys._current_frames())\n")
    notebook.under_grape(PYTHON)
    notebook.run("after = len(sys._current_frames())\n")
    assert notebook["after"] == notebook["before"]


def test_where_python_has_no_events_no_line_is_told(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_events, "_monitoring", None)
    assert notebook.under_grape(PYTHON)["cell"]["lines"] is None
    assert grape.last is not None and "time by line" not in grape.last.to_text() + grape.last.to_html()


def test_where_the_person_profiles_nobody_looks(notebook: Notebook) -> None:
    """A profiler would count what a thread of Grape's does: from the first look at the stack on there is none."""
    report = notebook.under_grape("%%grape\nimport sys\nsys.setprofile(None)\nfor i in range(40):\n    busy(0.005)\n")
    assert report["cell"]["lines"] is None
    assert sys.getprofile() is None


def test_a_call_that_is_no_example_is_not_the_one_that_is_shown(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first profiled call takes far longer than calls do."""
    stop, seen = TimelineRecorder.stop, []

    def slow_at_first(self: TimelineRecorder) -> None:
        if not seen:
            notebook["busy"](0.2)
        seen.append(self)
        stop(self)

    monkeypatch.setattr(TimelineRecorder, "stop", slow_at_first)
    notebook.under_grape("%%grape --profile\nwith torch.no_grad():\n    for x in xs:\n        y = net(x)\n")
    assert grape.last is not None
    (before,) = (region.before for region in grape.last.evidence.regions if region.before is not None)
    assert before.chosen_of in (2, 3), "a busy machine may make the second one slow, too"
    assert before.wall_ns < 0.2e9
