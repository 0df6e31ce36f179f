"""``%%grape --rewrite`` in a real kernel: what runs is rewritten, what is seen is what was typed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel

from grape.cli.entry import main
from tests.integration.notebook_files import notebook_file
from tests.integration.test_apply_magic import Kernel

pytestmark = pytest.mark.usefixtures("forked_kernels")

SETUP = """\
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).eval()
xs = [torch.randn(3, 4) for _ in range(12)]
device = torch.device("cpu")
"""
CELL = """\
%%grape{options} --no-widget
losses = []
with torch.no_grad():
    for number, x in enumerate(xs):
        loss = model(x).sum()
        losses.append(loss.item())
        check(number)
len(losses)
"""
PRINT = "print([type(v).__name__ + v.hex() for v in losses], sorted(n for n in dir() if 'part' in n or n == '_flow'))"


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        made = Kernel(client)
        made.run("%load_ext grape")
        made.run(SETUP)
        yield made
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_compared_rewrite_runs_the_next_time(kernel: Kernel) -> None:
    kernel.run("%grape reset")
    kernel.run("def check(number):\n    return number")
    plain, rewritten = CELL.format(options=""), CELL.format(options=" --rewrite")
    assert kernel.run(rewritten)[2] is None
    said = kernel.run("print(grape.last.evidence.notes if (grape := __import__('grape')) else 0)")[0]
    assert said == "()\n", "nothing is known of the first run"
    first = kernel.run(PRINT)[0]

    assert kernel.run(rewritten)[2] is None
    said = kernel.run("print(*grape.last.evidence.notes)")[0]
    assert said == "the cell ran rewritten: GR101 (line 6); %grape diff shows how, %grape undo takes it back\n"
    assert kernel.run(PRINT)[0] == first
    shown = kernel.run("%grape diff")[0]
    assert re.match(r"In\[\d+\] ran rewritten: GR101 \(line 6\)\n--- In", shown), shown
    assert "+        losses.append(loss.detach().clone())" in shown
    assert "ran rewritten: GR101 (line 6)" in kernel.run("%grape status")[0]
    reads = "print([f.code for f in grape.last.findings if f.at and f.at.line == 6 and f.fix])"
    assert kernel.run(reads)[0] == "[]\n"

    assert kernel.run(plain)[2] is None
    assert kernel.run("print(grape.last.evidence.notes)")[0] == "()\n"
    assert kernel.run(PRINT)[0] == first


def test_an_error_leaves_what_the_typed_cell_leaves(kernel: Kernel) -> None:
    kernel.run("def check(number):\n    return number")
    rewritten = CELL.format(options=" --rewrite")
    kernel.run(rewritten)
    kernel.run(rewritten)
    assert "ran rewritten" in kernel.run("print(grape.last.evidence.notes)")[0]
    kernel.run("def check(number):\n    if number == 7:\n        raise ValueError('stop at 7')")
    left = []
    for options in ("", " --rewrite"):
        request = kernel.client.execute(CELL.format(options=options))
        traceback = ""
        while True:
            message = kernel.client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") == request:
                if message["msg_type"] == "error":
                    traceback = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(message["content"]["traceback"]))
                if message["content"].get("execution_state") == "idle":
                    break
        while kernel.client.get_shell_msg(timeout=60)["parent_header"].get("msg_id") != request:
            pass
        assert "----> 7         check(number)" in traceback and "losses.append(loss.item())" in traceback, traceback
        left.append((traceback.split("ValueError")[-1], kernel.run(PRINT)[0]))
    assert left[0] == left[1]


BRANCHES = """\
%%grape{options} --no-widget
class Scaled:
    def of(self, x):
        return x * 2
def f(x):
    if x.sum() > 0:
        y = model(x)
    else:
        y = -model(x)
    assert y.shape == (3, 1)
    return y
with torch.no_grad():
    ys = [f(x) for x in xs]
total = torch.stack(ys).sum().item()
"""


VALUES = "print(total.hex(), [y.sum().item().hex() for y in ys])"


def test_control_flow_runs_rewritten_the_first_time_and_is_given_back(kernel: Kernel) -> None:
    kernel.run("%grape reset")
    assert kernel.run(BRANCHES.format(options=""))[2] is None
    plain = kernel.run(VALUES)[0]
    kernel.run("%grape reset")
    written = kernel.run("print(f.__code__.co_names)")[0]
    assert kernel.run(BRANCHES.format(options=" --rewrite"))[2] is None
    said = kernel.run("print(*__import__('grape').last.evidence.notes)")[0]
    assert said.startswith("the cell ran rewritten: GR102 (line 6)"), said
    assert kernel.run(VALUES)[0] == plain
    failed = kernel.run("f(torch.ones(2, 4))")[2]
    assert failed is not None and failed.startswith("AssertionError")
    number = re.search(r"^ +(\d+) In\[\d+\] ran rewritten", kernel.run("%grape status")[0], re.MULTILINE)
    assert number is not None
    undone = kernel.run(f"%grape undo {number[1]}")[0]
    assert "ran rewritten: GR102 (line 6)" in undone and "f has the code that you typed" in undone, undone
    assert kernel.run("print(f.__code__.co_names)")[0] == written
    assert "ran rewritten" not in kernel.run("%grape status")[0]
    assert kernel.run("%grape undo")[2] is None


def test_where_it_does_not_apply_the_cell_runs_as_written(kernel: Kernel) -> None:
    for cell, said in (
        ("%%grape --rewrite --profile\nx = 1", "--profile applies nothing, so --rewrite cannot go with it; choose one"),
        ("%%time\n%%grape --rewrite\nx = 2", "%%grape --rewrite works on the first line of a cell"),
        ("%%grape --rewrite --no-widget\nx = 3", ""),
        ("%%grape --rewrite --no-widget\n\n!true\n%time x = 4", ""),
    ):
        printed, _, error = kernel.run(cell)
        assert error is None and said in printed, printed
        assert kernel.run("print(x)")[0] == f"{cell[-1]}\n"


def test_loops_of_a_rewritten_cell_become_regions(kernel: Kernel) -> None:
    kernel.run("%grape reset")
    kernel.run("def check(number):\n    return number")
    rewritten = CELL.format(options=" --rewrite").replace("xs)", "xs * 4)")
    for _ in range(3):
        assert kernel.run(rewritten)[2] is None
    last = "grape.last"
    said = kernel.run(f"print([(r.name, r.line, r.replays > 0) for r in {last}.regions], {last}.evidence.notes)")[0]
    assert "'loop at line 4', 5, True" in said and "ran rewritten" in said, said


LOADER = """\
%%grape{options} --no-widget
torch.manual_seed(1)
loader = torch.utils.data.DataLoader(torch.randn(40, 4), batch_size=4, shuffle=True)
sums = []
for x in loader:
    x = x.to(device)
    with torch.no_grad():
        sums.append(model(x).sum())
sums = torch.stack(sums).tolist()
"""


def test_batches_are_prefetched_from_source_alone(kernel: Kernel) -> None:
    kernel.run("%grape reset")
    results = []
    for options in ("", " --rewrite"):
        assert kernel.run(LOADER.format(options=options))[2] is None
        results.append(kernel.run("print(sums, x.shape, torch.rand(1))")[0])
    assert results[0] == results[1]
    said = kernel.run("print(*__import__('grape').last.evidence.notes, 'prefetch' in dir())")[0]
    assert said.startswith("the cell ran rewritten: GR302 (line 6); %grape diff"), said
    assert "grape.prefetch(loader, device)" in kernel.run("%grape diff")[0]


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notebook, report = notebook_file(tmp_path, SETUP, LOADER.partition("\n")[2]), tmp_path / "report.json"
    before = notebook.read_bytes()
    assert main(["run", str(notebook), "--cell", "2", "--rewrite", "--json", str(report)]) == 0, capsys.readouterr()
    said = capsys.readouterr().out
    assert "note: the cell ran rewritten: GR302 (line 6)\n" in said, said
    assert json.loads(report.read_text())["cell"]["notes"] == ["the cell ran rewritten: GR302 (line 6)"]
    assert notebook.read_bytes() == before


CONSTANTS = """\
%%grape{options} --no-widget
halves = []
with torch.no_grad():
    for x in xs:
        halves.append(x * torch.tensor(0.5, device=device))
"""
BATCHES = """\
%%grape{options} --no-widget
sums = []
for x, y in [(x, x.sum()) for x in xs]:
    x, y = x.to(device), y.to(device)
    sums.append(x + y)
"""


@pytest.mark.parametrize(("cell", "name"), [(CONSTANTS, "constant"), (BATCHES, "grape")])
def test_a_name_that_the_person_bound_is_not_taken(kernel: Kernel, cell: str, name: str) -> None:
    kernel.run(f"%grape reset\nglobals().pop({name!r}, None)")
    rewritten = cell.format(options=" --rewrite")
    for _ in range(2):
        assert kernel.run(rewritten)[2] is None
    said = "print(*__import__('grape').last.evidence.notes)"
    assert "ran rewritten" in kernel.run(said)[0]
    kernel.run(f"{name} = 'mine'")
    assert kernel.run(rewritten)[2] is None
    assert kernel.run(f"print({name})")[0] == "mine\n"
    assert kernel.run(said)[0] == "\n"
    kernel.run(f"del {name}")
    assert kernel.run(rewritten)[2] is None
    assert "ran rewritten" in kernel.run(said)[0]
