"""`grape mcp`, driven by the client of the protocol's own package: profile, findings, propose, prove, apply, undo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters

from grape.cli.assistants import proof as proof_module
from grape.cli.assistants import work as work_module
from grape.cli.assistants.processes import Done
from grape.cli.assistants.proof import Program, Proof, prove
from grape.cli.assistants.work import Work
from grape.errors import UsageError
from tests.integration.notebook_files import notebook_file
from tests.processes import ROOT, ran

READS = """\
import sys
import torch

torch.manual_seed(0)
net = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(8)))
losses = []
x = torch.ones(1, 8)
with torch.no_grad():
    for _ in range(int(sys.argv[1])):
        x = net(x)
        losses.append(x.sum().item())
print(sum(losses))
"""
SETUP = """\
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(8)))
x = torch.ones(1, 8)
"""
CELL = """\
%%grape
losses = []
with torch.no_grad():
    for _ in range(20):
        x = net(x)
        losses.append(x.sum().item())
"""
TOOLS = ["profile", "findings", "propose", "prove", "apply", "undo", "explain"]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(READS)
    return path


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process runs are forks. What a server runs are new interpreters, and there their time is up, too."""

    def run(words: Sequence[str], *, folder: Path, timeout_s: float) -> Done:
        done = ran(*words, cwd=folder, timeout=timeout_s)
        return Done(code=done.returncode, out=done.stdout, err=done.stderr)

    for module in (proof_module, work_module):
        monkeypatch.setattr(module, "ran", run)


class Assistant:
    """Calls tools of a running server."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, tool: str, **arguments: Any) -> Any:
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result.content
        return result.structured_content

    async def error(self, tool: str, **arguments: Any) -> str:
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error
        return str(result.content[0].text)


def with_server(folder: Path, work: Callable[[Assistant], Awaitable[None]]) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    server = StdioServerParameters(command=sys.executable, args=["-m", "grape", "mcp"], cwd=folder, env=environment)

    async def drive() -> None:
        async with Client(server) as client:
            await work(Assistant(client))

    anyio.run(drive)


@pytest.mark.slow
def test_a_script_is_profiled_rewritten_proven_and_undone(script: Path) -> None:
    async def work(ask: Assistant) -> None:
        listed = await ask.client.list_tools()
        assert [tool.name for tool in listed.tools] == TOOLS
        assert all(tool.description for tool in listed.tools)

        profiled = await ask("profile", path="train.py", arguments=["40"])
        assert (profiled["exit_code"], profiled["rewrites"]) == (0, 1)
        assert profiled["cells"][0]["file"].endswith("train.py") and profiled["cells"][0]["verdict"]
        report = profiled["report"]
        found = await ask("findings", report=report)
        (reads,) = [one for one in found["findings"] if one["has_rewrite"]]
        assert (reads["code"], reads["line"], reads["rewrite_compared"]) == ("GR101", 11, False)
        assert "host-sync" in json.dumps(await ask("explain", code="GR101"))

        proposed = await ask("propose", report=report, findings=[reads["finding"]])
        assert "-        losses.append(x.sum().item())" in proposed["diff"] and "sha256" not in proposed["diff"]
        proven = await ask("prove", report=report, findings=[reads["finding"]], repeats=1)
        assert proven["same"] is True, proven
        assert proven["verdict"].startswith("same bits (") and "standard output" in proven["verdict"]
        assert len(proven["before_s"]) == len(proven["after_s"]) == 1 and proven["compared"] >= 4
        assert script.read_text() == READS, "nothing is written until it is applied"

        applied = await ask("apply", report=report, findings=[reads["finding"]])
        assert "losses.append(x.sum().detach().clone())" in script.read_text()
        again = await ask.error("apply", report=report, findings=[reads["finding"]])
        assert "is not as it was when it ran; profile it again" in again
        undone = await ask("undo")
        assert undone["undone"] == applied["change"] and script.read_text() == READS
        assert "there is no change to undo" in await ask.error("undo")

    with_server(script.parent, work)


@pytest.mark.slow
def test_a_notebook_is_profiled_rewritten_proven_and_undone(tmp_path: Path) -> None:
    path = notebook_file(tmp_path, SETUP, "", CELL, "print(sum(losses))", kernel="python3")
    content = path.read_bytes()

    async def work(ask: Assistant) -> None:
        profiled = await ask("profile", path=path.name)
        assert [cell["file"] for cell in profiled["cells"]] == ["In[2]"]
        found = await ask("findings", report=profiled["report"])
        number = next(one["finding"] for one in found["findings"] if one["has_rewrite"])
        proven = await ask("prove", report=profiled["report"], findings=[number], repeats=0)
        assert proven["same"] is True, proven
        applied = await ask("apply", report=profiled["report"], findings=[number])
        assert "+        losses.append(x.sum().detach().clone())" in applied["diff"]
        assert path.read_bytes() != content
        path.write_bytes(path.read_bytes() + b" ")
        assert "was edited since change 1; it is left as it is" in await ask.error("undo", change=1)
        path.write_bytes(path.read_bytes()[:-1])
        await ask("undo", change=1)
        assert path.read_bytes() == content

    with_server(tmp_path, work)


def test_what_it_cannot_do_is_said_in_words(script: Path) -> None:
    (script.parent / "fails.py").write_text("import torch\nraise SystemExit(3)\n")

    async def work(ask: Assistant) -> None:
        assert "there is no file 'other.py'" in await ask.error("profile", path="other.py")
        assert "neither a script (.py) nor a notebook" in await ask.error("profile", path="train.txt")
        assert "cells are for notebooks" in await ask.error("profile", path="train.py", cells=[1])
        assert "no report 7 (profile a file first)" in await ask.error("findings", report=7)
        assert "unknown finding code 'GR109'" in await ask.error("explain", code="GR109")
        assert "ran longer than 0.1 s" in await ask.error("profile", path="train.py", timeout_s=0.1)
        assert "--engine is one of" in await ask.error("profile", path="train.py", engine="fast")

    with_server(script.parent, work)


def proof(folder: Path, before: str, after: str, head: str = "", repeats: int = 0) -> Proof:
    programs = [Program(path=folder / "train.py", source=(head + text).encode()) for text in (before, after)]
    return prove(*programs, folder=folder, repeats=repeats, timeout_s=100.0)


@pytest.mark.usefixtures("forked")
def test_tensors_are_compared_bit_for_bit_also_those_of_a_main_function(tmp_path: Path) -> None:
    head = "import time, torch\ntorch.manual_seed(0)\nwhen = time.time()\nhidden = object()\n"
    main = "def main():\n    y = torch.zeros(2){}\n    return torch.rand(1).item()\nz = main()\n"
    other = proof(tmp_path, main.format(""), main.format(" * -1.0") + "new = 1\n", head)
    assert (other.same, other.differences) == (False, ("`main(): y` is another",)), "a sign of zero is a bit"
    assert other.verdict == "not the same: `main(): y` is another"
    unseeded = ("random state of Python", "random state of NumPy")
    assert other.left_out == {
        "hidden": "a object has no comparison",
        **dict.fromkeys(["when", *unseeded], "the original does not repeat it"),
    }
    drawn = proof(tmp_path, main.format(""), main.format("") + "torch.rand(1)\n", head)
    assert drawn.differences == ("`random state of torch` is another",)


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("before", "after", "difference"),
    [
        ("x = [1, 2.0]\n", "x = [1, 2]\n", "`x` is another"),
        ("x = {'a': 1, 'b': 2}\n", "x = {'b': 2, 'a': 1}\n", "`x` is another"),
        ("x = 1\n", "y = 1\n", "`x` is missing"),
        ("x = 1\n", "x = object()\n", "`x` is a object now"),
        ("print(1)\n", "print(2)\n", "it printed something else"),
        ("x = 1\n", "x = 1\nraise ValueError('no')\n", "it raised ValueError: no"),
        ("x = 1\n", "x = 1\nraise SystemExit(3)\n", "exit code 3, before 0"),
    ],
)
def test_other_results_are_no_proof(tmp_path: Path, before: str, after: str, difference: str) -> None:
    found = proof(tmp_path, before, after)
    assert (found.same, found.differences) == (False, (difference,))
    again = proof(tmp_path, before, before, repeats=2)
    assert again.same is True and len(again.before_s) == len(again.after_s) == 2


@pytest.mark.usefixtures("forked")
def test_where_nothing_can_be_compared_nothing_is_claimed(tmp_path: Path) -> None:
    found = proof(tmp_path, "x = object()\n", "x = object()\ny = 1\n")
    assert found.same is None and found.verdict.startswith("not known whether it is the same (0 values")
    with pytest.raises(UsageError, match="the program itself raised ZeroDivisionError"):
        proof(tmp_path, "1 / 0\n", "x = 1\n")
    with pytest.raises(UsageError, match="ended by itself, with exit code 5"):
        proof(tmp_path, "import os\nos._exit(5)\n", "x = 1\n")


@pytest.mark.parametrize(
    ("before_s", "after_s", "said"),
    [
        ((2.0, 2.2, 2.1), (1.0, 1.1, 1.05), "same bits (why); 2.0x faster (2.10 -> 1.05 s, plain runs, 3 each)"),
        ((1.0, 1.1), (2.0, 2.2), "same bits (why); 2.0x slower (1.05 -> 2.10 s, plain runs, 2 each)"),
        ((1.0, 2.0), (1.5, 1.6), "same bits (why); no clear change of time (1.50 -> 1.55 s, plain runs, 2 each)"),
        ((), (), "same bits (why); not timed"),
    ],
)
def test_a_time_is_claimed_where_no_run_of_the_one_is_among_those_of_the_other(
    before_s: tuple[float, ...], after_s: tuple[float, ...], said: str
) -> None:
    made = Proof(same=True, why="why", compared=1, differences=(), left_out={}, before_s=before_s, after_s=after_s)
    assert made.verdict == said


@pytest.mark.usefixtures("forked")
def test_a_file_that_was_edited_is_left_as_it_is(script: Path) -> None:
    work = Work(script.parent)
    report = work.profile("train.py", arguments=["20"])["report"]
    script.write_text(READS + "# edited\n")
    with pytest.raises(UsageError, match="is not as it was when it ran"):
        work.apply(report, [1])
    assert script.read_text() == READS + "# edited\n"


def test_without_the_package_it_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['mcp'] = None\nfrom grape.cli import main\nsys.exit(main(['mcp']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr == "grape: grape mcp needs the package 'mcp': pip install 'grape-jupyter[mcp]'\n"


def test_nothing_else_imports_the_package() -> None:
    code = """\
import sys
import grape, grape.cli, grape.cli.scripts.script, grape.cli.run, grape.magics, grape.sessions
from grape.cli.parser import build_parser
build_parser()
print([name for name in sys.modules if name.split(".")[0] in ("mcp", "mcp_types", "pydantic", "starlette")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"
