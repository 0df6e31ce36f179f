"""What `nn.Module` itself does at each call is the person's to replace: his function then sees every call."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from grape.options import Options
from grape.sessions import Cell, Session, close_engine

SETUP = """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
seen = []
def step(x):
    return net(x) * 0.5 + x
"""
HOT = "with torch.no_grad():\n    x = torch.ones(2, 8)\n    for _ in range(20):\n        x = step(x)\n"
PATCH = """
was = torch.nn.Module.{name}
def watched(self, *args, **kwargs):
    seen.append(type(self).__name__)
    return was(self, *args, **kwargs)
torch.nn.Module.{name} = watched
"""


def run(source: str, names: dict[str, Any]) -> None:
    exec(compile(source, "<ipython-input-1>", "exec"), names)


def run_under_grape(source: str, names: dict[str, Any]) -> Session:
    session = Session(options=Options(), cell=Cell(name="In[1]", source=source, filename="x"), namespace=names)
    session.open()
    run(source, names)
    session.close(None)
    return session


@pytest.mark.parametrize("before", [0, 1, 4])
@pytest.mark.parametrize("name", ["__call__", "_call_impl", "__getattr__"])
def test_a_function_in_the_place_of_one_of_modules_sees_every_call(
    name: str, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it came before Grape's own or lies over it."""
    monkeypatch.setattr(torch.nn.Module, name, getattr(torch.nn.Module, name))  # put back at the end
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        run(SETUP, names)
        for _ in range(before):
            run_under_grape(HOT, names)
        run(PATCH.format(name=name), names)
        run(HOT, names)
        expected = len(names["seen"])
        for _ in range(4):
            names["seen"].clear()
            run_under_grape(HOT, names)
            assert len(names["seen"]) == expected > 0
        assert getattr(torch.nn.Module, name) is names["watched"]
        setattr(torch.nn.Module, name, names["was"])
        run_under_grape(HOT, names)
        names["seen"].clear()
        run(HOT, names)
        assert not names["seen"]
    finally:
        close_engine()


OF_TENSORS = {
    "mul": ("x * 1.0", "x.mul(0.5)"),
    "detach": ("x.clone()", "x.detach()"),
    "tanh": ("x.clone()", "x.tanh()"),
}
"""What is replaced, and two expressions, of which one calls it."""


@pytest.mark.parametrize("name", OF_TENSORS)
def test_a_function_in_the_place_of_one_of_tensors_is_called_by_the_person_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, name, getattr(torch.Tensor, name))
    names: dict[str, Any] = {"__name__": "__main__"}
    patch = f"""
was = torch.Tensor.{name}
def doubled(self, *args):
    seen.append("called")
    return was(self * 2, *args)
torch.Tensor.{name} = doubled
def step(x):
    x = net({OF_TENSORS[name][0]})
    return {OF_TENSORS[name][1]}
"""
    try:
        run(SETUP + patch, names)
        weight = names["net"][0].weight.tolist()
        run(HOT, names)
        expected = len(names["seen"]), names["x"].tolist()
        for _ in range(4):
            names["seen"].clear()
            run_under_grape(HOT, names)
            assert (len(names["seen"]), names["x"].tolist()) == expected
            assert names["net"][0].weight.tolist() == weight
    finally:
        close_engine()


def test_what_is_replaced_within_the_cell_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.Module, "_call_impl", torch.nn.Module._call_impl)
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        run(SETUP, names)
        hot = HOT.replace("        x = step", "        if _ == 12:\n            patch()\n        x = step")
        patch = PATCH.format(name="_call_impl").replace("\n", "\n    ")
        run(f"def patch():\n    global was, watched{patch}", names)
        for _ in range(3):
            run_under_grape(HOT, names)
        run_under_grape(hot, names)
        assert len(names["seen"]) == 8 * 4
    finally:
        close_engine()


def test_no_thread_of_grapes_runs_while_somebody_profiles() -> None:
    """From Python 3.12 on cProfile sees all threads, and takes their calls for those of one."""
    import sys

    before = set(sys._current_frames())
    names: dict[str, Any] = {"__name__": "__main__", "sys": sys, "threading": threading}
    try:
        source = "watch = sys.getprofile\nsys.setprofile(None)\nfound = set(sys._current_frames())\n"
        session = Session(options=Options(), cell=Cell(name="In[1]", source=source, filename="x"), namespace=names)
        code = compile(source, "<ipython-input-1>", "exec")
        session.open(code)
        exec(code, names)
        session.close(None)
        assert names["found"] <= before
    finally:
        close_engine()


def test_the_loops_of_the_next_cell_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its source is compiled before anything asks whether somebody watches it, too."""
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    import grape
    from grape.magics import load, unload

    shell = InteractiveShell.instance()
    load(shell)
    try:
        shell.run_cell(SETUP).raise_error()
        with capture_output():
            shell.run_cell("%%grape\nimport sys\nsys.setprofile(None)\n").raise_error()
            shell.run_cell("%%grape\n" + HOT.replace("step(x)", "net(x) * 0.5 + x")).raise_error()
        assert grape.last is not None
        assert any(region["name"].startswith("loop") for region in grape.last.to_dict()["regions"])
    finally:
        unload(shell)
        close_engine()
