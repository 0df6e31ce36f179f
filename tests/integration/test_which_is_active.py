"""Which callable becomes the region: a function that holds the whole loop, and one whose plain argument changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo  # imported by the first dispatch mode in some versions; it wraps functions of torch for good

from grape.options import Options
from grape.sessions import Cell, Session, close_engine

SOURCE = """
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))

def evaluate(count):
    outputs = []
    for index in range(count):
        outputs.append(net(torch.ones(2, 8) * index))
    return torch.stack(outputs).sum()

def shifted(x, index):
    return net(x) + index

def grown(count):
    held = torch.ones(1, 8)
    for _ in range(count):
        held = torch.cat([held, net(held)[-1:]])
    return held
"""


@pytest.fixture
def space() -> Iterator[dict[str, Any]]:
    namespace: dict[str, Any] = {"torch": torch, "__name__": "__main__"}
    exec(compile(SOURCE, "cell.py", "exec"), namespace)
    with torch.no_grad():
        yield namespace
    close_engine()


def run(space: dict[str, Any], code: str) -> Session:
    session = Session(options=Options(), cell=Cell(name="In[1]", source=code, filename="x"), namespace=space)
    session.open()
    exec(code, space)
    session.close(None)
    return session


def test_a_function_called_once_lets_the_module_in_its_loop_replay(space: dict[str, Any]) -> None:
    expected = space["evaluate"](80)
    for calls in (1, 2, 3):
        report = run(space, "result = evaluate(80)").report
        assert report is not None
        assert space["result"].equal(expected)
        replays = {region.name: region.replays for region in report.regions}
        assert replays["Sequential (net)"] > (20 if calls == 1 else 60)


def test_a_short_loop_of_a_function_stays_active_from_cell_to_cell(space: dict[str, Any]) -> None:
    """Each call has another shape: the first cell captures nothing, and the function is still called once a cell."""
    expected = space["grown"](30)
    replays = []
    for _ in range(4):
        report = run(space, "result = grown(30)").report
        assert report is not None
        assert space["result"].equal(expected)
        regions = {region.name: region for region in report.regions}
        assert regions["grown"].calls == 1
        replays.append(regions["Sequential (net)"].replays)
    assert replays[0] == 0
    assert replays[-1] > 20


def test_a_module_is_named_by_a_variable_of_the_person(space: dict[str, Any]) -> None:
    net = space.pop("net")
    space.update(_=net, __=net, mine=net)
    report = run(space, "for _ in range(4):\n    mine(torch.ones(2, 8))").report
    assert report is not None
    assert [region.name for region in report.regions] == ["Sequential (mine)"]


def test_an_argument_that_is_another_number_each_time_is_named(space: dict[str, Any]) -> None:
    code = "results = [shifted(torch.ones(2, 8), index) for index in range(40)]"
    report = run(space, code).report
    assert report is not None
    assert all(result.equal(space["net"](torch.ones(2, 8)) + index) for index, result in enumerate(space["results"]))
    outcomes = {region.name: (region.outcome, region.reason) for region in report.regions}
    assert outcomes["shifted"] == ("refused", "GR403")
    assert outcomes["Sequential (net)"] == ("replayed", None)
    assert any(f.code == "GR403" and "`index` is no tensor" in f.message for f in report.findings)
