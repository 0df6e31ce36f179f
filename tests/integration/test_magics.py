"""The IPython layer against a recorded session: what is called when, what is shown, and that all of it comes out."""

from __future__ import annotations

import asyncio
import atexit
import json
import random
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import IPython
import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from traitlets.config import Config

from grape.errors import GrapeError, UsageError
from grape.failures import HOW
from grape.magics import load, unload
from grape.magics.completion import complete_line
from grape.magics.display import CellDisplay
from grape.magics.source import comment_out, find_magic
from grape.model import MemoryCurve


@dataclass
class FakeReport:
    verdict: str = "no significant change"
    findings: tuple[Any, ...] = ()
    has_timeline: bool = True
    memory: MemoryCurve = field(default_factory=MemoryCurve)
    made_findings: tuple[Any, ...] = ()
    step_told: bool = True
    evidence: Any = field(default_factory=lambda: SimpleNamespace(ranks=None))

    def with_fixes(self) -> FakeReport:
        return self

    def to_dict(self) -> dict[str, Any]:
        return {"version": 1, "verdict": self.verdict}

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    def to_html(self) -> str:
        return f"<p>{self.verdict}</p>"

    def to_text(self, *, details: bool = True) -> str:
        return f"REPORT {self.verdict}"

    def to_chrome_trace(self, path: str) -> None:
        Path(path).write_text("[]")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": self.to_text(), "text/html": self.to_html()}


@dataclass
class Recorder:
    """The calls that the IPython layer made, in order, and what to do at each of them."""

    calls: list[Any] = field(default_factory=list)
    sessions: list[Any] = field(default_factory=list)
    at: dict[str, Callable[[Any], None]] = field(default_factory=dict)
    report: FakeReport | None = None

    def record(self, session: Any, name: str) -> None:
        self.calls.append(name)
        if name in self.at:
            self.at[name](session)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    record = Recorder()

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Cell:
        name: str
        source: str
        filename: str
        id: str | None = None
        rewritten: Any = None
        taken: Any = ()
        mode: str = "watch"
        key: Any = None
        ahead_ms: float = 0.0
        since: float | None = None

    class Session:
        is_known = True

        def __init__(self, *, options: Any, cell: Cell, namespace: Any, on_progress: Any, file_names: Any) -> None:
            self.options, self.cell, self.namespace = options, cell, namespace
            self.on_progress, self.file_names = on_progress, file_names
            record.sessions.append(self)

        def open(self, code: CodeType | None = None) -> None:
            record.record(self, "open")

        def statement_boundary(self, code: CodeType | None = None) -> None:
            record.record(self, "boundary")

        def abandon(self) -> None:
            record.record(self, "abandon")

        def close(self, error: BaseException | None) -> FakeReport:
            self.error = error
            record.record(self, f"close {type(error).__name__}" if error else "close")
            record.report = FakeReport(f"stopped by {type(error).__name__}" if error else "no significant change")
            return record.report

    class Engine:
        applied_count = 3

        def status(self, taken: Sequence[str] = ()) -> str:
            return "\n".join(["2 graphs", *taken])

        def undo(self, number: int | None = None) -> str:
            if number == 9:
                raise UsageError("there is no 9; %grape status lists what there is")
            return f"undone {number}"

        def reset(self) -> str:
            return "forgot 2 graphs"

        def close(self) -> None:
            record.calls.append("engine closed")

    module = types.ModuleType("grape.sessions")
    vars(module).update(Cell=Cell, Session=Session, last_report=lambda: record.report, engine=Engine)
    vars(module).update(close_engine=Engine().close, preload=lambda: None, plan=lambda *_: ("watch", None))
    monkeypatch.setitem(sys.modules, "grape.sessions", module)
    return record


@pytest.fixture
def bare_shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[InteractiveShell]:
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.chdir(tmp_path)
    config = Config()
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.colors = "nocolor" if IPython.version_info >= (9,) else "NoColor"
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(config=config)
    yield shell
    unload(shell)
    atexit.unregister(shell.atexit_operations)
    shell.atexit_operations()
    InteractiveShell.clear_instance()


@pytest.fixture
def shell(bare_shell: InteractiveShell, recorder: Recorder) -> InteractiveShell:
    load(bare_shell)
    return bare_shell


def run(shell: InteractiveShell, source: str) -> ExecutionResult:
    return shell.run_cell(source, store_history=True)


def own(shell: InteractiveShell) -> set[str]:
    """The names of the namespace that IPython does not make itself (it keeps `_i3`, `_3` and their like)."""
    return {name for name in shell.user_ns if not name.startswith("_")}


# --- the text of the cell


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("%%grape\nx = 1\n", "# %%grape\nx = 1\n"),
        ("%%grape --json {x}.json\nx\n", "# %%grape --json {x}.json\nx\n"),
        ("\n  \n%%grape\nx\n", "#\n#\n# %%grape\nx\n"),
        ("  %%grape\n  x\n", "  # %%grape\n  x\n"),
        ("%%grape", "# %%grape"),
        ("x = 1\n%%grape\n", "x = 1\n%%grape\n"),
        ('s = """\n%%grape\n"""\n', 's = """\n%%grape\n"""\n'),
        ("%%grape?\n", "%%grape?\n"),
        ("%%grapefruit\nx\n", "%%grapefruit\nx\n"),
        ("%grape status\n", "%grape status\n"),
        ("%%grape --help\nx\n", "%%grape --help\nx\n"),
        ("%%grape --help\n", "# %%grape --help\n"),
        ("# %%grape\nx\n", "# %%grape\nx\n"),
        (
            "%%grape\n\n%%time -n\nx = 1\ny\n",
            "# %%grape\n\nget_ipython().run_cell_magic('time', '-n', 'x = 1\\ny\\n')\n",
        ),
        ("", ""),
    ],
)
def test_only_a_first_magic_line_becomes_a_comment(source: str, expected: str) -> None:
    lines = source.splitlines(keepends=True)
    once = comment_out(lines)
    assert "".join(once) == expected
    assert comment_out(once) == once


def test_magic_line_is_found_below_blank_lines() -> None:
    found = find_magic(["\n", "%%grape  -o r \n", "x\n"])
    assert found is not None
    assert (found.index, found.options, found.body_is_blank) == (1, "-o r", False)


# --- how a cell runs


def test_session_sees_each_statement_once(shell: InteractiveShell, recorder: Recorder) -> None:
    result = run(shell, "\n%%grape --tolerance 0.5\na = 1\nb = 2\na + b")
    assert result.result == 3
    assert recorder.calls == ["open", "boundary", "boundary", "close"]
    session = recorder.sessions[0]
    assert session.options.tolerance == 0.5
    assert session.cell.name == "In[1]"
    assert session.cell.source == "\n%%grape --tolerance 0.5\na = 1\nb = 2\na + b"
    assert session.file_names(session.cell.filename) == "In[1]"
    assert session.file_names("/elsewhere.py") == "/elsewhere.py"
    assert session.namespace is shell.user_ns


def test_code_filename_is_the_one_that_ipython_compiled(shell: InteractiveShell, recorder: Recorder) -> None:
    run(shell, "%%grape\ndef f(): pass\n")
    assert shell.user_ns["f"].__code__.co_filename == recorder.sessions[0].cell.filename
    assert shell.user_ns["f"].__code__.co_firstlineno == 2


def test_report_is_shown_but_never_becomes_out(
    shell: InteractiveShell, recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    run(shell, "40 + 2")
    run(shell, "%%grape\nx = 1")
    shown = capsys.readouterr()
    assert "REPORT no significant change" in shown.out
    assert shown.err == ""
    assert shell.user_ns["_"] == 42
    assert shell.user_ns["Out"] == {1: 42}


def test_plain_cells_open_no_session(shell: InteractiveShell, recorder: Recorder) -> None:
    run(shell, "x = '''\n%%grape\n'''")
    run(shell, "   ")
    assert recorder.sessions == []
    assert "run_code" not in vars(shell)


def test_nothing_is_left_on_the_shell_after_a_cell(shell: InteractiveShell, recorder: Recorder) -> None:
    patched: list[bool] = []
    recorder.at["open"] = lambda _: patched.append("run_code" in vars(shell))
    run(shell, "%%grape\nx = 1")
    assert patched == [True]
    assert "run_code" not in vars(shell)
    assert "clear_output" not in vars(shell.display_pub)


def test_nested_run_cell_belongs_to_the_outer_cell(shell: InteractiveShell, recorder: Recorder) -> None:
    run(shell, "%%grape\nget_ipython().run_cell('p = 1\\nq = 2')\nr = 3")
    assert recorder.calls == ["open", "boundary", "close"]
    assert shell.user_ns["q"] == 2


def test_cell_magic_below_and_above(
    shell: InteractiveShell, recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    below = run(shell, "%%grape\n%%time\nx = 1\nx + 1")
    assert below.result == 2
    assert recorder.calls == ["open", "close"]
    recorder.calls.clear()
    above = run(shell, "%%time\n%%grape\nx = 5\ny = 6\nx + y")
    assert above.result == 11
    assert recorder.calls == ["open", "boundary", "boundary", "close"]
    assert recorder.sessions[-1].cell.source == "%%grape\nx = 5\ny = 6\nx + y\n"
    assert capsys.readouterr().out.count("Wall time") == 2


def test_below_another_magic_an_error_is_raised(shell: InteractiveShell, recorder: Recorder) -> None:
    with pytest.raises(ZeroDivisionError):
        shell.run_cell_magic("grape", "", "x = 1\nx / 0\n")
    assert recorder.calls == ["open", "boundary", "close ZeroDivisionError"]
    assert not run(shell, "%%capture\n%%grape\n1 / 0").success or recorder.calls[-1] == "close ZeroDivisionError"


def test_below_another_magic_await_is_refused_in_one_line(
    shell: InteractiveShell, recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    run(shell, "%%time\n%%grape\nimport asyncio\nawait asyncio.sleep(0)")
    assert "top-level await works where %%grape is the first line" in capsys.readouterr().err


def test_grape_twice_is_one_session(
    shell: InteractiveShell, recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(shell, "%%grape\n%%grape --profile\n1 + 1")
    assert result.result == 2
    assert recorder.calls == ["open", "close"]
    assert "this line is ignored" in capsys.readouterr().err


def test_semicolon_silences_the_nested_magic_too(shell: InteractiveShell, recorder: Recorder) -> None:
    assert run(shell, "%%grape\n1 + 1;").result is None
    assert shell.run_cell_magic("grape", "", "1 + 1;\n") is None


def test_async_cell(shell: InteractiveShell, recorder: Recorder) -> None:
    result = run(shell, "%%grape\nimport asyncio\nawait asyncio.sleep(0)\n'slept'")
    assert result.result == "slept"
    assert recorder.calls == ["open", "boundary", "boundary", "close"]


@pytest.mark.parametrize("raised", ["ValueError('no')", "KeyboardInterrupt", "SystemExit", "asyncio.CancelledError"])
def test_every_exception_closes_the_session(
    shell: InteractiveShell, recorder: Recorder, raised: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = raised.partition("(")[0].removeprefix("asyncio.")
    with pytest.warns(UserWarning, match="To exit") if name == "SystemExit" else _no_warning():
        result = run(shell, f"%%grape\nimport asyncio\nraise {raised}")
    assert type(result.error_in_exec).__name__ == name
    assert recorder.calls == ["open", "boundary", f"close {name}"]
    out = capsys.readouterr().out
    assert f"Grape: stopped by {name} (the whole report: import grape; print(grape.last))\n" in out
    assert out.index(name) < out.index("Grape: stopped by")
    assert run(shell, "%%grape\n7").result == 7


def _no_warning() -> Any:
    import contextlib

    return contextlib.nullcontext()


@pytest.mark.parametrize("source", ["%%grape\nx = = 1", "%%grape\n  x = 1\n y = 2", "%%grape\n'abc"])
def test_syntax_errors_open_no_session(
    shell: InteractiveShell, recorder: Recorder, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(shell, source)
    assert isinstance(result.error_before_exec, SyntaxError)
    assert recorder.calls == []
    shown = capsys.readouterr()
    assert "Grape" not in shown.out + shown.err
    assert "run_code" not in vars(shell)


def test_cell_that_does_not_compile_halfway_closes_the_session(shell: InteractiveShell, recorder: Recorder) -> None:
    result = run(shell, "%%grape\nx = 1\nreturn 3")
    assert isinstance(result.error_before_exec, SyntaxError)
    assert recorder.calls == ["open", "close SyntaxError"]


@pytest.mark.parametrize("source", ["%%grape", "%%grape\n\n   \n", "%%grape --profile\n# later\n"])
def test_empty_cell_says_so(
    shell: InteractiveShell, recorder: Recorder, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(shell, source).success
    assert capsys.readouterr().err == "%%grape: nothing to run; put the code below the %%grape line\n"
    assert recorder.sessions == []


def test_a_missed_end_is_made_up_at_the_next_cell(shell: InteractiveShell, recorder: Recorder) -> None:
    hooks = shell.events.callbacks["post_run_cell"]
    end = next(hook for hook in hooks if hook.__module__.startswith("grape"))
    hooks.remove(end)
    run(shell, "%%grape\nx = 1")
    assert recorder.calls == ["open"]
    shell.events.register("post_run_cell", end)
    run(shell, "y = 2")
    assert recorder.calls == ["open", "close"]
    assert "run_code" not in vars(shell)


def test_end_without_a_result_closes_the_session(shell: InteractiveShell, recorder: Recorder) -> None:
    """The kernel's way where a coroutine is cancelled from outside: `post_run_cell(None)` while the error flies."""

    async def cancelled() -> None:
        source = "%%grape\nimport asyncio\nawait asyncio.sleep(60)"
        task = asyncio.ensure_future(shell.run_cell_async(source, transformed_cell=shell.transform_cell(source)))
        await asyncio.sleep(0.01)
        try:
            raise asyncio.CancelledError
        finally:
            shell.events.trigger("post_run_cell", None)
            task.cancel()
            await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert recorder.calls == ["open", "boundary", "close CancelledError"]


def test_cell_of_another_thread_runs_plainly(
    shell: InteractiveShell, recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    def elsewhere(_: Any) -> None:
        thread = threading.Thread(target=run, args=(shell, "%%grape\nother = 1"))
        thread.start()
        thread.join()

    recorder.at["open"] = elsewhere
    run(shell, "%%grape\nmine = 1")
    assert recorder.calls == ["open", "close"]
    assert (shell.user_ns["mine"], shell.user_ns["other"]) == (1, 1)
    assert "another thread runs a cell under Grape" in capsys.readouterr().err


# --- where Grape itself fails


def _fail(error: BaseException) -> Callable[[Any], None]:
    def fail(_: Any) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("open", "Grape: could not start, the cell goes on without it: no torch here"),
        ("boundary", "Grape: stopped, the cell goes on without it: no torch here"),
        ("close", "Grape: no report, the cell itself is not affected: no torch here"),
    ],
)
def test_own_failure_never_breaks_the_cell(
    shell: InteractiveShell, recorder: Recorder, where: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder.at[where] = _fail(GrapeError("no torch here"))
    result = run(shell, "%%grape -o r\nx = 1\ny = 2\nx + y")
    assert result.success
    assert result.result == 3
    shown = capsys.readouterr()
    assert said + "\n" == shown.err
    assert "REPORT" not in shown.out
    assert "r" not in shell.user_ns
    assert recorder.calls[-1] == ("close" if where == "close" else "abandon")


@pytest.mark.parametrize("where", ["open", "boundary"])
def test_interrupt_inside_grape_ends_the_cell(
    shell: InteractiveShell, recorder: Recorder, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder.at[where] = _fail(KeyboardInterrupt())
    result = run(shell, "%%grape\nx = 1\ny = 2")
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert "y" not in shell.user_ns
    assert "KeyboardInterrupt" in capsys.readouterr().out
    assert recorder.calls[-1] == ("abandon" if where == "open" else "close KeyboardInterrupt")
    recorder.at.clear()
    assert run(shell, "%%grape\n8").result == 8


# --- options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--profil", "UsageError: %%grape: unknown option '--profil'; did you mean --profile?"),
        ("--tolerance", "UsageError: %%grape: --tolerance needs a value: --tolerance X"),
        ("--tolerance much", "UsageError: %%grape: --tolerance takes a number, not 'much'"),
        ("--memory-budget 2XB", "UsageError: %%grape: '2XB' is not a size; write for example 512MB or 2GB"),
        ("-o {x}", "UsageError: %%grape: -o takes a Python name, not '{x}'"),
        ("-o class", "UsageError: %%grape: -o takes a Python name, not 'class'"),
        ("'open", "UsageError: %%grape: cannot read the options ''open': No closing quotation"),
    ],
)
def test_bad_options_are_one_line_and_the_cell_runs(
    shell: InteractiveShell, recorder: Recorder, options: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.user_ns["x"] = "name"
    assert run(shell, f"%%grape {options}\n3 * 3").result == 9
    assert capsys.readouterr().err == f"{said} (the cell runs without Grape)\n"
    assert recorder.sessions == []


def test_braces_in_options_are_not_expanded(shell: InteractiveShell, recorder: Recorder, tmp_path: Path) -> None:
    shell.user_ns["x"] = "expanded"
    run(shell, "%%grape --json {x}.json\ny = 1")
    shell.run_cell_magic("grape", "--json {x}.2.json", "y = 1\n")
    assert [session.options.json for session in recorder.sessions] == ["{x}.json", "{x}.2.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["{x}.2.json", "{x}.json"]


def test_output_and_json(shell: InteractiveShell, recorder: Recorder, tmp_path: Path) -> None:
    before = own(shell)
    run(shell, "%%grape -o r --json out.json\npass")
    assert own(shell) - before == {"r"}
    assert shell.user_ns["r"] is recorder.report
    assert json.loads((tmp_path / "out.json").read_text()) == {"version": 1, "verdict": "no significant change"}


def test_json_that_cannot_be_written_loses_nothing(
    shell: InteractiveShell, recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(shell, "%%grape -o r --json missing/out.json\nimport sys; print('runs', file=sys.stderr)\n4 + 4")
    assert result.result == 8
    shown = capsys.readouterr()
    assert shown.err.endswith("(the cell runs)\nruns\n")  # said before, and once
    shown = shown._replace(err=shown.err.removesuffix("runs\n"))
    assert shown.err.startswith("UsageError: %%grape --json: cannot write the report to 'missing/out.json'")
    assert shown.err.count("\n") == 1
    assert "REPORT" in shown.out
    assert shell.user_ns["r"] is recorder.report


def test_a_folder_that_the_cell_makes_takes_the_report(
    shell: InteractiveShell, recorder: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(shell, "%%grape --json made/out.json\nimport os\nos.mkdir('made')")
    assert capsys.readouterr().err.count("UsageError") == 1
    assert (tmp_path / "made" / "out.json").exists()


@pytest.mark.parametrize("kind", ["file", "none"])
def test_the_json_file_is_not_touched_before_the_report(
    shell: InteractiveShell, recorder: Recorder, tmp_path: Path, kind: str
) -> None:
    if kind == "file":
        (tmp_path / "out.json").write_text("earlier")
    shown = run(shell, "%%grape --json out.json\n[p.read_text() for p in __import__('pathlib').Path().glob('*.json')]")
    assert shown.result == (["earlier"] if kind == "file" else [])


def test_nothing_is_bound_or_written_unasked(shell: InteractiveShell, recorder: Recorder, tmp_path: Path) -> None:
    run(shell, "1")
    before = set(shell.user_ns)
    run(shell, "%%grape\npass")
    assert set(shell.user_ns) - before == {"_i2"}
    assert list(tmp_path.iterdir()) == []


# --- the one display


@pytest.fixture
def messages(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What a front end receives, for a shell whose publisher sends messages."""
    monkeypatch.setattr("grape.magics.display.SECONDS_BEFORE_PROGRESS", 0.0)
    publisher = CapturingDisplayPublisher(shell=shell)
    monkeypatch.setattr(shell, "display_pub", publisher)
    return publisher.outputs  # type: ignore[no-any-return]


def test_the_report_stands_below_what_the_cell_shows_and_nothing_is_left_of_its_progress(
    shell: InteractiveShell, recorder: Recorder, messages: list[dict[str, Any]]
) -> None:
    def show(session: Any) -> None:
        session.on_progress("observing <f>")
        session.on_progress("too fast to be shown")

    recorder.at["open"] = show
    run(shell, "%%grape\nfrom IPython.display import display; display({'text/plain': 'its own'}, raw=True)")
    first, own, gone, report = messages
    assert first["data"]["text/plain"] == "Grape: observing <f>"
    assert "observing &lt;f&gt;" in first["data"]["text/html"]
    assert own["data"]["text/plain"] == "its own"
    assert gone["update"] and gone["transient"] == first["transient"] != {} and set(gone["data"].values()) == {""}
    assert not report["update"] and report["data"]["text/plain"] == "REPORT no significant change"


def test_where_a_cell_shows_nothing_the_report_takes_the_place_of_its_progress(
    shell: InteractiveShell, recorder: Recorder, messages: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is emptied would be saved with the notebook."""

    class Counted:
        @property
        def message_count(self) -> int:
            return len(messages)

    monkeypatch.setattr(shell.display_pub, "session", Counted(), raising=False)
    recorder.at["open"] = lambda session: session.on_progress("observing")
    run(shell, "%%grape\nx = 1")
    progress, report = messages
    assert report["update"] and report["transient"] == progress["transient"] != {}
    assert report["data"]["text/plain"] == "REPORT no significant change"
    messages.clear()
    run(shell, "%%grape\nfrom IPython.display import display; display({'text/plain': 'its own'}, raw=True)")
    assert [message["update"] for message in messages] == [False, False, True, False], "the report stands below"
    messages.clear()
    monkeypatch.setattr(shell.display_pub, "_hooks", [print], raising=False)  # they may keep what is shown
    run(shell, "%%grape\nx = 1")
    assert [message["update"] for message in messages] == [False, True, False]


def test_without_progress_there_is_one_plain_output(
    shell: InteractiveShell, recorder: Recorder, messages: list[dict[str, Any]]
) -> None:
    run(shell, "%%grape\nx = 1")
    (only,) = messages
    assert only["update"] is False
    assert only["data"]["text/html"] == "<p>no significant change</p>"


def test_error_folds_the_report(shell: InteractiveShell, recorder: Recorder, messages: list[dict[str, Any]]) -> None:
    run(shell, "%%grape\n1 / 0")
    (only,) = messages
    assert only["data"]["text/html"] == (
        "<details><summary>Grape: stopped by ZeroDivisionError</summary><p>stopped by ZeroDivisionError</p></details>"
    )


def test_failure_replaces_the_progress(
    shell: InteractiveShell, recorder: Recorder, messages: list[dict[str, Any]]
) -> None:
    recorder.at["open"] = lambda session: session.on_progress("observing")
    recorder.at["close"] = _fail(RuntimeError("broken\nsecond line"))
    run(shell, "%%grape\nx = 1")
    assert [message["update"] for message in messages] == [False, True]
    assert messages[-1]["data"]["text/plain"] == (
        f"Grape: no report, the cell itself is not affected: RuntimeError: broken; {HOW}"
    )


def test_interrupt_while_starting_leaves_no_progress(
    shell: InteractiveShell, recorder: Recorder, messages: list[dict[str, Any]]
) -> None:
    def interrupted(session: Any) -> None:
        session.on_progress("observing")
        raise KeyboardInterrupt

    recorder.at["open"] = interrupted
    run(shell, "%%grape\nx = 1")
    assert [message["data"]["text/plain"] for message in messages] == [
        "Grape: observing",
        "Grape: stopped before anything was observed",
    ]


def test_cleared_output_gets_the_report_at_the_end(
    shell: InteractiveShell, recorder: Recorder, messages: list[dict[str, Any]]
) -> None:
    recorder.at["open"] = lambda session: session.on_progress("observing")
    recorder.at["boundary"] = lambda session: session.on_progress("after the clearing")
    run(
        shell, "%%grape\nfrom IPython.display import clear_output; clear_output(); import time; time.sleep(0.11)\nx = 1"
    )
    (only,) = messages
    assert only["update"] is False
    assert only["data"]["text/plain"] == "REPORT no significant change"


def test_a_cell_that_is_soon_over_shows_no_progress(
    shell: InteractiveShell, messages: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grape.magics.display.SECONDS_BEFORE_PROGRESS", 1.0)
    now = 0.0
    shown = CellDisplay(shell, clock=lambda: now)
    for now in (0.0, 0.5, 0.99, 1.01):
        shown.progress(f"at {now}")
    shown.close()
    assert [message["data"]["text/plain"] for message in messages] == ["Grape: at 1.01"]


def test_progress_is_throttled(shell: InteractiveShell, messages: list[dict[str, Any]]) -> None:
    now = 0.0
    shown = CellDisplay(shell, clock=lambda: now)
    for step in range(100):
        now = step * 0.01
        shown.progress(str(step))
    shown.close()
    assert 9 <= len(messages) <= 11


# --- %grape


@pytest.fixture
def ran(shell: InteractiveShell, recorder: Recorder) -> InteractiveShell:
    run(shell, "%%grape\nx = 1")
    return shell


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("status", "2 graphs\n"),
        ("undo", "undone None\n"),
        ("undo 2", "undone 2\n"),
        ("reset", "forgot 2 graphs\n"),
        ("save r.html", "saved r.html\n"),
        ("save 'a b.json'", "saved a b.json\n"),
        ("undo --help", "%grape undo [N]\n  take back what was applied: all, or number N\n"),
    ],
)
def test_commands(ran: InteractiveShell, line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(ran, f"%grape {line}").success
    assert capsys.readouterr().out == said


def test_saved_files(ran: InteractiveShell, tmp_path: Path) -> None:
    run(ran, "%grape save {x}.html")
    run(ran, "%grape save r.JSON")
    run(ran, "%grape trace t.json")
    assert (tmp_path / "{x}.html").read_text() == "<p>no significant change</p>"
    assert json.loads((tmp_path / "r.JSON").read_text())["version"] == 1
    assert (tmp_path / "t.json").read_text() == "[]"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("statsu", "unknown command 'statsu'; did you mean status?"),
        (
            "zzz",
            "unknown command 'zzz'; commands: status, diff, apply, undo, history, compare, reset, remember, recall, "
            "save, trace, view, doctor, whatif, explain, help",
        ),
        ("model(x", "'model(x' is no command, and no Python: '(' was never closed"),
        ("print('it's')", "cannot read 'print('it's')': unterminated string literal"),
        ("statsu -1", "unknown command 'statsu'; did you mean status?"),
        ("explain-GR101", "unknown command 'explain-GR101'; did you mean explain?"),
        ("compare 1", "%grape compare needs two arguments: %grape compare A B"),
        ("compare 1 2 3", "%grape compare takes two arguments, A B; '3' is too much"),
        ("compare 1 9", "no run 9 in %grape history (1 to 1)"),
        ("compare 1 missing.json", "cannot read 'missing.json': No such file or directory; check the path"),
        ("compare 1 two", "%grape compare takes numbers of %grape history or .json files, not 'two'"),
        ("history h.txt", "cannot tell the format of 'h.txt'; end its name in .json"),
        ("status now", "%grape status takes no argument; 'now' is too much"),
        ("undo 1 2", "%grape undo takes one argument, [N]; '2' is too much"),
        ("undo last", "%grape undo takes a number from %grape status, not 'last'"),
        ("undo 9", "there is no 9; %grape status lists what there is"),
        ("save", "%grape save needs an argument: %grape save FILE"),
        ("save report.pdf", "cannot tell the format of 'report.pdf'; end its name in .html, .json, .txt"),
        ("save missing/r.html", "cannot write the report to 'missing/r.html'"),
        ("explain GR104", "unknown code 'GR104'; codes: GR101, GR102, GR103, GR201,"),
        ("explain host-snyc", "unknown code 'host-snyc'; did you mean host-sync?"),
        ("save 'r.html", "cannot read 'save 'r.html': No closing quotation"),
    ],
)
def test_command_errors_are_one_line(
    ran: InteractiveShell, line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert not run(ran, f"%grape {line}").success
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"UsageError: {said if said.startswith('%grape') else f'%grape: {said}'}")
    assert shown.err.count("\n") == 1


def test_without_a_report_there_is_nothing_to_save(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    run(shell, "%grape save r.html")
    assert "there is no report yet; run a cell with %%grape on its first line" in capsys.readouterr().err


def test_a_trace_without_a_timeline_says_so(
    ran: InteractiveShell, recorder: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert recorder.report is not None
    recorder.report.has_timeline, recorder.report.memory = False, MemoryCurve(at_ns=(0,), allocated_bytes=(1,))
    run(ran, "%grape trace t.json")
    assert "saved t.json (memory only: no call of the last cell was profiled); open it" in capsys.readouterr().out
    recorder.report.memory = MemoryCurve()
    run(ran, "%grape trace u.json")
    said = "no timeline to write: no call of the last cell was profiled; 'u.json' is not written"
    assert said in capsys.readouterr().err and not (tmp_path / "u.json").exists()


def test_numbers_complete_where_there_are_some(ran: InteractiveShell, recorder: Recorder) -> None:
    fixes = [SimpleNamespace(fix=SimpleNamespace(id=number)) for number in (1, 2, 12)]
    assert recorder.report is not None
    recorder.report.made_findings = (*fixes, SimpleNamespace(fix=None))
    for command in ("apply", "diff"):
        assert complete_line(f"%grape {command} ", starts_cell=False) == ["1", "2", "12"]
        assert complete_line(f"%grape {command} 1", starts_cell=False) == ["1", "12"]
        assert complete_line(f"%grape {command} 1 ", starts_cell=False) == []
    run(ran, "%%grape\nx = 2")
    assert complete_line("%grape compare ", starts_cell=False) == ["1", "2"]
    assert complete_line("%grape compare 1 ", starts_cell=False) == ["1", "2"]
    assert complete_line("%grape undo ", starts_cell=False) == ["1", "2", "3"]


def test_explain_is_markdown_where_it_is_rendered(
    shell: InteractiveShell, messages: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    run(shell, "%grape explain GR101")
    (message,) = messages
    assert set(message["data"]) == {"text/markdown", "text/plain"} and capsys.readouterr().out == ""
    assert message["data"]["text/markdown"] == message["data"]["text/plain"]
    assert message["data"]["text/markdown"].startswith("# GR101")


@pytest.mark.parametrize("source", ["%grape", "%grape help", "%grape --help", "%grape?"])
def test_line_help(shell: InteractiveShell, source: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(shell, source)
    text = capsys.readouterr().out
    assert "%grape explain GR101" in text
    assert "undo [N]" in text


@pytest.mark.parametrize(
    "source", ["%%grape?", "%%grape --help", "%%grape --help\nundefined_name\n", "%%grape -h\n1/0"]
)
def test_cell_help(
    shell: InteractiveShell, recorder: Recorder, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(shell, source).success
    text = capsys.readouterr().out
    assert "--memory-budget SIZE" in text
    assert "-o, --output NAME" in text
    assert "%%grape --profile" in text
    assert recorder.sessions == []


# --- completion


FIRST = ["--profile", "--rewrite"]
REST = ["--tolerance", "--memory-budget", "--no-widget", "--output", "--json"]


@pytest.mark.parametrize(
    ("line", "starts_cell", "expected"),
    [
        ("%%grape --pro", True, ["--profile"]),
        (
            "%%grape ",
            True,
            ["--engine", *FIRST, "--tolerance", "--memory-budget", "--no-widget", "-o", "--output", "--json"],
        ),
        (
            "%%grape --profile --",
            True,
            ["--engine", "--rewrite", "--tolerance", "--memory-budget", "--no-widget", "--output", "--json"],
        ),
        ("%%grape --json ", True, []),
        ("%%grape --engine s", True, ["streams"]),
        ("%%grape --pro", False, []),
        ("%%grape", True, []),
        ("%grape s", True, ["status", "save"]),
        ("%grape s", False, ["status", "save"]),
        ("%grape explain gr40", True, ["GR401", "GR402", "GR403", "GR404", "GR405", "GR406"]),
        ("%grape explain host", True, ["host-sync", "host-input", "host-constant"]),
        ("%grape save ", True, []),
        ("%grape apply ", True, []),
        ("print(--", True, []),
    ],
)
def test_what_completes(line: str, starts_cell: bool, expected: list[str]) -> None:
    assert complete_line(line, starts_cell=starts_cell) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%%grape --mem", "%%grape --memory-budget"),
        ("\n%%grape --profile --no", "\n%%grape --profile --no-widget"),
        ("x = 1\n%grape sta", "x = 1\n%grape status"),
    ],
)
def test_tab(shell: InteractiveShell, text: str, expected: str) -> None:
    assert tab(shell, text) == [expected]


def tab(shell: InteractiveShell, text: str) -> list[str]:
    with provisionalcompleter():
        return [text[: c.start] + c.text + text[c.end :] for c in shell.Completer.completions(text, len(text))]


@pytest.mark.parametrize("text", ["value_of", "x = 1 --pro", "# %%grape\n%%grape --pro", "%%timeit --pro", "%gra"])
def test_tab_elsewhere_is_untouched(shell: InteractiveShell, text: str) -> None:
    run(shell, "value_of_mine = 1")
    with_grape = tab(shell, text)
    shell.Completer.custom_matchers.clear()
    assert with_grape == tab(shell, text)


# --- load, unload, history


def _state(shell: InteractiveShell) -> dict[str, Any]:
    return {
        "cleanup": list(shell.input_transformers_cleanup),
        "matchers": list(shell.Completer.custom_matchers),
        "events": {name: list(hooks) for name, hooks in shell.events.callbacks.items()},
        "magics": {kind: dict(table) for kind, table in shell.magics_manager.magics.items()},
        "shell": set(vars(shell)),
        "names": own(shell),
    }


def test_unload_restores_everything(bare_shell: InteractiveShell, recorder: Recorder) -> None:
    run(bare_shell, "%%time\npass")
    before = _state(bare_shell)
    assert bare_shell.extension_manager.load_extension("grape") is None
    load(bare_shell)
    during = _state(bare_shell)
    assert len(during["cleanup"]) == len(before["cleanup"]) + 1
    run(bare_shell, "%%grape\npass")
    bare_shell.extension_manager.unload_extension("grape")
    assert recorder.calls == ["open", "close", "engine closed"]
    assert _state(bare_shell) == before
    unload(bare_shell)
    assert not run(bare_shell, "%%grape\npass").success


def test_reload(bare_shell: InteractiveShell, recorder: Recorder) -> None:
    bare_shell.extension_manager.load_extension("grape")
    for _ in range(2):
        bare_shell.extension_manager.unload_extension("grape")
        bare_shell.extension_manager.load_extension("grape")
    recorder.calls.clear()
    assert run(bare_shell, "%%grape\n5").result == 5
    assert recorder.calls == ["open", "close"]
    assert run(bare_shell, "%reload_ext grape").success
    assert run(bare_shell, "%%grape\n6").result == 6
    assert recorder.calls == ["open", "close", "engine closed", "open", "close"]


def test_unload_inside_a_cell_ends_its_session(shell: InteractiveShell, recorder: Recorder) -> None:
    unload(shell)
    shell.extension_manager.load_extension("grape")
    recorder.calls.clear()
    assert run(shell, "%%grape\n%unload_ext grape\n5").result == 5
    assert recorder.calls == ["open", "close", "engine closed"]
    assert "run_code" not in vars(shell)


def test_magic_of_another_owner_comes_back(bare_shell: InteractiveShell, recorder: Recorder) -> None:
    def theirs(line: str) -> str:
        return "theirs"

    bare_shell.register_magic_function(theirs, magic_name="grape")
    load(bare_shell)
    unload(bare_shell)
    assert bare_shell.run_line_magic("grape", "") == "theirs"


def test_real_session_leaves_nothing_behind(bare_shell: InteractiveShell) -> None:
    """With the session layer itself; that no patch and no mode survives is checked after every test."""
    load(bare_shell)
    run(
        bare_shell,
        "import random, torch\nnet = torch.nn.Linear(4, 4)\n"
        "def step(x):\n    return torch.tanh(net(net(torch.relu(net(x)) * 0.5) + x))",
    )
    loop = (
        "with torch.no_grad():\n    x = torch.ones(2, 4)\n    for _ in range(30):\n        x = step(x)\nx.sum().item()"
    )
    random.seed(1)
    plain = run(bare_shell, loop).result
    for _ in range(2):
        names = own(bare_shell)
        assert run(bare_shell, f"%%grape -o report\n{loop}").result == plain
        assert own(bare_shell) == names | {"report"}
    assert bare_shell.user_ns["report"].regions[0].outcome == "replayed"
    assert bare_shell.user_ns["report"].regions[0].file == "In[1]"
    drawn = random.random()
    random.seed(1)
    assert drawn == random.random()
    unload(bare_shell)
    assert run(bare_shell, loop).result == plain


def test_history_holds_what_was_typed(shell: InteractiveShell, recorder: Recorder) -> None:
    source = "\n%%grape --profile\nx = 1"
    run(shell, source)
    assert shell.history_manager.input_hist_raw[-1] == source
    assert shell.user_ns["_i1"] == source


def test_asking_whether_a_cell_is_complete_changes_nothing(shell: InteractiveShell, recorder: Recorder) -> None:
    assert shell.check_complete("%%grape\n")[0] == "incomplete"
    assert shell.check_complete("%%grape\nx = 1\n\n")[0] == "complete"
    shell.transform_cell("%%grape\nx = 1")
    run(shell, "y = 1")
    assert recorder.sessions == []


def test_loading_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "for cell in ('%load_ext grape', '%grape status', '%grape undo', '%grape reset', '%grape help',"
        " '%%grape --help', '%%grape --nope\\n1', '%unload_ext grape'):\n"
        "    assert shell.run_cell(cell).success, cell\n"
        "assert 'torch' not in sys.modules and 'grape.sessions' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing has run under %%grape yet" in done.stdout
