"""`%grape CODE`: a line under Grape. Alone it is a cell of one line; among others it is a line magic."""

from __future__ import annotations

import traceback

import pytest

import grape
from grape.magics.commands import COMMANDS
from grape.magics.source import code_behind, lone_line
from tests.integration.notebook import Notebook

SETUP = """\
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(8))).eval()
start = torch.ones(1, 8)
@torch.no_grad()
def run(times):
    x = start
    for _ in range(times):
        x = net(x)
    return x
expected = run(20)
"""


@pytest.mark.parametrize(
    ("line", "is_code"),
    [
        ("model(x)", True),
        ("model(x).sum()  # a comment", True),
        ("y = x + 1", True),
        ("y += 1", True),
        ("loss = step(batch); losses.append(loss)", True),
        ("for batch in batches: step(batch)", True),
        ("await step(batch)", True),
        ("(y := x)", True),
        ('print("it\'s")', True),
        ("status", False),
        ("diff 1", False),
        ("history", False),
        ("statsu", False),
        ("statsu -1", False),
        ("explain-GR101", False),
        ("save report.html", False),
        ("report.html", False),
        ("--profile model(x)", False),
        ("model(x", False),
        ("x == 1", False),
        ("", False),
    ],
)
def test_code_is_what_calls_or_assigns_and_is_no_command(line: str, is_code: bool) -> None:
    code = line.strip() if is_code else None
    assert code_behind(line, COMMANDS) == code
    assert lone_line(["\n", f"  %grape {line}\n", "\n"], COMMANDS) == code
    assert lone_line([f"%grape {line}\n", "y = 1\n"], COMMANDS) is None


def test_a_line_alone_is_a_cell(notebook: Notebook) -> None:
    result = notebook.run("%grape run(20)")
    assert result.result.equal(notebook["expected"]) and "net" in notebook.said
    assert grape.last is not None
    report = grape.last.to_dict()
    assert report["cell"]["file"] == f"In[{result.execution_count}]"
    assert {region["name"]: region["calls"] for region in report["regions"]}["Sequential (net)"] == 20
    assert notebook.shell.user_ns["In"][-1] == "run(20)" and notebook.shell.user_ns["_"] is result.result


def test_a_line_alone_may_bind_await_and_raise(notebook: Notebook) -> None:
    notebook.run("%grape y = run(20)").raise_error()
    assert notebook["y"].equal(notebook["expected"])
    notebook.run("import asyncio")
    before = grape.last
    assert notebook.run("%grape await asyncio.sleep(0, 'slept')").result == "slept"
    assert grape.last is not before
    error = notebook.run("%grape run('x')").error_in_exec
    frames = [(frame.name, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    assert isinstance(error, TypeError)
    assert [frame for frame in frames if frame[0] in ("<module>", "run")] == [("<module>", 1), ("run", 8)]
    assert grape.last is not None and grape.last.verdict.startswith("stopped by TypeError")


def test_a_line_among_others_is_looked_at_alone(notebook: Notebook) -> None:
    notebook.run("z = 1\n\n%grape y = run(20)\nz = 2\ny").raise_error()
    assert notebook["y"].equal(notebook["expected"]) and notebook["z"] == 2
    report = grape.last
    assert report is not None and report.regions[0].calls
    assert report.evidence.source == "\n\ny = run(20)\n", "its line is the cell's"
    result = notebook.run("w = %grape run(20)\nw")
    assert result.result.equal(notebook["expected"]) and grape.last is not report


def test_a_line_of_a_cell_under_grape_is_the_cells(notebook: Notebook) -> None:
    report = notebook.under_grape("%%grape\n%grape y = run(20)\ny = y + 1")
    assert report["cell"]["file"].startswith("In[") and notebook["y"].equal(notebook["expected"] + 1)
    assert "ignored" not in notebook.said
