"""`grape` without a notebook: arguments, exit codes, messages, and how little the process imports."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output, new_raw_cell

import grape
from grape.cli import main
from grape.cli.notebooks.notebook import code_cells, drop_emptied
from tests.integration import notebook_files

notebook_file = functools.partial(notebook_files.notebook_file, kernel="python3")


def failed(capsys: pytest.CaptureFixture[str], code: int, *argv: str | Path) -> str:
    """Run a command that must fail with `code` before anything runs: one line on stderr, nothing on stdout."""
    assert main([str(word) for word in argv]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("grape: ") and err.count("\n") == 1 and err.endswith("\n")
    return err.removeprefix("grape: ").rstrip("\n")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            [],
            "no command; write grape run NOTEBOOK|SCRIPT.py, advise NOTEBOOK, apply NOTEBOOK, compare A.json B.json",
        ),
        (["--verbose"], "unknown option '--verbose'; write grape run NOTEBOOK"),
        (["rnu", "x.ipynb"], "unknown command 'rnu'; did you mean run?"),
        (
            ["profile"],
            "unknown command 'profile'; commands: run, apply, demo, doctor, explain, advise, compare, mcp, view",
        ),
        (["run"], "the following arguments are required: NOTEBOOK|SCRIPT.py; see grape run --help"),
        (["run", "x.ipynb", "--jsn", "f"], "unknown option '--jsn'; did you mean --json?"),
        (["run", "x.ipynb", "--jsn=f"], "unknown option '--jsn=f'; did you mean --json?"),
        (["run", "x.ipynb", "y.ipynb"], "unknown argument 'y.ipynb'; see grape run --help"),
        (["run", "x.ipynb", "--all", "--cell", "1"], "argument --cell: not allowed with argument --all"),
        (["run", "x.ipynb", "--cell", "0"], "cells are numbered from 1; '0' is no such number"),
        (["run", "x.ipynb", "--cell", "two"], "cells are numbered from 1; 'two' is no such number"),
        (["run", "x.ipynb", "--timeout", "-1"], "'-1' is not a number of seconds above 0"),
        (["run", "x.ipynb", "--timeout", "inf"], "'inf' is not a number of seconds above 0"),
        (["run", "x.ipynb", "--fail-on", "hint"], "invalid choice: 'hint'"),
        (["run", "x.ipynb", "--tolerance", "much"], "--tolerance takes a number, not 'much'"),
        (["run", "x.ipynb", "--memory-budget", "big"], "'big' is not a size; write for example 512MB or 2GB"),
        (["run", "x.ipynb", "-o", "y.ipynb"], "to write the executed notebook use --out y.ipynb"),
        (["run", "x.ipynb", "-o", "not-a-name"], "takes a Python name, not 'not-a-name'"),
        (["demo", "fast"], "unknown argument 'fast'; see grape demo --help"),
        (["explain"], "the following arguments are required: CODE"),
        (["explain", "GR109"], "unknown finding code 'GR109'; did you mean GR10"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    assert message in failed(capsys, 2, *argv)


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"grape {grape.__version__}\n"
    assert main(["run", "--help"]) == 0
    text = capsys.readouterr().out
    assert "begin with\n%%grape" in text and "--memory-budget SIZE" in text and "exit codes:" in text
    assert main(["--help"]) == 0
    assert "could not be started, has no Grape, died" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["run", "missing.ipynb"], ["explain", "GR101"]])
def test_what_needs_no_torch_does_not_import_it(tmp_path: Path, argv: list[str]) -> None:
    program = (
        "import sys\nfrom grape.cli import main\n"
        f"code = main({argv!r})\n"
        "sys.exit(code * 10 + any(name in sys.modules for name in ('torch', 'IPython', 'transformers')))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == (20 if argv[0] == "run" else 0), done.stderr


def test_the_help_and_the_version_do_not_even_import_notebook_libraries(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom grape.cli import main\nmain(['--version'])\n"
        "sys.exit(any(name in sys.modules for name in ('nbformat', 'nbclient', 'rich')))"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, check=False).returncode == 0
    )


def test_a_reader_that_closes_the_pipe_is_no_crash(tmp_path: Path) -> None:
    command = f"'{sys.executable}' -m grape.cli run --help | true; '{sys.executable}' -m grape.cli explain GR101 | true"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


def test_explain_prints_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "gr101"]) == 0
    by_code = capsys.readouterr().out
    assert by_code.startswith("# GR101") and "host-sync" in by_code
    assert main(["explain", "host-sync"]) == 0
    assert capsys.readouterr().out == by_code


def test_doctor_prints_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert "torch" in capsys.readouterr().out.lower()


class TestUnreadableNotebooks:
    def test_missing(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        path = tmp_path / "none.ipynb"
        assert failed(capsys, 2, "run", path) == f"cannot read '{path}': No such file or directory; check the path"

    def test_folder(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        assert failed(capsys, 2, "run", tmp_path) == f"'{tmp_path}' is a folder; name an .ipynb file in it"

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "broken JSON"),
            (b'{"cells": [', "broken JSON"),
            (b"\xff\xfe\x00", "it is not UTF-8 text"),
            (b"[" * 100_000, "broken JSON"),
            (b"[]", "it is JSON without an 'nbformat' number"),
            (b'{"cells": []}', "it is JSON without an 'nbformat' number"),
            (b'{"nbformat": true, "cells": []}', "it is JSON without an 'nbformat' number"),
            (b'{"nbformat": 5, "nbformat_minor": 0}', "has notebook format 5; the installed nbformat reads 1 to 4"),
            (b'{"nbformat": 4, "nbformat_minor": 5}', "is not a valid notebook of format 4: "),
            (
                b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"cell_type": "code"}]}',
                "is not a valid",
            ),
            (b'{"nbformat": 3, "nbformat_minor": 0, "worksheets": 7}', "is not a valid notebook of format 3: "),
        ],
        ids=lambda value: str(value)[:32],
    )
    def test_corrupt(self, capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes, message: str) -> None:
        path = tmp_path / "notebook.ipynb"
        path.write_bytes(content)
        error = failed(capsys, 2, "run", path)
        assert str(path) in error and message in error
        assert path.read_bytes() == content

    @pytest.mark.parametrize("sources", [(), ("",), ("# a comment",), ("!ls", "%%bash\nls", "x = = 1")])
    def test_nothing_to_measure(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, sources: tuple[str, ...]
    ) -> None:
        error = failed(capsys, 2, "run", notebook_file(tmp_path, *sources))
        assert error.startswith("notebook.ipynb has no code cell that can run under Grape")


class TestCells:
    def test_out_of_range(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        path = notebook_file(tmp_path, "x = 1", "y = 2")
        error = failed(capsys, 2, "run", path, "--cell", "99")
        assert error == "there is no cell 99 in notebook.ipynb: it has 2 code cells, numbered from 1"

    @pytest.mark.parametrize(
        ("source", "why"),
        [
            ("", "it is empty"),
            ("# only this", "it has only comments"),
            ("%%grape --profile\n\n", "it is empty below %%grape"),
            ("%%bash\nls", "it begins with %%bash"),
            ("%%grapevine\nls", "it begins with %%grapevine"),
            ("x = 1\n!ls", "line 2 is not Python: !ls"),
            ("x = 1\nif x\n    pass", "line 2 is not Python: if x"),
            ("return 1", "line 1 is not Python: return 1"),
        ],
    )
    def test_that_cannot_run_under_grape(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, source: str, why: str
    ) -> None:
        path = notebook_file(tmp_path, "x = 1", source)
        error = failed(capsys, 2, "run", path, "--cell", "1", "--cell", "2")
        assert error == f"cell 2 of notebook.ipynb cannot run under Grape: {why}; leave it out of --cell"

    def test_are_numbered_as_people_see_them(self) -> None:
        notebook = new_notebook(
            cells=[
                new_markdown_cell("# title"),
                new_code_cell("x = 1"),
                new_raw_cell("raw"),
                new_code_cell(""),
                new_code_cell("\n%%grape --profile\nx"),
                new_code_cell("await f()"),
                new_code_cell("SELECT 1", metadata={"vscode": {"languageId": "sql"}}),
                new_code_cell("x", metadata={"tags": ["skip-execution"]}),
            ]
        )
        cells = [(cell.number, cell.index, cell.kind) for cell in code_cells(notebook)]
        assert cells == [
            (1, 1, "plain"),
            (2, 3, "empty"),
            (3, 4, "grape"),
            (4, 5, "plain"),
            (5, 6, "other"),
            (6, 7, "other"),
        ]


class TestOutputs:
    """A file that cannot be written is found before the notebook runs."""

    @pytest.mark.parametrize("flag", ["--json", "--html", "--out"])
    def test_in_a_folder_that_does_not_exist(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, flag: str
    ) -> None:
        target = tmp_path / "none" / "file"
        error = failed(capsys, 2, "run", notebook_file(tmp_path, "x = 1"), flag, target)
        assert error == f"cannot write '{target}': there is no folder '{target.parent}'; create it first"
        assert sorted(file.name for file in tmp_path.iterdir()) == ["notebook.ipynb"]

    def test_a_folder(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        error = failed(capsys, 2, "run", notebook_file(tmp_path, "x = 1"), "--json", tmp_path)
        assert error == f"cannot write '{tmp_path}': it is a folder; name a file in it"

    @pytest.mark.parametrize("link", [False, True])
    def test_the_notebook_itself(self, capsys: pytest.CaptureFixture[str], tmp_path: Path, link: bool) -> None:
        path = notebook_file(tmp_path, "x = 1")
        content = path.read_bytes()
        target = tmp_path / "link.ipynb"
        if link:
            target.hardlink_to(path)
        else:
            target = path
        error = failed(capsys, 2, "run", path, "--out", target)
        assert error == f"'{target}' is the notebook itself, which is never changed; name another file"
        assert path.read_bytes() == content

    def test_named_twice(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        target = tmp_path / "report"
        error = failed(capsys, 2, "run", notebook_file(tmp_path, "x = 1"), "--json", target, "--html", target)
        assert error == f"'{target}' is named twice; give each output a file of its own"

    def test_in_a_read_only_folder(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("os.access", lambda *_: False)  # as root every folder is writable
        target = tmp_path / "report.json"
        error = failed(capsys, 2, "run", notebook_file(tmp_path, "x = 1"), "--json", target)
        assert error == f"cannot write '{target}': permission denied; name a file in a folder of your own"


class TestKernels:
    def test_not_installed(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        error = failed(capsys, 3, "run", notebook_file(tmp_path, "x = 1", kernel="no-such"))
        assert error.startswith("kernel 'no-such' is not installed; name another with --kernel: ")
        assert "python3" in error
        error = failed(capsys, 3, "run", notebook_file(tmp_path, "x = 1"), "--kernel", "../odd name")
        assert error.startswith("kernel '../odd name' is not installed")

    @pytest.mark.parametrize(
        ("spec", "code", "message"),
        [
            ({"argv": ["true"], "language": "julia"}, 2, "kernel 'odd' runs julia; Grape measures Python"),
            ({"argv": ["/no/such/program"], "language": "python"}, 3, "kernel 'odd' does not start: "),
            ({"argv": ["false"], "language": "python"}, 3, "kernel 'odd' does not start: "),
        ],
    )
    def test_that_does_not_do(
        self,
        capsys: pytest.CaptureFixture[str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        spec: dict[str, object],
        code: int,
        message: str,
    ) -> None:
        folder = tmp_path / "jupyter" / "kernels" / "odd"
        folder.mkdir(parents=True)
        (folder / "kernel.json").write_text(json.dumps({**spec, "display_name": "odd"}))
        monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
        assert message in failed(capsys, code, "run", notebook_file(tmp_path, "x = 1"), "--kernel", "odd")


def test_of_a_progress_that_was_emptied_nothing_is_written() -> None:
    """A notebook that is saved would hold an output without content."""
    kept = [
        new_output("stream", text=""),
        new_output("display_data", {"text/plain": ""}),
        new_output("display_data", {"text/plain": "x", "text/html": ""}),
    ]
    emptied = new_output("display_data", {"text/plain": "", "text/html": ""})
    cell = new_code_cell("x", outputs=[kept[0], emptied, *kept[1:]])
    notebook = new_notebook(cells=[new_markdown_cell("# x"), cell])
    drop_emptied(notebook)
    assert cell.outputs == kept
