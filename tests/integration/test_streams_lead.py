"""On a GPU operator streams serve a cell before regions look at it. Here the CPU stands in for one."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import grape
from grape.model import CallsAccount, CellTime
from grape.native import Unavailable
from grape.options import ENGINE, engine_named
from grape.sessions import choice, engine
from grape.sessions.streamed import cell, lead
from grape.sessions.streamed.cell import StreamedSession
from grape.sessions.timing import CellRuns
from grape.streams import shared
from tests.integration.notebook import Notebook
from tests.property.stream_programs import needs_compiler

pytestmark = needs_compiler

SETUP = """import torch
torch.manual_seed(0)
net, x = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(40)]).requires_grad_(False), torch.randn(2, 8)
def step(x):
    return net(x).tanh()
"""
INFER = """%%grape
y = x
for i in range(60):
    y = step(y)
for i in range(2):
    if y.sum() > 1e9:
        y = y * 2
"""
TRAINS = "%%grape\nfor i in range(60):\n    (x @ weight).tanh().sum().backward()"


@pytest.fixture(autouse=True)
def first(monkeypatch: pytest.MonkeyPatch, notebook: Notebook) -> None:
    monkeypatch.setenv(ENGINE, "auto")
    monkeypatch.setattr(
        choice, "leads", lambda owner, options: engine_named(options.engine) == "auto" and not options.profile
    )
    notebook.run(SETUP)


def known() -> Any:
    (past,) = engine().history._past.values()
    return past


def test_a_loop_that_starves_is_found_in_the_first_run_and_told_later(notebook: Notebook) -> None:
    notebook.run(
        "from torch.utils.data import DataLoader, TensorDataset\ndata = TensorDataset(torch.randn(49152, 8))\n"
        "w = torch.eye(8)"
    ).raise_error()
    plain = torch.utils.data.dataloader._BaseDataLoaderIter.__next__
    for _ in range(2):
        report = notebook.under_grape("%%grape\nfor (x,) in DataLoader(data, batch_size=128):\n    y = (x @ w).tanh()")
        assert report["cell"]["engine"] == "streams"
        (starved,) = (one for one in report["findings"] if one["code"] == "GR303")
        assert starved["line"] == 2 and starved["evidence"]["executions"] == 384
        assert torch.utils.data.dataloader._BaseDataLoaderIter.__next__ is plain


PLANS = """
import time
met, library = set(), torch.library.Library("plans_in_cells", "DEF")
library.define("plan(Tensor x) -> Tensor")
def plan(x):
    if x.shape not in met:
        time.sleep(0.003)
    met.add(x.shape)
    return x + 1
library.impl("plan", plan, "CPU")
def layers(x):
    for _ in range(6):
        x = torch.ops.plans_in_cells.plan(x)
    return x
"""


def test_sizes_that_are_met_for_the_first_time_are_found_in_the_first_run(notebook: Notebook) -> None:
    notebook.run(PLANS).raise_error()
    cell = "%%grape\nfor size in range(4, 24):\n    y = layers(torch.zeros(size))"
    first, second = (notebook.under_grape(cell) for _ in range(2))
    assert first["cell"]["engine"] == "streams"
    (cold,) = (one for one in first["findings"] if one["code"] == "GR203")
    evidence = cold["evidence"]
    assert (evidence["operator"], evidence["shapes"]) == ("plans_in_cells.plan", 20)
    assert 20 * 2.5 < evidence["in_all_ms"] < 20 * 12
    assert [one for one in second["findings"] if one["code"] == "GR203"] == []
    notebook.run("del library, layers")


def test_the_first_run_is_streamed_and_reported_at_length(notebook: Notebook) -> None:
    report = notebook.under_grape(INFER)
    assert report["cell"]["engine"] == "streams"
    assert report["streams"][0]["matched"] > 0 and report["streams"][0]["backwards"] == 0
    assert "GR102" in {one["code"] for one in report["findings"]}, "what the source says stands beside it"
    assert known().led.runs == 1 and not known().settled and known().runs == 0


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="lines are timed by events of Python 3.12")
def test_lines_are_those_of_the_first_run(notebook: Notebook) -> None:
    first, second = notebook.under_grape(INFER), notebook.under_grape(INFER)
    assert first["cell"]["lines"] == second["cell"]["lines"] and first["cell"]["lines"]


def test_a_run_is_timed_as_written_where_nothing_tells_what_streams_save(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def untold(self: StreamedSession, *_: Any, **__: Any) -> CellTime:
        now = self._clock.time(CallsAccount(), CellRuns(), finished=True)
        streamed = self._entered_once
        return replace(now, wall_ms=100.0 if streamed else 200.0, plain_ms=None if streamed else 200.0)

    monkeypatch.setattr(StreamedSession, "_time", untold)
    monkeypatch.setattr(StreamedSession, "_entered_once", property(lambda self: self._found is not None), raising=False)
    engines = [bool(notebook.under_grape(INFER)["streams"]) for _ in range(4)]
    assert engines == [True, True, False, True]
    assert known().led.untold == 1


@pytest.mark.parametrize("as_written_ms", [90.0, 200.0])
def test_what_a_warm_run_does_not_gain_is_measured(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch, as_written_ms: float, tmp_path: Path
) -> None:
    def no_gain(self: StreamedSession, *_: Any, **__: Any) -> CellTime:
        now, streamed = self._clock.time(CallsAccount(), CellRuns(), finished=True), self._found is not None
        return replace(now, wall_ms=100.0 if streamed else as_written_ms, plain_ms=100.0 if streamed else as_written_ms)

    monkeypatch.setattr(StreamedSession, "_time", no_gain)
    monkeypatch.setattr(choice, "may_be_looked_at", lambda _: False)
    notebook.run("weight = torch.randn(8, 8, requires_grad=True)")
    runs = [notebook.under_grape(TRAINS) for _ in range(5)]
    goes_on = as_written_ms > 100
    assert [bool(run["streams"]) for run in runs] == [True, True, False, goes_on, goes_on]
    assert "whether operator streams make it faster" in str(runs[2])
    if not goes_on:
        assert known().streamless == "operator streams made it slower (0.09 -> 0.10 s)"
        left = "left as written: operator streams made it slower (0.09 -> 0.10 s)"
        assert "it runs as written, for operator streams made it slower" in str(runs[3]), "and the report says why"
        assert left in runs[3]["verdict"]
        notebook.run(f"%grape remember {tmp_path}/known.json")
        engine().reset()
        notebook.run(f"%grape recall {tmp_path}/known.json")
        again = notebook.under_grape(TRAINS)
        assert "it runs as written, for operator streams made it slower (0.09 -> 0.10 s);" in str(again)
        assert left in again["verdict"]


def test_the_first_runs_may_spend_more_and_more_of_them_where_no_graph_was_made(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[bool] = []
    monkeypatch.setattr(shared, "look_anew", lambda first=False: looks.append(first))
    monkeypatch.setattr(cell, "has_to_be_timed", lambda past: False)
    for _ in range(5):
        notebook.under_grape(INFER)
    assert looks == [True, True, True, True, False]


def test_a_cell_without_tensors_is_left(notebook: Notebook) -> None:
    for _ in range(2):
        notebook.under_grape("%%grape\nn = sum(range(1000))")
    assert known().settled and shared.stream is None


def test_regions_look_once_and_streams_keep_what_they_recorded(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lead, "PAID", -1e9)
    monkeypatch.setattr(lead, "LONG_MS", 0.0)
    monkeypatch.setattr(lead, "UNTOLD", 99)  # on a CPU nothing tells what is saved
    monkeypatch.setattr(lead, "WARM", 99)
    for _ in range(3):
        report = notebook.under_grape(INFER)
    matched, stream = report["streams"][0]["matched"], shared.stream
    assert stream is not None and known().led.settled
    looked = notebook.under_grape(INFER)
    assert looked["cell"]["engine"] == "regions" and looked["regions"]
    assert known().led is None and known().runs == 1
    assert shared.stream is stream and stream.is_open, "paused, not closed"
    (key,) = engine().history._past
    engine().release_regions()
    monkeypatch.setattr(choice, "plan", lambda *_: ("stream", key))
    again = notebook.under_grape(INFER.replace("60", "59"))
    assert again["streams"][0]["matched"] > 0.9 * matched, "regions asked for addresses, and that exposes nothing"


def test_a_cell_that_trains_stays_with_streams(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lead, "PAID", -1e9)
    monkeypatch.setattr(lead, "LONG_MS", 0.0)
    monkeypatch.setattr(lead, "WARM", 99)
    monkeypatch.setattr(lead, "UNTOLD", 99)
    notebook.run("weight = torch.randn(8, 8, requires_grad=True)")
    for _ in range(5):
        report = notebook.under_grape(TRAINS)
        assert report["cell"]["engine"] == "streams"
    assert report["streams"][0]["backwards"] == 60


def test_an_error_tells_nothing(notebook: Notebook) -> None:
    with pytest.raises(ZeroDivisionError):
        notebook.under_grape("%%grape\nfor i in range(60):\n    y = step(x)\n1 / 0")
    assert not engine().history._past


def test_a_run_to_be_timed_that_is_cut_short_tells_nothing_and_streams_go_on(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_gain(self: StreamedSession, *_: Any, **__: Any) -> CellTime:
        return replace(self._clock.time(CallsAccount(), CellRuns(), finished=True), wall_ms=100.0, plain_ms=100.0)

    monkeypatch.setattr(StreamedSession, "_time", no_gain)
    notebook.run("left = [0, 0, 1, 1, 1]")
    cut = "%%grape\nfor i in range(60):\n    y = step(x)\n1 / (1 - left.pop(0))"
    for _ in range(2):
        notebook.under_grape(cut)
    for streamed in (False, True, True):
        with pytest.raises(ZeroDivisionError):
            notebook.under_grape(cut)
        assert grape.last is not None and bool(grape.last.evidence.streams) is streamed
        if not streamed:
            assert "was to tell whether" in str(grape.last)
    assert known().led is not None and not known().led.timed


def test_a_block_is_streamed(notebook: Notebook) -> None:
    notebook.run("import grape\nwith grape.session() as current:\n    for i in range(60):\n        y = step(x)\n")
    assert grape.last is not None and grape.last.to_dict()["cell"]["engine"] == "streams"


def test_an_address_that_grape_asks_for_on_behalf_of_the_person_exposes_memory(notebook: Notebook) -> None:
    notebook.run("import ctypes, grape\naddress = grape.stream(torch.Tensor.data_ptr)\nbuffer = torch.zeros(8)")
    notebook.under_grape(INFER)
    notebook.under_grape("%%grape --engine regions\nfirst = ctypes.c_float.from_address(address(buffer))")
    report = notebook.under_grape(
        "%%grape\nread = []\nfor i in range(60):\n    buffer.add_(1)\n    buffer.mul_(1)\n    read.append(first.value)"
    )
    notebook["address"].close()
    assert report["cell"]["engine"] == "streams"
    assert notebook["read"] == [float(i + 1) for i in range(60)]


def test_why_streams_could_not_serve_is_said(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(shared), "enter", lambda *_: Unavailable("somebody is in the way"))
    for _ in range(3):
        verdict = notebook.under_grape(INFER)["verdict"]
        assert "somebody is in the way" in verdict and "no PyTorch work" not in verdict
    assert known().streamless == "operator streams do not serve it: somebody is in the way"
