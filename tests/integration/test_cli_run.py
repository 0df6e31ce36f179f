"""`grape run` on real kernels: what runs, what is reported and written, and how it fails."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output, new_raw_cell

from grape.cli import main
from tests.integration.notebook_files import notebook_file

pytestmark = pytest.mark.usefixtures("forked_kernels")

MODEL = """\
import torch
torch.manual_seed(0)
layer = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(8)))
"""
LOOP = """\
x = torch.zeros(1, 8)
with torch.inference_mode():
    for _ in range(30):
        x = layer(x)
"""


def run(path: Path, *options: str | Path) -> int:
    return main(["run", str(path), *(str(word) for word in options)])


def assert_is_report(report: dict[str, Any]) -> None:
    assert report["version"] == 1
    assert {"device", "verdict", "cell", "regions", "findings"} <= set(report)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br", "hr", "img", "col", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def outputs(tmp_path: Path) -> dict[str, Path]:
    folder = tmp_path / "results"
    folder.mkdir()
    return {"json": folder / "r.json", "html": folder / "r.html", "out": folder / "executed.ipynb"}


def flags(outputs: dict[str, Path]) -> list[str | Path]:
    return [word for name, path in outputs.items() for word in (f"--{name}", path)]


@pytest.mark.usefixtures("new_kernels")
def test_one_cell_is_measured_and_everything_is_written(
    tmp_path: Path, outputs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    cells = [
        new_markdown_cell("# A title", metadata={"mine": 1}),
        new_code_cell(MODEL),
        new_raw_cell("raw"),
        new_code_cell("%%grape --no-widget\n" + LOOP, metadata={"tags": ["kept"]}),
        new_code_cell("print(tuple(x.shape))"),
    ]
    path = tmp_path / "notebook.ipynb"
    nbformat.write(new_notebook(cells=cells, metadata={"author": "me"}), path)
    content, ids = path.read_bytes(), [cell.id for cell in cells]

    assert run(path, *flags(outputs)) == 0

    assert path.read_bytes() == content
    assert sorted(file.name for file in tmp_path.iterdir()) == ["notebook.ipynb", "results"]
    assert sorted(file.name for file in outputs["json"].parent.iterdir()) == ["executed.ipynb", "r.html", "r.json"]
    report = json.loads(outputs["json"].read_text())
    assert_is_report(report)
    assert [region["calls"] for region in report["regions"]] == [30]
    assert report["regions"][0]["outcome"] in ("replayed", "observed", "refused")
    out, err = capsys.readouterr()
    assert out.startswith("Code cell 2\n") and report["verdict"] in out and "%grape " not in out
    assert re.fullmatch(
        r"cell 1 of 3 \.\.\. [\d.]+ s\ncell 2 of 3, under Grape \.\.\. [\d.]+ s\ncell 3 of 3 \.\.\. [\d.]+ s\n", err
    )
    page = outputs["html"].read_text()
    tags = _Tags()
    tags.feed(page)
    assert tags.open == [] and "Code cell 2" in page
    executed = nbformat.read(outputs["out"], as_version=4)
    nbformat.validate(executed)
    assert [cell.id for cell in executed.cells] == ids
    assert [cell.source for cell in executed.cells] == [cell.source for cell in cells]
    assert executed.metadata["author"] == "me" and executed.cells[3].metadata == {"tags": ["kept"]}
    assert [cell.get("execution_count") for cell in executed.cells] == [None, 1, None, 2, 3]
    assert executed.cells[4].outputs[0].text == "(1, 8)\n"
    assert any(report["verdict"] in str(output) for output in executed.cells[3].outputs)


def test_views_and_traces_are_written_for_each_cell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, folder = notebook_file(tmp_path, MODEL, "%%grape\n" + LOOP), tmp_path / "results"
    folder.mkdir()
    drawn = ["--view", folder / "view.html", "--trace", folder / "trace.json"]
    assert run(path, *drawn, "--html", folder / "page.html") == 0
    assert sorted(file.name for file in folder.iterdir()) == ["page.html", "trace.json", "view.html"]
    assert 'id="grape-view"' in (folder / "view.html").read_text()
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    names = {event["args"].get("name") for event in events if "args" in event}
    assert any(str(name).startswith("before: ") for name in names)
    page = (folder / "page.html").read_text()
    assert page.count('<div class="grape-timelines" data-beside="true">') == 1
    assert "no call of" not in capsys.readouterr().err

    assert run(path, "--all", "--view", folder / "each.json", "--trace", folder / "each-trace.json") == 0
    made = sorted(file.name for file in folder.iterdir() if file.name.startswith("each"))
    assert made == [f"each{kind}-cell-{number}.json" for kind in ("", "-trace") for number in (1, 2)]
    assert main(["view", str(folder / "each-cell-2.json"), "--out", str(folder / "again.html")]) == 0
    assert "grape: no call of cell 1 was profiled: there is memory to draw, and no timeline" in capsys.readouterr().err


def test_without_the_magic_every_plain_cell_is_measured(tmp_path: Path, outputs: dict[str, Path]) -> None:
    path = notebook_file(tmp_path, MODEL, "!true", "", LOOP, "%%bash\ntrue", "%time y = 1", "assert y == 1")
    assert run(path, *flags(outputs)) == 0
    reports = json.loads(outputs["json"].read_text())
    assert reports["version"] == 1 and len(reports["cells"]) == 3
    for report in reports["cells"]:
        assert_is_report(report)
    executed = nbformat.read(outputs["out"], as_version=4)
    assert [cell.source for cell in executed.cells] == [cell.source for cell in nbformat.read(path, 4).cells]
    headings = re.findall(r"<h2>Code cell (\d)</h2>", outputs["html"].read_text())
    assert headings == ["1", "4", "7"]


def test_the_cells_that_are_named_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = notebook_file(tmp_path, "x = 1", "%%grape\ny = 2", "z = 3")
    assert run(path, "--cell", "3", "--cell", "1") == 0
    assert re.findall(r"^Code cell (\d)", capsys.readouterr().out, re.MULTILINE) == ["1", "3"]
    assert run(path, "--all") == 0
    assert re.findall(r"^Code cell (\d)", capsys.readouterr().out, re.MULTILINE) == ["1", "2", "3"]


def test_options_reach_the_cells_that_do_not_have_the_magic(tmp_path: Path, outputs: dict[str, Path]) -> None:
    # The kernel's own history shows what ran.
    history = "assert In[2].startswith('# %%grape --profile --output r'); assert In[3].startswith('# %%grape\\n')"
    path = notebook_file(tmp_path, MODEL, LOOP, "%%grape\n" + LOOP, history)
    options = ("--profile", "--output", "r", "--cell", "2", "--cell", "3")
    assert run(path, *options, "--json", outputs["json"]) == 0
    profiled, applied = json.loads(outputs["json"].read_text())["cells"]
    assert profiled["regions"][0]["outcome"] == "observed"
    assert applied["regions"][0]["outcome"] == "replayed"


def test_the_kernel_works_in_the_notebooks_folder_and_nothing_is_bound_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "helper.py").write_text("answer = 42\n")
    before = "import os, sys\nsys.dont_write_bytecode = True\nnames = set(globals())"
    after = (
        f"import helper\nassert helper.answer == 42 and os.getcwd() == {str(folder)!r}\nnew = set(globals()) - names"
    )
    check = "assert {n for n in new if not n.startswith('_')} <= {'names', 'x', 'helper'}, new"
    path = notebook_file(folder, before, "%%grape\nx = 1", after, check)
    assert run(path) == 0
    assert sorted(file.name for file in folder.iterdir()) == ["helper.py", "notebook.ipynb"]


def test_an_old_notebook_is_converted_in_memory(tmp_path: Path, outputs: dict[str, Path]) -> None:
    cell = {"cell_type": "code", "language": "python", "collapsed": False, "metadata": {}, "outputs": []}
    old = {
        "nbformat": 3,
        "nbformat_minor": 0,
        "metadata": {"name": ""},
        "worksheets": [{"cells": [{**cell, "input": "x = 6 * 7"}], "metadata": {}}],
    }
    path = tmp_path / "old.ipynb"
    path.write_text(json.dumps(old))
    content = path.read_bytes()
    assert run(path, "--out", outputs["out"], "--json", outputs["json"]) == 0
    assert path.read_bytes() == content
    assert_is_report(json.loads(outputs["json"].read_text()))
    nbformat.validate(nbformat.read(outputs["out"], as_version=4))


def test_a_notebook_with_100_mb_of_outputs(tmp_path: Path, outputs: dict[str, Path]) -> None:
    """Outputs of cells that run are made anew; of the file on disk nothing changes."""
    old = new_output("stream", text="x" * 100_000_000)
    path = notebook_file(tmp_path, new_code_cell("%%grape\nx = 1", outputs=[old]))
    before = path.stat()
    assert run(path, *flags(outputs)) == 0
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert outputs["out"].stat().st_size < 1_000_000


class TestACellThatRaises:
    def test_stops_the_run_and_keeps_what_was_measured(
        self, tmp_path: Path, outputs: dict[str, Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        marker = tmp_path / "ran"
        raising = "def f(n):\n    return 1 / n\n\nf(0)"
        path = notebook_file(tmp_path, "%%grape\nx = 1", raising, f"open({str(marker)!r}, 'w').close()")
        assert run(path, *flags(outputs)) == 1
        assert not marker.exists()
        out, err = capsys.readouterr()
        assert out.startswith("Code cell 1\n")
        assert "----> 2     return 1 / n" in err and "\x1b[" not in err
        assert err.rstrip().splitlines()[-1] == (
            "grape: cell 2 raised ZeroDivisionError: division by zero; the cells after it did not run"
        )
        assert_is_report(json.loads(outputs["json"].read_text()))
        executed = nbformat.read(outputs["out"], as_version=4)
        assert executed.cells[1].outputs[0].ename == "ZeroDivisionError"
        assert executed.cells[2].outputs == [] and executed.cells[2].execution_count is None

    def test_under_grape_is_reported_too(self, tmp_path: Path, outputs: dict[str, Path]) -> None:
        body = LOOP + "raise ValueError('as it is')"
        assert run(notebook_file(tmp_path, MODEL, "%%grape\n" + body), *flags(outputs)) == 1
        report = json.loads(outputs["json"].read_text())
        assert "ValueError" in report["cell"]["error"]

    def test_before_anything_was_measured_overwrites_nothing(self, tmp_path: Path, outputs: dict[str, Path]) -> None:
        for file in outputs.values():
            file.write_text("from before")
        assert run(notebook_file(tmp_path, "1 / 0", "%%grape\nx = 1"), *flags(outputs)) == 1
        assert {file.read_text() for file in outputs.values()} == {"from before"}

    def test_as_its_tag_says_it_does(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        raising = new_code_cell("1 / 0", metadata={"tags": ["raises-exception"]})
        # Nothing is found, so nothing fails on it.
        assert run(notebook_file(tmp_path, raising, "%%grape\nx = 1"), "--fail-on", "costly") == 0
        assert "Code cell 2" in capsys.readouterr().out

    def test_because_of_a_syntax_error_says_so(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(notebook_file(tmp_path, "x = = 1", "%%grape\ny = 1")) == 1
        assert "grape: cell 1 raised SyntaxError: invalid syntax" in capsys.readouterr().err


def test_a_cell_that_makes_no_report_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = notebook_file(tmp_path, "%%grape --profil\nx = 1", "print(x)")
    assert run(path, "--out", tmp_path / "executed.ipynb", "--json", tmp_path / "report.json") == 1
    assert not (tmp_path / "report.json").exists()
    assert capsys.readouterr().err.rstrip().splitlines()[-1] == (
        "grape: cell 1 ran, but made no report: UsageError: %%grape: unknown option '--profil'; "
        "did you mean --profile? (the cell runs without Grape)"
    )
    assert nbformat.read(tmp_path / "executed.ipynb", as_version=4).cells[1].outputs[0].text == "1\n"


class TestTheKernel:
    def test_that_dies(self, tmp_path: Path, outputs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
        path = notebook_file(tmp_path, "%%grape\nx = 1", "import os\nos._exit(3)", "y = 1")
        assert run(path, *flags(outputs)) == 3
        assert capsys.readouterr().err.rstrip().splitlines()[-1] == (
            "grape: the kernel died in cell 2; often the machine's memory was full, or native code crashed"
        )
        assert_is_report(json.loads(outputs["json"].read_text()))

    def test_that_dies_before_anything_was_measured_overwrites_nothing(
        self, tmp_path: Path, outputs: dict[str, Path]
    ) -> None:
        for file in outputs.values():
            file.write_text("from before")
        assert run(notebook_file(tmp_path, "%%grape\nimport os\nos._exit(3)"), *flags(outputs)) == 3
        assert {file.read_text() for file in outputs.values()} == {"from before"}

    def test_that_takes_too_long(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        ended = tmp_path / "ended"
        body = f"%%grape\nimport time\ntime.sleep(100)\nopen({str(ended)!r}, 'w').close()"
        assert run(notebook_file(tmp_path, "x = 1", body), "--timeout", "1.5") == 3
        assert not ended.exists()
        err = capsys.readouterr().err
        assert err.rstrip().splitlines()[-1] == "grape: cell 2 ran longer than the --timeout of 1.5 s"

    def test_that_never_ends_and_ignores_interrupts(
        self, tmp_path: Path, outputs: dict[str, Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        for file in outputs.values():
            file.write_text("from before")
        marker = tmp_path / "pid"
        setup = f"import os, signal, torch\nwith open({str(marker)!r}, 'w') as file:\n    file.write(str(os.getpid()))"
        stubborn = "%%grape\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True:\n    pass"
        assert run(notebook_file(tmp_path, setup, stubborn), "--timeout", "2", *flags(outputs)) == 3
        assert "grape: cell 2 ran longer than the --timeout of 2.0 s" in capsys.readouterr().err
        assert {file.read_text() for file in outputs.values()} == {"from before"}
        with pytest.raises(ProcessLookupError):
            os.kill(int(marker.read_text()), 0)

    @pytest.mark.usefixtures("new_kernels")
    def test_without_grape(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        blocked = tmp_path / "blocked" / "grape"
        blocked.mkdir(parents=True)
        (blocked / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'grape'\")\n")
        monkeypatch.setenv("PYTHONPATH", str(blocked.parent))
        assert run(notebook_file(tmp_path, "%%grape\nx = 1")) == 3
        assert capsys.readouterr().err.rstrip().splitlines()[-1] == (
            "grape: kernel 'python3' cannot load Grape: ModuleNotFoundError: No module named 'grape'; "
            "install grape-jupyter in its environment"
        )

    def test_is_stopped_by_ctrl_c(self, tmp_path: Path) -> None:
        marker = tmp_path / "pid"
        body = f"import os, time\nopen({str(marker)!r}, 'w').write(str(os.getpid()))\ntime.sleep(100)"
        path = notebook_file(tmp_path, body, "%%grape\nx = 1")
        command = [sys.executable, "-m", "grape.cli", "run", str(path)]
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # What a shell runs in the background ignores Ctrl-C, and so would what these tests start.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as process:
            deadline = time.monotonic() + 60
            while not (marker.exists() and marker.read_text()):
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert err.rstrip().splitlines()[-1] == "grape: interrupted"
        assert "Traceback" not in err
        with pytest.raises(ProcessLookupError):
            os.kill(int(marker.read_text()), 0)


class TestFailOn:
    SETUP = MODEL + "x = torch.zeros(1, 8)\n"
    SYNC = (
        "%%grape\nwith torch.inference_mode():\n    for _ in range(30):\n        x = layer(x)\n        x.sum().item()\n"
    )

    @pytest.mark.parametrize("severity", ["blocker", "costly"])
    def test_exit_code_follows_the_findings(
        self, tmp_path: Path, outputs: dict[str, Path], capsys: pytest.CaptureFixture[str], severity: str
    ) -> None:
        path = notebook_file(tmp_path, self.SETUP, self.SYNC)
        code = run(path, "--fail-on", severity, "--json", outputs["json"])
        accepted = ("blocker",) if severity == "blocker" else ("blocker", "costly")
        found = [f for f in json.loads(outputs["json"].read_text())["findings"] if f["severity"] in accepted]
        assert code == (1 if found else 0)
        if found:
            assert f"grape: --fail-on {severity}: {found[0]['code']} in cell 2" in capsys.readouterr().err
