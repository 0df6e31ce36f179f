"""What the person puts in the place of a standard function, or of one of torch's, is called by their code only."""

from __future__ import annotations

import operator
import sys
import time
from typing import Any

import numpy.random  # noqa: F401
import pytest
import torch

from grape.options import Options
from grape.runtime.dispatch import function_regions
from grape.runtime.regions.region import Region
from grape.sessions import Cell, Session, close_engine
from grape.sessions import engine as engine_now

ENGINES = ["regions", "streams"]
SETUP = """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
calls = 0
def f(x):
    return torch.tanh(net(x)) * 0.5 + x
"""
HOT = """
with torch.no_grad():
    x = torch.ones(2, 8)
    for _ in range(20):
        x = f(x)
"""
COUNTED = """
def counted(*args, was={name}, **kwargs):
    global calls
    calls += 1
    return was(*args, **kwargs)
{name} = counted
"""


def run(source: str, names: dict[str, Any]) -> None:
    exec(compile(source, "<ipython-input-1>", "exec"), names)


def run_under_grape(source: str, names: dict[str, Any], engine: str) -> Session:
    session = Session(
        options=Options(engine=engine), cell=Cell(name="In[1]", source=source, filename="x"), namespace=names
    )
    session.open()
    run(source, names)
    session.close(None)
    return session


def outcome(setup: str, hot: str, *, engine: str | None, cells: int = 3) -> list[tuple[int, bytes]]:
    """Calls of what was replaced, and the result, after each cell."""
    names: dict[str, Any] = {"__name__": "__main__"}
    found = []
    try:
        run(SETUP + setup, names)
        for _ in range(cells):
            if engine is None:
                run(hot, names)
            else:
                run_under_grape(hot, names, engine)
            found.append((names["calls"], names["x"].detach().numpy().tobytes()))
    finally:
        close_engine()
    return found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["perf_counter", "perf_counter_ns", "monotonic", "time_ns"])
def test_a_clock_of_the_person_is_no_clock_of_grapes(name: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands in the cell's namespace, and is taken over as any function there."""
    monkeypatch.setattr(time, name, getattr(time, name))  # put back at the end
    setup = "import time\n" + COUNTED.format(name=f"time.{name}")
    assert outcome(setup, HOT, engine=engine) == outcome(setup, HOT, engine=None)


STANDARD = ["random.getstate", "numpy.random.get_state", "sys.gettrace"]
OF_TORCH = ["is_grad_enabled", "get_rng_state", "empty_strided", "equal", "no_grad"]
OF_TENSORS = ["detach", "data_ptr", "stride", "untyped_storage", "mul", "copy_", "requires_grad_"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "name", [*STANDARD, *(f"torch.{name}" for name in OF_TORCH), *(f"torch.Tensor.{name}" for name in OF_TENSORS)]
)
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_what_is_replaced_is_called_by_the_person_only(
    when: str, name: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the cell, or in a block of it."""
    module, _, attribute = name.rpartition(".")
    owner = torch.Tensor if module == "torch.Tensor" else sys.modules[module]
    was = getattr(owner, attribute)
    setup, hot = "import numpy, random, sys\n" + COUNTED.format(name=name), HOT
    if when == "meanwhile":
        setup = setup.replace(f"\n{name} = counted", "")
        block = HOT.replace("\n", "\n    ")
        hot = f"from unittest import mock\nwith mock.patch.object({module}, {attribute!r}, counted):{block}\n"
    found = []
    for chosen in (None, engine):
        monkeypatch.setattr(owner, attribute, was)
        found.append(outcome(setup, hot, engine=chosen))
    assert found[0] == found[1]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_library_calls_in_the_place_of_another_is_called_each_time(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No name of the person's leads there."""
    was, found = operator.index, []
    setup = "import operator\n" + COUNTED.format(name="operator.index") + "def f(x): return net[2](net(x)) * 0.5 + x\n"
    for chosen in (None, engine):
        monkeypatch.setattr(operator, "index", was)
        found.append(outcome(setup, HOT, engine=chosen))
    assert found[0] == found[1] and found[0][0][0] >= 20


HUNG = {
    "a property": ("property(counted)", "x.dbl"),
    "a partial method": ("functools.partialmethod(counted)", "x.dbl()"),
    "a static method": ("staticmethod(counted)", "torch.Tensor.dbl(x)"),
    "an object": ("Called()", "torch.Tensor.dbl(x)"),
}
"""What is hung on `torch.Tensor` and how it is called."""


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("what", HUNG)
def test_what_is_hung_on_tensors_is_called_as_often_as_plainly(
    what: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung, call = HUNG[what]
    setup = f"""\
import functools
calls = 0
def counted(x):
    global calls
    calls += 1
    return x * 2
class Called:
    def __call__(self, x): return counted(x)
torch.Tensor.dbl = {hung}
def f(x): return net({call}) * 0.5 + x
"""
    monkeypatch.setattr(torch.Tensor, "dbl", None, raising=False)
    found = [outcome(setup, HOT, engine=chosen) for chosen in (None, engine)]
    assert found[0] == found[1]


@pytest.mark.parametrize("engine", ENGINES)
def test_weights_stay_where_detach_gives_something_else(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    was = torch.Tensor.detach
    setup = "was = torch.Tensor.detach\ntorch.Tensor.detach = lambda self: was(self) * 2\n"
    hot = "x = torch.ones(2, 8)\nfor _ in range(24):\n    x = torch.tanh(net(x)).detach()\n"
    found = []
    for chosen in (None, engine):
        monkeypatch.setattr(torch.Tensor, "detach", was)
        found.append(outcome(setup, hot, engine=chosen))
    assert found[0] == found[1]


def test_a_load_of_the_persons_leaves_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "load", torch.load)
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        run(SETUP + COUNTED.format(name="torch.load"), names)
        for _ in range(3):
            run_under_grape(HOT, names, "regions")
        assert any(region.replays for region in engine_now().interceptor.regions)
    finally:
        close_engine()


def test_a_function_whose_region_cannot_be_made_is_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Region:
        raise RuntimeError("no region")

    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        run(SETUP, names)
        written = names["f"].__code__
        with monkeypatch.context() as patch:
            patch.setattr(function_regions, "Region", broken)
            with pytest.raises(RuntimeError, match="no region"):
                run_under_grape(HOT, names, "regions")
            assert names["f"].__code__ is written
        run(HOT, names)
        expected = names["x"].numpy().tobytes()
        for _ in range(3):
            run_under_grape(HOT, names, "regions")
            assert names["x"].numpy().tobytes() == expected
    finally:
        close_engine()
