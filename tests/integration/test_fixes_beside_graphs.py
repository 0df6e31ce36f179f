"""A rewrite is compared on copies while graphs of the same functions are applied."""

from __future__ import annotations

import types
from collections.abc import Iterator

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

import grape
from grape.fixing.verification import verify
from grape.magics import load, unload
from grape.runtime.dispatch.trampoline import written_code
from grape.sessions.past.history import key_of

SETUP = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(8, 8).requires_grad_(False)
kept = torch.zeros(8)
def search(x):
    for _ in range(30):
        y = torch.tanh(net(x)) * 0.5
        x = x + y
        kept.add_(y)
        if x.sum() > 1e9:
            break
    return x
x = torch.randn(8)
"""
USE = "result = [search(x) for _ in range(3)]"


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, closed_engine: None) -> Iterator[InteractiveShell]:
    monkeypatch.setitem(__import__("sys").modules, "__main__", types.ModuleType("__main__"))
    config = Config()
    config.HistoryManager.hist_file = ":memory:"
    InteractiveShell.clear_instance()
    made = InteractiveShell.instance(config=config)
    load(made)
    yield made
    unload(made)
    InteractiveShell.clear_instance()


def test_a_loop_that_replays_is_compared_on_copies_and_writes_nothing_of_the_persons(shell: InteractiveShell) -> None:
    with capture_output():
        shell.run_cell(SETUP, store_history=True).raise_error()
        typed, key = shell.user_ns["search"].__code__, key_of(USE, shell.user_ns)
        shell.run_cell(f"%%grape\n{USE}", store_history=True).raise_error()
    report = grape.last
    assert report is not None and any(region.replays for region in report.evidence.regions)
    assert written_code(shell.user_ns["search"]) is not typed, "its loop replays"
    before = shell.user_ns["kept"].clone()
    functions = SETUP[SETUP.index("def search") : SETUP.index("x = torch.randn")]
    assert verify(USE, USE, shell.user_ns, functions=functions).result == "identical"
    assert torch.equal(shell.user_ns["kept"], before)
    assert key_of(USE, shell.user_ns) == key, "nobody has changed the cell"
