"""Cells that operator streams serve: what a person sees, what later cells get, and what is left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # optimizers import it, and it wraps functions of torch for good

import grape
from grape.errors import UsageError
from grape.native import build
from grape.sessions import engine
from grape.sessions.streamed.by_streams import settings_for
from grape.streams import Settings, shared
from tests.integration.notebook import Notebook, is_on, nothing_left
from tests.processes import lines_of_an_interpreter
from tests.property.stream_programs import needs_compiler

pytestmark = needs_compiler

SETUP = """
import torch
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
    def forward(self, x):
        return torch.tanh(self.b(torch.relu(self.a(x))))
net, x = Net(), torch.randn(2, 8)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
losses = []
def step(x):
    optimizer.zero_grad()
    loss = (net(x) - x).pow(2).mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
"""
TRAIN = "for _ in range(40):\n    step(x)\n"
STREAMED = f"%%grape --engine streams\n{TRAIN}"
REGIONS = "%%grape --engine regions\nwith torch.no_grad():\n    y = x\n    for _ in range(40):\n        y = net(y)\n"


def learned(notebook: Notebook) -> list[torch.Tensor]:
    return [*notebook["net"].parameters(), *notebook["losses"]]


def plainly(source: str, times: int) -> list[torch.Tensor]:
    """What the setup and `times` runs of the cell leave without Grape."""
    names: dict[str, Any] = {}
    exec(SETUP, names)
    for _ in range(times):
        exec(source, names)
    return [*names["net"].parameters(), *names["losses"]]


def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return len(found) == len(expected) and all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_cell_is_served_and_says_so(notebook: Notebook) -> None:
    report = notebook.under_grape(STREAMED)
    (stream,) = report["streams"]
    assert report["cell"]["engine"] == "streams" and report["regions"] == []
    assert 0 < stream["matched"] < stream["operators"] and stream["segments"] > 0 and stream["bytes"] > 0
    assert report["cell"]["served"]["streams"] == pytest.approx(stream["matched"] / stream["operators"])
    assert report["verdict"].startswith("no GPU here: nothing gets faster; ")
    assert f"{stream['matched']:,} of {stream['operators']:,} operators launched" in report["verdict"]
    assert f"issued: {stream['issued']:,} in {stream['segments']} segments" in str(grape.last)
    assert same(learned(notebook), plainly(TRAIN, 1))


def test_what_was_recorded_serves_the_cell_again_and_other_cells(notebook: Notebook) -> None:
    first = notebook.under_grape(STREAMED)["streams"][0]
    again = notebook.under_grape(STREAMED)["streams"][0]
    other = notebook.under_grape("%%grape --engine streams\nfor _ in range(20):\n    step(x)\n    pass\n")["streams"][0]
    assert first["recorded"] > 0
    assert again["recorded"] < first["recorded"] and again["matched"] > first["matched"]
    assert other["matched"] > 0.8 * other["operators"]
    expected = plainly(TRAIN + TRAIN + "for _ in range(20):\n    step(x)\n", 1)
    assert same(learned(notebook), expected)


def test_nothing_of_regions_stands_between(notebook: Notebook) -> None:
    code = notebook["step"].__code__
    cell = STREAMED + (
        "from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as modes\n"
        "seen = (step.__code__, torch.nn.Module.__call__ is torch.nn.Module._wrapped_call_impl, modes(),\n"
        "        __import__('sys').getprofile(), __import__('sys').gettrace())\n"
    )
    notebook.under_grape(cell)
    assert notebook["seen"] == (code, True, [], None, None)


def test_on_a_cpu_a_cell_runs_as_written(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine().context, "unhurried", False)
    monkeypatch.setattr(engine().context, "serves", False)
    report = notebook.under_grape(STREAMED + "on = torch._C._dispatch_tls_is_dispatch_key_included('Fake')\n")
    assert "left as written: no GPU here, and on a CPU streams make nothing faster" in report["verdict"]
    assert report["streams"] == [] and notebook["on"] is False
    assert nothing_left()


def test_whose_operators_are_deferred(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (settings_for(None).device, settings_for(64).budget) == ("cpu", 64)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert (settings_for(None).device, settings_for(None).settled) == ("cuda", 0)
    monkeypatch.delenv("GRAPE_REFERENCE")
    assert settings_for(None) == Settings(device="cuda")


def test_profile_applies_nothing(notebook: Notebook) -> None:
    report = notebook.under_grape(STREAMED.replace("streams", "streams --profile"))
    assert "left as written: operator streams have nothing to look on at (--profile)" in report["verdict"]
    assert nothing_left()


# Cells without the magic


def matched() -> int:
    assert shared.stream is not None
    return shared.stream.evidence().matched


def test_plain_cells_are_served_until_it_is_undone(notebook: Notebook) -> None:
    notebook.under_grape(STREAMED)
    assert not is_on()
    before = matched()
    notebook.run(TRAIN + "on = torch._C._dispatch_tls_is_dispatch_key_included('Fake')\n").raise_error()
    assert notebook["on"] is True and not is_on()
    assert matched() > before
    assert engine().applied_count == 1
    notebook.run("%grape status")
    assert "1 operator streams: " in notebook.said
    notebook.run("%grape undo 1")
    assert notebook.said == "undone: operators run as written again\n"
    assert nothing_left()
    notebook.run(TRAIN).raise_error()
    assert nothing_left()
    assert same(learned(notebook), plainly(TRAIN, 3))


@pytest.mark.parametrize("command", ["%grape undo", "%grape reset", "%unload_ext grape"])
def test_what_takes_it_back(notebook: Notebook, command: str) -> None:
    notebook.under_grape(STREAMED)
    notebook.run(f"y = torch.ones(3)\n{command}\nz = y + 1\n").raise_error()
    assert nothing_left()
    assert notebook["z"].tolist() == [2, 2, 2]


def test_undo_inside_a_cell_that_is_served(notebook: Notebook) -> None:
    notebook.under_grape(STREAMED)
    notebook.under_grape(STREAMED + "get_ipython().run_line_magic('grape', 'undo')\n" + TRAIN)
    assert nothing_left()
    assert same(learned(notebook), plainly(TRAIN, 3))


def test_a_cell_that_records_nothing_serves_no_plain_cell(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    report = notebook.under_grape("%%grape --engine streams\ny = x + 1\n")
    assert "none came often enough to be recorded" in report["verdict"]
    assert shared.stream is not None, "what repeats from run to run is found by it"
    assert engine().applied_count == 0 and "fragment" not in engine().status()
    entered: list[object] = []
    monkeypatch.setattr(shared, "enter", entered.append)
    notebook.run("y = x + 1\n").raise_error()
    assert not entered


def test_a_cell_under_regions_gives_it_back_and_takes_it_over(notebook: Notebook) -> None:
    notebook.under_grape(STREAMED)
    notebook.under_grape(REGIONS)
    assert nothing_left()
    notebook.under_grape(REGIONS)
    assert engine().has_graphs
    report = notebook.under_grape(STREAMED)
    assert not engine().has_graphs
    assert report["cell"]["notes"] == ["graphs of earlier cells were released: this cell asked for operator streams"]


# The extension


@pytest.fixture
def not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notebook: Notebook) -> Iterator[Path]:
    folder = tmp_path / "extensions"
    folder.mkdir()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(folder))
    monkeypatch.setattr(build, "_loaded", None)
    for name, value in (("_build", None), ("_failed", None)):
        monkeypatch.setattr(shared, name, value)
    build._artifact.cache_clear()
    yield folder
    (folder / "go").touch()
    if shared._build is not None:
        shared._build.wait(60)
    build._artifact.cache_clear()
    monkeypatch.undo()


def compiler(folder: Path, script: str) -> str:
    path = folder / "cxx"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_while_it_is_compiled_a_cell_runs_as_written(
    notebook: Notebook, not_built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = not_built / "go"
    waits = f"n=0; while [ ! -e {go} ] && [ $n -lt 600 ]; do sleep 0.1; n=$((n + 1)); done"
    script = f"{waits}\necho 'x.cpp: error: no luck' >&2\nexit 1"
    monkeypatch.setenv("CXX", compiler(not_built, script))
    began = time.monotonic()
    report = notebook.under_grape(STREAMED)
    assert time.monotonic() - began < 10
    assert "left as written: Grape compiles a part of its own for this torch, once, in the back" in report["verdict"]
    assert "in the background" in notebook.under_grape(STREAMED)["verdict"]
    go.touch()
    assert shared._build is not None
    shared._build.wait(60)
    report = notebook.under_grape(STREAMED)
    assert "left as written: the extension does not compile: x.cpp: error: no luck" in report["verdict"]
    assert same(learned(notebook), plainly(TRAIN, 3))


def test_without_a_compiler_one_line_says_so(
    notebook: Notebook, not_built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(not_built))
    monkeypatch.delenv("CXX", raising=False)
    report = notebook.under_grape(STREAMED)
    assert "left as written: there is no C++ compiler; install one with: apt-get install g++" in report["verdict"]


# What goes wrong in a cell


def test_an_exception_is_the_persons_and_what_was_computed_is_there(notebook: Notebook) -> None:
    notebook.under_grape(STREAMED)
    result = notebook.run(STREAMED + "y = x * 3 + 1\nraise ValueError(1)\n")
    assert isinstance(result.error_in_exec, ValueError)
    files = [entry.filename for entry in traceback.extract_tb(result.error_in_exec.__traceback__)]
    assert not [file for file in files if file.startswith(os.path.dirname(grape.__file__))]
    assert not is_on()
    assert torch.equal(notebook["y"], notebook["x"] * 3 + 1)
    assert grape.last is not None and grape.last.verdict.startswith("stopped by ValueError")
    notebook.under_grape(STREAMED)
    assert same(learned(notebook), plainly(TRAIN, 3))


def test_an_interrupt_ends_the_cell(notebook: Notebook) -> None:
    notebook.under_grape(STREAMED)
    cell = (
        "import signal\nfor i in range(40):\n    step(x)\n    if i == 20:\n        signal.raise_signal(signal.SIGINT)\n"
    )
    result = notebook.run("%%grape --engine streams\n" + cell)
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert notebook["i"] == 20 and not is_on()
    notebook.run(TRAIN).raise_error()
    assert same(learned(notebook), plainly(TRAIN + "for _ in range(21):\n    step(x)\n" + TRAIN, 1))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_sessions_and_cells_inside(notebook: Notebook) -> None:
    notebook.under_grape(STREAMED)
    inner = (
        "import grape\n"
        "try:\n    with grape.session(engine='streams'):\n        pass\n"
        "except grape.errors.UsageError as error:\n    said = str(error)\n"
        "get_ipython().run_cell('step(x)')\n"
        "get_ipython().run_cell_magic('grape', '', 'step(x)')\n"
    )
    notebook.under_grape(STREAMED + inner + TRAIN)
    assert notebook["said"].endswith("take one of them away, they do not nest")
    assert not is_on()
    assert same(learned(notebook), plainly(TRAIN + TRAIN + "step(x)\nstep(x)\n" + TRAIN, 1))


def test_below_another_magic(notebook: Notebook) -> None:
    notebook.under_grape("%%time\n" + STREAMED)
    report = notebook.under_grape("%%time\n" + STREAMED)
    assert report["streams"] and report["streams"][0]["matched"] > 0, report["verdict"]
    assert same(learned(notebook), plainly(TRAIN, 2))


def test_top_level_await(notebook: Notebook) -> None:
    cell = "import asyncio\nfor _ in range(40):\n    step(x)\n    await asyncio.sleep(0)\n"
    report = notebook.under_grape("%%grape --engine streams\n" + cell)
    assert report["streams"] and report["streams"][0]["matched"] > 0, report["verdict"]
    assert not is_on()
    assert same(learned(notebook), plainly(TRAIN, 1))


def test_threads_and_forks(notebook: Notebook) -> None:
    notebook.under_grape(STREAMED)
    cell = (
        "import os, threading\nread = []\n"
        "for _ in range(20):\n"
        "    step(x)\n    y = x * 2\n"
        "    thread = threading.Thread(target=lambda: read.append((y + 1).sum().item()))\n"
        "    thread.start(); thread.join()\n"
        "    child = os.fork()\n"
        "    if child == 0:\n        os._exit(0 if torch.equal(y, x + x) else 1)\n"
        "    read.append(os.waitpid(child, 0)[1])\n"
    )
    notebook.under_grape("%%grape --engine streams\n" + cell)
    expected = (notebook["x"] * 2 + 1).sum().item()
    assert notebook["read"] == [expected, 0] * 20
    assert same(learned(notebook), plainly(TRAIN + "for _ in range(20):\n    step(x)\n", 1))


def test_a_thread_that_runs_already_leaves_the_cell_as_written(notebook: Notebook) -> None:
    notebook.under_grape(STREAMED)
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="loader")
    thread.start()
    try:
        report = notebook.under_grape(STREAMED)
        assert "left as written: thread loader runs, and its operators would not be seen" in report["verdict"]
        notebook.run(TRAIN).raise_error()
    finally:
        stop.set()
        thread.join()
    assert notebook.under_grape(STREAMED)["streams"][0]["matched"] > 0
    assert same(learned(notebook), plainly(TRAIN, 4))


def test_a_thread_of_a_cell_that_still_runs_in_the_next(notebook: Notebook) -> None:
    cell = "import threading\nstop = threading.Event()\nthread = threading.Thread(target=stop.wait)\nthread.start()\n"
    notebook.under_grape(STREAMED + cell)
    try:
        assert notebook.under_grape(STREAMED)["streams"][0]["matched"] > 0
    finally:
        notebook["stop"].set()
        notebook["thread"].join()


def test_an_operator_that_a_cell_defines_anew(notebook: Notebook) -> None:
    define = (
        "library = None\nlibrary = torch.library.Library('of_a_cell', 'DEF')\n"
        "library.define('f({0}) -> Tensor')\nlibrary.impl('f', lambda {1}: {2}, 'CPU')\n"
    )
    use = "%%grape --engine streams\nfor _ in range(40):\n    step(x)\n    y = torch.ops.of_a_cell.f({})\n"
    notebook.run(define.format("Tensor a", "a", "a + 1")).raise_error()
    notebook.under_grape(use.format("x"))
    notebook.run(define.format("Tensor a, Tensor b, Tensor c", "a, b, c", "a + b + c")).raise_error()
    notebook.under_grape(use.format("x, x, x"))
    assert torch.equal(notebook["y"], notebook["x"] + notebook["x"] + notebook["x"])
    notebook.run("library = None")


def test_how_operators_compute_may_change_between_cells(notebook: Notebook) -> None:
    cell = "%%grape --engine streams\nfor _ in range(40):\n    y = torch.tanh(torch.ones(3) * 1.5).sum()\n"
    notebook.under_grape(cell)
    notebook.run("torch.set_default_dtype(torch.float64)").raise_error()
    try:
        notebook.under_grape(cell)
        expected = torch.tanh(torch.ones(3) * 1.5).sum()
        assert notebook["y"].dtype is torch.float64 and torch.equal(notebook["y"], expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_an_array_that_is_exported_between_cells(notebook: Notebook) -> None:
    notebook.run("a = torch.zeros(3)").raise_error()
    cell = "read = []\nfor _ in range(40):\n    a.add_(1).mul_(1.0)\n    read.append(a.sum().item())\n"
    notebook.under_grape("%%grape --engine streams\n" + cell)
    notebook.shell.user_ns["n"] = notebook["a"].numpy()
    after = "read = []\nfor _ in range(40):\n    a.add_(1).mul_(1.0)\n    read.append(float(n.sum()))\n"
    notebook.under_grape("%%grape --engine streams\n" + after)
    assert notebook["read"] == [3.0 * (41 + i) for i in range(40)]


# Scripts


def test_a_session_of_a_script(closed_engine: None) -> None:
    names: dict[str, Any] = {}
    exec(SETUP, names)
    with grape.session(engine="streams") as session:
        exec(TRAIN, names)
    assert session.report is grape.last and grape.last is not None
    assert grape.last.to_dict()["streams"][0]["matched"] > 0
    assert same([*names["net"].parameters(), *names["losses"]], plainly(TRAIN, 1))


def test_an_engine_that_does_not_exist(closed_engine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"^engine is one of auto, regions, streams, not 'graphs'$"):
        grape.session(engine="graphs").__enter__()
    monkeypatch.setenv("GRAPE_ENGINE", "graphs")
    with pytest.raises(UsageError, match=r"^GRAPE_ENGINE is one of auto, regions, streams, not 'graphs'$"):
        grape.session().__enter__()


def test_the_environment_names_the_engine(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPE_ENGINE", "streams")
    assert notebook.under_grape("%%grape\n" + TRAIN)["cell"]["engine"] == "streams"
    monkeypatch.setenv("GRAPE_ENGINE", "nothing")
    notebook.run("%%grape\nranthrough = 1").raise_error()
    assert "UsageError: %%grape: GRAPE_ENGINE is one of auto, regions, streams, not 'nothing'" in notebook.said
    assert notebook["ranthrough"] == 1


@pytest.fixture
def trained(closed_engine: None) -> Iterator[dict[str, Any]]:
    names: dict[str, Any] = {}
    exec(SETUP, names)
    yield names
    assert nothing_left()


def test_a_function_under_a_stream(trained: dict[str, Any]) -> None:
    with grape.stream(trained["step"]) as step:
        assert step.__name__ == "step" and step.evidence() is None
        assert repr(step) == "<grape.stream of step: not served yet>"
        for _ in range(40):
            step(trained["x"])
            assert not is_on()
        found = step.evidence()
        assert found is not None and found.matched > 0.5 * found.seen and step.as_written is None
        assert repr(step) == f"<grape.stream of step: {found.seen:,} operators, {found.matched:,} as recorded>"
    assert nothing_left()
    assert step.evidence() == found or step.evidence().matched == found.matched  # type: ignore[union-attr]
    step(trained["x"])
    assert step.as_written == "it was closed" and repr(step).endswith(" as recorded, closed>")
    expected = plainly(TRAIN + "step(x)", 1)
    assert same([*trained["net"].parameters(), *trained["losses"]], expected)


def test_two_functions_share_what_is_known_and_count_apart(trained: dict[str, Any]) -> None:
    one, two = grape.stream(trained["step"]), grape.stream(trained["step"])
    for _ in range(40):
        one(trained["x"])
    for _ in range(5):
        two(trained["x"])
    first, second = one.evidence(), two.evidence()
    assert first is not None and second is not None
    assert second.recorded == 0 and second.matched > 0.8 * second.seen
    assert first.seen > 7 * second.seen
    one.close()
    two(trained["x"])
    assert two.as_written is None and two.evidence().matched > second.matched  # type: ignore[union-attr]
    two.close()
    assert same([*trained["net"].parameters(), *trained["losses"]], plainly(TRAIN + "for _ in range(6): step(x)", 1))


def test_a_function_that_raises_and_one_that_is_dropped(trained: dict[str, Any]) -> None:
    def fails(x: torch.Tensor) -> None:
        trained["step"](x)
        raise ValueError(1)

    step = grape.stream(fails)
    for _ in range(40):
        with pytest.raises(ValueError, match="1") as raised:
            step(trained["x"])
    files = [entry.filename for entry in traceback.extract_tb(raised.value.__traceback__)]
    assert not [file for file in files if file.startswith(os.path.dirname(grape.__file__))]
    found = step.evidence()
    assert found is not None and found.matched > 0 and not is_on()
    assert same([*trained["net"].parameters(), *trained["losses"]], plainly(TRAIN, 1))
    del step, raised
    assert nothing_left()


def test_a_function_on_another_thread_and_inside_a_cell(trained: dict[str, Any]) -> None:
    def elsewhere(x: torch.Tensor) -> None:
        thread = threading.Thread(target=second, args=(x,))
        thread.start()
        thread.join()

    first, second = grape.stream(elsewhere), grape.stream(trained["step"])
    first(trained["x"])
    assert second.as_written == "another thread is served by the stream"
    with grape.session(engine="streams") as session:
        for _ in range(40):
            second(trained["x"])
    assert second.as_written is None and session.report is not None
    assert session.report.to_dict()["streams"][0]["matched"] > 0
    engine().undo()
    first.close(), second.close()
    assert same([*trained["net"].parameters(), *trained["losses"]], plainly(TRAIN + "step(x)", 1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda: grape.stream(3), "^grape.stream takes something to call, not int$"),  # type: ignore[arg-type]
        (lambda: grape.stream(print, memory_budget="many"), "^'many' is not a size"),
    ],
)
def test_misuse(arguments: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        arguments()


def test_a_script_ends_well_with_a_stream_that_nobody_closed() -> None:
    code = """
        import torch, grape
        step = grape.stream(lambda x: torch.tanh(x * 2 + 1).sum())
        kept = [step(torch.ones(4)) for _ in range(200)]
        assert step.evidence().matched > 0 and len({float(k) for k in kept}) == 1
        print("end")
    """
    assert lines_of_an_interpreter(code) == ["end"]


def test_a_function_inside_a_plain_cell_counts_its_own(notebook: Notebook) -> None:
    notebook.under_grape(STREAMED)
    notebook.run("import grape\nserved = grape.stream(step)\n" + TRAIN + "served(x)\n" + TRAIN).raise_error()
    found = notebook["served"].evidence()
    assert found.matched > 0 and found.seen < 30
    notebook.run("served.close()\ndel served\n%grape undo")
    assert nothing_left()
    assert same(learned(notebook), plainly(TRAIN + TRAIN + "step(x)\n" + TRAIN, 1))
