"""The engine `auto`: regions look at a cell, and operator streams serve what they leave to itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo  # optimizers import it, and it wraps functions of torch for good

import grape
from grape.sessions import engine
from grape.sessions.prospect import Gain
from grape.sessions.timing import PlainRun
from grape.streams import shared
from tests.integration.notebook import Notebook, is_on, nothing_left
from tests.integration.test_streams_in_cells import SETUP, learned, plainly, same
from tests.property.stream_programs import needs_compiler

pytestmark = needs_compiler

SAYS = "def says(x):\n    step(x)\n    print(end='')\nother = Net().eval()\n"
TRAIN = "for _ in range(40):\n    says(x)\n"
LEFT = f"%%grape\n{TRAIN}"
"""Each region of it is refused: what prints may not be replayed, and what is trained needs gradients."""
SERVED = "%%grape\nwith torch.no_grad():\n    y = x\n    for _ in range(40):\n        y = other(y)\n"
SERVES = "looked at in run 1; since then operator streams serve it; %grape reset has it looked at again"


@pytest.fixture(autouse=True)
def engine_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPE_ENGINE", "auto")


@pytest.fixture
def notebook(notebook: Notebook) -> Notebook:
    notebook.run(SAYS).raise_error()
    return notebook


@pytest.fixture
def another_thread() -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="loader")
    thread.start()
    yield
    stop.set()
    thread.join()


def notes(report: dict[str, Any]) -> list[str]:
    found: list[str] = report["cell"]["notes"]
    return found


def replays() -> int:
    return sum(region.replays for region in engine().interceptor.regions)


def trained(notebook: Notebook, times: int) -> bool:
    return same(learned(notebook), plainly("for _ in range(40):\n    step(x)\n", times))


# What serves a cell


def test_what_regions_leave_is_served_by_streams(notebook: Notebook) -> None:
    first = notebook.under_grape(LEFT)
    assert first["cell"]["engine"] == "regions" and first["streams"] == [] and nothing_left()
    assert {region["outcome"] for region in first["regions"]} == {"refused"}
    for _ in range(3):
        again = notebook.under_grape(LEFT)
        assert again["cell"]["engine"] == "streams" and notes(again) == [SERVES]
        assert again["streams"][0]["matched"] > 0.3 * again["streams"][0]["operators"]
        assert again["cell"]["plain_basis"] == "no run of this cell as written was timed"
        assert again["cell"]["plain_ms"] is None
        assert [one["name"] for one in again["regions"]] == [one["name"] for one in first["regions"]]
        assert [one["code"] for one in again["findings"]] == [one["code"] for one in first["findings"]]
        assert "operators launched in" in again["verdict"]
    assert SERVES in notebook.said and "the whole report: import grape; print(grape.last)" in notebook.said
    assert trained(notebook, 4)


def test_what_graphs_serve_is_not(notebook: Notebook) -> None:
    for _ in range(4):
        report = notebook.under_grape(SERVED)
    assert report["cell"]["engine"] == "regions" and report["streams"] == []
    assert "its graphs serve it" in notes(report)[0]
    assert nothing_left()


@pytest.mark.parametrize("option", ["--engine regions", "--profile"])
def test_who_wants_regions_gets_regions(notebook: Notebook, option: str) -> None:
    for _ in range(3):
        report = notebook.under_grape(LEFT.replace("%%grape", f"%%grape {option}"))
        assert report["cell"]["engine"] == "regions" and report["streams"] == []
    assert nothing_left()
    assert trained(notebook, 3)


def test_another_engine_has_it_looked_at_again(notebook: Notebook) -> None:
    for _ in range(2):
        notebook.under_grape(LEFT)
    regions = LEFT.replace("%%grape", "%%grape --engine regions")
    assert notes(notebook.under_grape(regions)) == []
    assert nothing_left()
    assert "it runs as written, for nothing in it gets faster" in notes(notebook.under_grape(regions))[0]


def test_without_a_gpu_nothing_changes(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine().context, "unhurried", False)
    monkeypatch.setattr(engine().context, "serves", False)
    monkeypatch.setattr(shared, "enter", lambda *_: pytest.fail("nothing gets faster"))
    monkeypatch.setattr(shared, "prepare", lambda: pytest.fail("nothing is built"))
    notebook.under_grape(LEFT)
    assert notes(notebook.under_grape(LEFT)) == [
        "looked at in run 1; since then it runs as written, for nothing in it gets faster; "
        "%grape reset has it looked at again"
    ]
    assert trained(notebook, 2)


def test_a_cell_without_torch_is_left(notebook: Notebook) -> None:
    for _ in range(3):
        report = notebook.under_grape("%%grape\nz = sum(range(10))\n")
    assert report["cell"]["engine"] == "regions" and "it runs as written" in notes(report)[0]


def test_a_block_of_a_script_is_looked_at_each_time(closed_engine: None) -> None:
    names: dict[str, Any] = {}
    exec(SETUP + SAYS, names)
    for _ in range(2):
        with grape.session(engine="auto") as session:
            exec(TRAIN, names)
        assert session.report is not None
        assert session.report.to_dict()["cell"]["engine"] == "regions"


def test_an_exception_is_the_persons(notebook: Notebook) -> None:
    notebook.run("divisor = 1.0")
    divides = LEFT + "1 / divisor\n"
    for _ in range(2):
        notebook.under_grape(divides)
    notebook.run("divisor = 0.0")
    assert isinstance(notebook.run(divides).error_in_exec, ZeroDivisionError)
    assert grape.last is not None and grape.last.verdict.startswith("stopped by ZeroDivisionError")
    assert grape.last.to_dict()["cell"]["engine"] == "streams" and not is_on()


def test_the_time_of_a_run_with_more_to_do_tells_nothing(notebook: Notebook) -> None:
    cell = LEFT.replace("40", "n")
    told = []
    for n in (40, 40, 80, 40):
        notebook.shell.user_ns["n"] = n
        told.append(notebook.under_grape(cell)["cell"])
        (runs,) = engine().runs.values()
        runs.plain = PlainRun(number=2, ms=20.0)  # nothing is timed as written where the reference serves
    assert [one["engine"] for one in told] == ["regions", "streams", "streams", "streams"]
    assert [one["plain_ms"] is None for one in told] == [False, False, True, False]
    assert told[2]["plain_basis"] == "this run had more or less to do than the one that was timed"


# Beside graphs


def test_graphs_of_other_cells_stay_and_replay_nothing_inside_a_stream(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        notebook.under_grape(SERVED)
    chain = "    with torch.no_grad():\n        y = x\n        for _ in range(40):\n            y = use(y)\n"
    cell = f"{LEFT}if use is not None:\n{chain}"
    notebook.run("use = None").raise_error()
    notebook.under_grape(cell)
    before = replays()
    notebook.shell.user_ns["use"] = notebook["other"]
    key = next(reversed(engine().history._past))
    past = engine().history._past[key]
    monkeypatch.setattr("grape.sessions.plan", lambda source, namespace, options: ("leave", key))
    assert past.settled
    streamed = notebook.under_grape(cell)
    assert streamed["cell"]["engine"] == "streams" and notes(streamed) == [SERVES]
    assert engine().has_graphs and replays() == before
    monkeypatch.undo()
    report = notebook.under_grape(SERVED)
    assert {region["outcome"] for region in report["regions"]} == {"replayed"}
    assert shared.stream is not None, "what it recorded stays: addresses that Grape asks for expose nothing"


def test_a_function_under_a_stream_replays_no_graph(notebook: Notebook) -> None:
    for _ in range(3):
        notebook.under_grape(SERVED)
    notebook.run("import grape\nserved = grape.stream(lambda y: other(y))").raise_error()
    calls = SERVED.removeprefix("%%grape\n").replace("other", "{}")
    before = replays()
    notebook.run(calls.format("other")).raise_error()
    known, expected = replays(), notebook["y"].clone()
    assert known > before
    notebook.run(calls.format("served")).raise_error()
    assert notebook["served"].as_written is None and notebook["served"].evidence().matched > 0
    assert replays() == known and torch.equal(notebook["y"], expected)
    notebook.run("served.close()\ndel served")


def test_graphs_serve_plain_cells_before_streams_do(notebook: Notebook) -> None:
    for _ in range(2):
        notebook.under_grape(LEFT)
    look = "on = torch._C._dispatch_tls_is_dispatch_key_included('Fake')\n"
    notebook.run(look).raise_error()
    assert notebook["on"] is True
    for _ in range(3):
        notebook.under_grape(SERVED)
    notebook.under_grape(LEFT)
    assert shared.stream is not None and engine().has_graphs
    notebook.run(look).raise_error()
    assert notebook["on"] is False


def test_status_undo_and_reset(notebook: Notebook) -> None:
    for _ in range(3):
        notebook.under_grape(SERVED)
    for _ in range(2):
        notebook.under_grape(LEFT)
    notebook.run("%grape status")
    assert "  1 Net (other)" in notebook.said and "  2 operator streams: " in notebook.said
    notebook.run("%grape undo 2")
    assert notebook.said == "undone: operators run as written again\n" and nothing_left()
    assert engine().has_graphs
    assert notes(notebook.under_grape(LEFT)) == [SERVES]
    notebook.run("%grape reset")
    assert notebook.said.endswith("and what operator streams recorded\n") and nothing_left()
    assert notes(notebook.under_grape(LEFT)) == []


# Where streams do not serve, or gain nothing


@pytest.mark.usefixtures("another_thread")
def test_why_streams_do_not_serve_is_said(notebook: Notebook) -> None:
    for _ in range(3):
        report = notebook.under_grape(LEFT)
    assert report["cell"]["engine"] == "regions" and report["streams"] == []
    assert notes(report) == [
        "looked at in run 1; since then it runs as written, for nothing in it gets faster, and operator streams do "
        "not serve it: thread loader runs, and its operators would not be seen; %grape reset has it looked at again"
    ]
    assert trained(notebook, 3)


def test_it_is_served_once_nothing_stands_in_the_way(notebook: Notebook) -> None:
    notebook.under_grape(LEFT)
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="loader")
    thread.start()
    notebook.under_grape(LEFT)
    stop.set()
    thread.join()
    assert notes(notebook.under_grape(LEFT)) == [SERVES]


def test_streams_that_make_a_cell_slower_serve_it_no_more(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook.under_grape(LEFT)
    monkeypatch.setattr(engine().context, "unhurried", False)
    (runs,) = engine().runs.values()
    runs.plain = PlainRun(number=1, ms=1e-3)
    assert notes(notebook.under_grape(LEFT)) == [SERVES]
    (note,) = notes(notebook.under_grape(LEFT))
    assert note.startswith("looked at in run 1; since then operator streams made it slower (")
    assert note.endswith("), so it runs as written from now on; %grape reset has it looked at again")
    assert nothing_left()
    after = notebook.under_grape(LEFT)
    assert after["cell"]["engine"] == "regions" and after["streams"] == []
    assert "it runs as written, for nothing in it gets faster, and operator streams made it slo" in notes(after)[0]
    notebook.run("%grape reset")
    assert notes(notebook.under_grape(LEFT)) == []
    assert trained(notebook, 5)


def test_streams_that_match_nothing_serve_a_cell_no_more(notebook: Notebook) -> None:
    cell = "%%grape\nfor i in range(40):\n    z = torch.full((3,), 1.0 + i)\n    print(end='')\n"
    for _ in range(3):
        report = notebook.under_grape(cell)
    assert "operator streams matched 0 of 40 operators, so it runs as written from now on" in notes(report)[0]
    assert nothing_left()
    assert notebook.under_grape(cell)["streams"] == []


# What graphs have to save


def test_graphs_that_save_less_than_streams_make_room(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine(), "gain_of", lambda replayed: Gain(made_ms=1e-3))
    notebook.under_grape(SERVED)
    assert not engine().has_graphs
    assert notes(notebook.under_grape(SERVED)) == [SERVES]


@pytest.mark.usefixtures("another_thread")
def test_regions_look_again_where_streams_do_not_serve(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine(), "gain_of", lambda replayed: Gain(made_ms=1e-3))
    notebook.under_grape(SERVED)
    (note,) = notes(notebook.under_grape(SERVED))
    assert "operator streams do not serve it: thread loader runs" in note and "regions look at the next run" in note
    monkeypatch.setattr(engine(), "gain_of", lambda replayed: None)
    assert notes(notebook.under_grape(SERVED)) == []
    assert engine().has_graphs


def test_graphs_that_save_more_stay(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine(), "gain_of", lambda replayed: Gain(made_ms=1e6))
    for _ in range(4):
        report = notebook.under_grape(SERVED)
    assert "its graphs serve it" in notes(report)[0] and engine().has_graphs
