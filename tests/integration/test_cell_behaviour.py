"""A cell under `%%grape` behaves as without it, in a real kernel and with the real session."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

pytestmark = pytest.mark.usefixtures("forked_kernels")

SETUP = """\
import random
import torch
torch.manual_seed(0); random.seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
    def forward(self, x):
        return torch.tanh(self.b(torch.relu(self.a(x))))
net = Net().eval()
forwards = 0
def step(x):
    return net(x) * 0.5 + x
def checked(x, limit):
    y = net(x)
    if limit > 6:
        raise ValueError("too far")
    return y
"""

LOOP = """\
with torch.no_grad():
    x = torch.randn(2, 8)
    for i in range(30):
        x = step(x) + 0.01 * torch.rand(2, 8)
        forwards += 1
        if i % 10 == 0:
            print("at", i)
display("mine")
round(x.sum().item(), 6), forwards
"""

CELLS = {
    "first loop": LOOP,
    "same model again": LOOP,
    "text that looks like the magic": 's = """\n%%grape\n\n  two\n"""\nprint(repr(s))\nlen(s)',
    "await": "import asyncio\nawait asyncio.sleep(0.01)\nvalue = await asyncio.sleep(0, 'slept')\nvalue, _",
    "no last expression": "import sys\nprint('to stderr', file=sys.stderr)\nquiet = random.random()",
    "silenced": "quiet;",
    "no tensors": "sum(range(10))",
    "training": """\
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _i in range(8):
    opt.zero_grad()
    loss = net(torch.randn(4, 8)).square().mean()
    loss.backward()
    opt.step()
print(f"{loss.item():.6f}")
[round(float(p.detach().double().sum()), 6) for p in net.parameters()]
""",
}

STATE = """\
print(sorted(name for name in globals() if not name.startswith("_")))
print(sorted(name for name in globals() if name.startswith("_") and not name.startswith("_i")))
print(forwards, torch.rand(2).tolist(), random.random(), sorted(Out))
"""

WIDGET = "application/vnd.jupyter.widget-view+json"
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def run_all(cells: list[str], folder: Path, *, allow_errors: bool = False) -> nbformat.NotebookNode:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = NotebookClient(
        notebook,
        timeout=180,
        kernel_name="python3",
        allow_errors=allow_errors,
        resources={"metadata": {"path": str(folder)}},
    )
    try:
        client.execute()
    except CellExecutionError as error:
        notebook.metadata["stopped"] = str(error)
    return notebook


def merged(outputs: list[Any]) -> list[Any]:
    """Outputs as a person compares them: joined text per stream, results, displays, errors without colours."""
    plain: list[Any] = []
    for output in outputs:
        if output.output_type == "stream":
            if plain and plain[-1][0] == output.name:
                plain[-1] = (output.name, plain[-1][1] + output.text)
            else:
                plain.append((output.name, output.text))
        elif output.output_type == "error":
            plain.append(("error", output.ename, output.evalue, [ANSI.sub("", line) for line in output.traceback]))
        elif output.output_type == "execute_result":
            plain.append(("result", output.execution_count, dict(output.data)))
        else:
            plain.append((output.output_type, dict(output.data)))
    return plain


def is_emptied(output: Any) -> bool:
    """Progress stood there, in a cell that took long."""
    return output.output_type == "display_data" and not any(output.data.values())


def the_report(outputs: list[Any]) -> Any:
    """It stands below all else."""
    reports = [o for o in outputs if o.output_type == "display_data" and o.data.get("text/html")]
    assert len(reports) == 1, [o.output_type for o in outputs]
    return reports[0]


def without_report(outputs: list[Any]) -> list[Any]:
    """The cell's own outputs. Grape adds its report, which has HTML, and where there is a timeline the widget below."""
    report = the_report(outputs)
    after = outputs[outputs.index(report) + 1 :]
    widgets = [output for output in after if WIDGET in output.get("data", {})]
    assert len(widgets) <= 1
    assert not [output for output in after if output not in widgets], "the report stands below the cell's own output"
    return merged([o for o in outputs if o is not report and o not in widgets and not is_emptied(o)])


@dataclass
class Pair:
    """The same cells, run in two kernels: plainly, and each under ``%%grape``."""

    plain: list[Any]
    grape: list[Any]
    files: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("cells")
    bodies = list(CELLS.values())
    plain = run_all(["pass", SETUP, *(f"# plain\n{body}" for body in bodies), STATE], folder)
    grape = run_all(["%load_ext grape", SETUP, *(f"%%grape\n{body}" for body in bodies), STATE], folder)
    assert "stopped" not in plain.metadata
    assert "stopped" not in grape.metadata, grape.metadata["stopped"]
    return Pair(
        plain=[cell.outputs for cell in plain.cells],
        grape=[cell.outputs for cell in grape.cells],
        files=[path.name for path in folder.rglob("*")],
    )


@pytest.mark.parametrize("name", CELLS)
def test_outputs_are_those_of_the_plain_cell(pair: Pair, name: str) -> None:
    index = 2 + list(CELLS).index(name)
    # Streams are compared as wholes: the report may stand between two prints.
    assert _by_kind(without_report(pair.grape[index])) == _by_kind(merged(pair.plain[index]))


def _by_kind(outputs: list[Any]) -> list[Any]:
    streams: dict[str, str] = {}
    rest = []
    for output in outputs:
        if output[0] in ("stdout", "stderr"):
            streams[output[0]] = streams.get(output[0], "") + output[1]
        else:
            rest.append(output)
    return [streams, *rest]


def test_state_after_the_cells_is_that_of_plain_cells(pair: Pair) -> None:
    """Names, the number of times each cell ran, both random streams and the numbers in ``Out``."""
    plain, grape = merged(pair.plain[-1]), merged(pair.grape[-1])
    assert plain[0][0] == "stdout"
    assert "60 [" in plain[0][1]
    assert grape == plain


def test_nothing_is_left_of_the_progress(pair: Pair) -> None:
    texts = [the_report(outputs).data["text/plain"] for outputs in pair.grape[2:-1]]
    assert not [text for text in texts if text.startswith("Grape: ")]
    assert "iterations of the loop at line 4" in texts[0]
    assert "In[2], line 12" in the_report(pair.grape[2]).data["text/html"]
    # Both loops call the same function of the setup cell: what the first learned serves the second.
    assert "replayed" in texts[1]


def test_no_file_is_written(pair: Pair) -> None:
    assert pair.files == []


RAISES = {
    "in the loop": """\


%%grape
text = '''a string
of two lines'''
with torch.no_grad():
    x = torch.randn(2, 8)
    for i in range(30):
        x = step(x)
        if i == 7:
            raise ValueError(f"iteration {i}")
""",
    "in a function of the notebook": """\
%%grape
with torch.no_grad():
    x = torch.randn(2, 8)
    for i in range(30):
        x = checked(x, i)
""",
    "in torch": """\
%%grape
with torch.no_grad():
    for i in range(30):
        x = step(torch.randn(2, 9 if i == 7 else 8))
""",
}

WARM = ["%%grape\n" + LOOP, "%%grape -o warm\n" + LOOP, "assert warm.regions[0].outcome == 'replayed'; del warm"]


def plainly(source: str) -> str:
    """The same cell without the magic and with every line in its place."""
    body = source.lstrip("\n")
    return "#\n" * (len(source) - len(body)) + body.replace("%%grape", "# plain", 1)


def the_error(outputs: list[Any]) -> Any:
    (error,) = (output for output in outputs if output.output_type == "error")
    return error


@pytest.fixture(scope="module")
def raised(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[Any, Any, int]]:
    """Each raising cell under Grape and plainly, before and after its callables replay; with the former's number."""
    start = ["%load_ext grape", SETUP]
    both = [cell for source in RAISES.values() for cell in (source, plainly(source))]
    cells = run_all([*start, *both, *WARM, *both], tmp_path_factory.mktemp("raises"), allow_errors=True).cells
    assert cells[len(start) + len(both) + len(WARM) - 1].outputs == []
    found = {}
    for when, first in (("cold", len(start)), ("warm", len(start) + len(both) + len(WARM))):
        for offset, name in enumerate(RAISES):
            at = first + 2 * offset
            found[when, name] = (cells[at].outputs, cells[at + 1].outputs, at + 1)
    return found


@pytest.mark.parametrize("when", ["cold", "warm"])
@pytest.mark.parametrize("name", RAISES)
def test_traceback_is_that_of_the_plain_cell(raised: dict[tuple[str, str], Any], when: str, name: str) -> None:
    grape, plain, number = raised[when, name]
    shown = repr(without_report(grape)).replace(f"In[{number}]", f"In[{number + 1}]")
    assert _without_dispatch(shown) == repr(merged(plain)).replace("# plain", "# %%grape")


def _without_dispatch(shown: str) -> str:
    """While Grape traces, torch's own dispatcher stands in the stack; no frame of Grape ever does."""
    return re.sub(r"'File [^']*/torch/_ops\.py:\d+, in OpOverload[^']*', ", "", shown)


@pytest.mark.parametrize("when", ["cold", "warm"])
def test_traceback_has_the_line_that_the_person_sees(raised: dict[tuple[str, str], Any], when: str) -> None:
    grape, _, number = raised[when, "in the loop"]
    text = ANSI.sub("", "\n".join(the_error(grape).traceback))
    assert f"Cell In[{number}], line 11\n" in text
    assert re.search(r"^-+> 11 +raise ValueError", text, re.MULTILINE)


@pytest.mark.parametrize("warm", [[], WARM], ids=["cold", "warm"])
def test_exception_stops_run_all(warm: list[str], tmp_path: Path) -> None:
    ran = run_all(["%load_ext grape", SETUP, *warm, RAISES["in the loop"], "after = 1"], tmp_path)
    assert "ValueError: iteration 7" in ANSI.sub("", ran.metadata["stopped"])
    assert ran.cells[-1].execution_count is None


def test_syntax_error_looks_as_always(tmp_path: Path) -> None:
    cells = ["%load_ext grape", "%%grape\nx = 1\ny = = 2", "# plain\nx = 1\ny = = 2", "%%grape\n6 * 7"]
    bad, plain, good = run_all(cells, tmp_path, allow_errors=True).cells[1:]
    shown, expected = (re.sub(r"\(\d+\.py, line", "(cell, line", repr(merged(cell.outputs))) for cell in (bad, plain))
    assert "invalid syntax (cell, line 3)" in shown
    assert shown.replace("In[2]", "In[3]") == expected
    assert without_report(good.outputs) == [("result", 4, {"text/plain": "42"})]


def test_bad_options_and_empty_cells_say_so_and_go_on(tmp_path: Path) -> None:
    cells = [
        "%load_ext grape",
        "%%grape --tolerence 1\n6 * 7",
        "%%grape",
        "%grape statsu",
        "%%grape --json no/such/folder.json -o kept\n6 * 7",
        "kept.verdict == __import__('grape').last.verdict",
        "%unload_ext grape",
        "%%grape\n6 * 7",
        "%load_ext grape\n%reload_ext grape",
        "%%grape\n6 * 7",
    ]
    option, empty, command, unwritable, kept, _, unloaded, _, again = run_all(cells, tmp_path, allow_errors=True).cells[
        1:
    ]
    said, result = merged(option.outputs)
    assert said[0] == "stderr"
    assert said[1].startswith("UsageError: %%grape: unknown option '--tolerence'; did you mean --tolerance?")
    assert result[2]["text/plain"] == "42"
    assert merged(empty.outputs) == [("stderr", "%%grape: nothing to run; put the code below the %%grape line\n")]
    assert merged(command.outputs)[0][1] == "UsageError: %grape: unknown command 'statsu'; did you mean status?\n"
    assert "cannot write the report to 'no/such/folder.json'" in repr(merged(unwritable.outputs))
    assert ("result", 5, {"text/plain": "42"}) in without_report(unwritable.outputs)
    assert merged(kept.outputs)[0][2]["text/plain"] == "True"
    assert "Cell magic `%%grape` not found" in merged(unloaded.outputs)[0][1]
    assert without_report(again.outputs)[0][2]["text/plain"] == "42"


# --- one live kernel: interrupts, completion, completeness


@dataclass
class Kernel:
    """A running kernel, and what it said on the last execution."""

    manager: KernelManager
    client: BlockingKernelClient

    def run(
        self, source: str, *, interrupt_at: str | None = None, after_s: float = 0.3
    ) -> tuple[str, list[dict[str, Any]]]:
        """Execute; send SIGINT `after_s` seconds after `interrupt_at` was printed. Returns the reply's status and the
        IOPub contents.
        """
        said: list[dict[str, Any]] = []

        def hook(message: dict[str, Any]) -> None:
            said.append({"type": message["msg_type"], **message["content"]})
            if interrupt_at is not None and interrupt_at in message["content"].get("text", ""):
                time.sleep(after_s)
                self.manager.interrupt_kernel()

        reply = self.client.execute_interactive(source, output_hook=hook, timeout=120)
        return reply["content"]["status"], said


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(tmp_path_factory.mktemp("kernel")))
    try:
        live = Kernel(manager, client)
        assert live.run("%load_ext grape")[0] == "ok"
        assert live.run(SETUP)[0] == "ok"
        yield live
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("%%grape\nimport time\nprint('go', flush=True)\nwhile True: time.sleep(0.01)\n", {"KeyboardInterrupt"}),
        (
            "%%grape\nx = torch.randn(2, 8)\nprint('go', flush=True)\n"
            "with torch.no_grad():\n    while True:\n        x = step(x)\n",
            {"KeyboardInterrupt"},
        ),
        (
            # ipykernel 7.4 cancels a coroutine only when its event loop wakes up: here ten times a second.
            "%%grape\nimport asyncio\nprint('go', flush=True)\nwhile True: await asyncio.sleep(0.1)\n",
            {"KeyboardInterrupt", "CancelledError"},
        ),
    ],
    ids=["plain loop", "loop of calls", "await"],
)
def test_interrupt_then_the_next_cell_works(kernel: Kernel, source: str, expected: set[str]) -> None:
    # Where in the loop the signal arrives is chance: in the person's code, in a capture, in torch, or in a replay.
    for after_s in (0.0, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.2, 0.3) if "step" in source else (0.3,):
        status, said = kernel.run(source, interrupt_at="go", after_s=after_s)
        assert status == "error"
        (error,) = (content for content in said if content["type"] == "error")
        assert error["ename"] in expected, "\n".join(error["traceback"])
        assert any(
            "Grape: stopped by" in content["data"]["text/plain"]
            for content in said
            if content["type"] in ("display_data", "update_display_data")
        )
    status, said = kernel.run("%%grape\nwith torch.no_grad():\n    y = step(torch.ones(2, 8))\ntuple(y.shape)")
    assert status == "ok"
    results = [content["data"]["text/plain"] for content in said if content["type"] == "execute_result"]
    assert results == ["(2, 8)"]
    assert kernel.run("assert 'run_code' not in vars(get_ipython())")[0] == "ok"
    assert kernel.run("%grape reset")[0] == "ok"
    assert kernel.run("%%grape\n" + LOOP)[0] == "ok"
    status, said = kernel.run("%grape status")
    assert re.search(r"loop at line 4 .* [1-9]\d* replayed by", text_of(said)), text_of(said)


def text_of(said: list[dict[str, Any]]) -> str:
    return "".join(content.get("text", "") for content in said)


def test_kernel_completes_options_and_commands(kernel: Kernel) -> None:
    for text, expected in (("%%grape --pro", "--profile"), ("\n%%grape -o r --js", "--json"), ("%grape res", "reset")):
        content = kernel.client.complete(text, reply=True, timeout=60)["content"]
        assert content["matches"] == [expected]
        start, end = content["cursor_start"], content["cursor_end"]
        assert text[:start] + expected + text[end:] == text.rpartition(" ")[0] + " " + expected


def test_commands_after_a_real_cell(kernel: Kernel) -> None:
    assert kernel.run("%grape reset")[0] == "ok", "what the cells of other tests left"
    assert kernel.run("%%grape\n" + LOOP)[0] == "ok"
    assert kernel.run("%%grape\n" + LOOP)[0] == "ok"
    for line, expected in (
        ("status", "step at In["),
        ("explain host-sync", "GR101"),
        ("doctor", "torch"),
        ("save kept.html", "saved kept.html"),
        ("save kept.json", "saved kept.json"),
        ("trace kept.trace.json", "saved kept.trace.json"),
        ("undo", "undone: loop at line 4 at In["),
        ("undo", "nothing to undo"),
        ("reset", "released their graphs"),
    ):
        status, said = kernel.run(f"%grape {line}")
        assert status == "ok", line
        shown = text_of(said) + "".join(str(content.get("data", {}).get("text/markdown", "")) for content in said)
        assert expected in shown, f"{line}: {shown}"
    check = (
        "import json, pathlib\nassert json.loads(pathlib.Path('kept.json').read_text())['version'] == 1\n"
        "json.loads(pathlib.Path('kept.trace.json').read_text())\n"
        "assert 'loop at line 4' in pathlib.Path('kept.html').read_text()"
    )
    assert kernel.run(check)[0] == "ok"


def test_kernel_explains_the_magic(kernel: Kernel) -> None:
    status, _ = kernel.run("%%grape?")
    assert status == "ok"
    content = kernel.client.inspect("%%grape", reply=True, timeout=60)["content"]
    assert content["found"]
    assert "--memory-budget" in content["data"]["text/plain"]


def test_braces_reach_grape_as_typed(kernel: Kernel) -> None:
    assert kernel.run("name = 'expanded'")[0] == "ok"
    _, said = kernel.run("%%grape -o {name}\n1")
    assert any("-o takes a Python name, not '{name}'" in content.get("text", "") for content in said)
    assert kernel.run("assert 'expanded' not in globals()")[0] == "ok"


def test_clear_output_does_not_lose_the_report(kernel: Kernel) -> None:
    source = (
        "%%grape\nfrom IPython.display import clear_output\n"
        "sums = []\nfor i in range(60):\n    x = step(torch.ones(2, 8))\n    sums.append(x.sum().item())\n"
        "    clear_output(wait=True)\nprint('end')"
    )
    status, said = kernel.run(source)
    assert status == "ok"
    kinds = [content["type"] for content in said]
    last_cleared = len(kinds) - 1 - kinds[::-1].index("clear_output")
    shown = [content for content in said[last_cleared:] if content["type"] == "display_data"]
    assert ["text/html" in content["data"] for content in shown] == [True, False]  # the report, and the view below it
