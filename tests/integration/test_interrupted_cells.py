"""Ctrl-C while Grape works for a cell: it comes where the cell can end with it."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

import grape
from grape.magics import load
from grape.runtime.dispatch import interrupts
from grape.runtime.regions.region import Region
from grape.sessions import Session


def interrupted(original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, with an interrupt that finds Grape before it."""
    source = "def call(*args, **kwargs):\n    interrupt(2)\n    return original(*args, **kwargs)\n"
    names: dict[str, Any] = {"interrupt": signal.raise_signal, "original": original}
    exec(compile(source, os.path.join(os.path.dirname(grape.__file__), "not_there.py"), "exec"), names)
    return names["call"]  # type: ignore[no-any-return]


@pytest.fixture
def late(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> InteractiveShell:
    """A shell with Grape, in which an interrupt that waits comes again late."""
    load(shell)
    monkeypatch.setattr(interrupts, "AGAIN_S", 0.02)
    shell.run_cell("import torch; w = torch.eye(3)")
    return shell


@pytest.mark.parametrize("local", [False, True])
def test_a_loop_is_interrupted_where_its_body_ends(
    late: InteractiveShell, monkeypatch: pytest.MonkeyPatch, local: bool
) -> None:
    monkeypatch.setattr(Region, "call", interrupted(Region.call))
    cell = "n = 0\nx = w\nfor i in range(20):\n    x = torch.tanh(x @ w) + 1\n"
    if local:
        cell = "def f(x):\n    for i in range(20):\n        x = torch.tanh(x @ w) + 1\n    return x\nf(w)"
    result = late.run_cell("%%grape\n" + cell)
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    files = [entry.filename for entry in traceback.extract_tb(result.error_in_exec.__traceback__)]
    assert not [file for file in files if file.startswith(os.path.dirname(grape.__file__))]
    if not local:
        assert late.user_ns["i"] < 5
        late.run_cell(
            "y = w\nfor _ in range(i + 1):\n    y = torch.tanh(y @ w) + 1\nassert torch.equal(x, y)"
        ).raise_error()


def test_an_interrupt_of_the_report_costs_no_reply(
    late: InteractiveShell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The code of the cell has ended; raised in IPython or in the kernel, the front end would wait forever."""
    monkeypatch.setattr(Session, "close", interrupted(Session.close))
    monkeypatch.setattr(interrupts.held, "since", None)
    hold = grape.graph(lambda x: x)  # keeps interrupts held off beyond the cell
    interrupts.hold_off(hold)
    result = late.run_cell("%%grape\nx = torch.tanh(w)\n6 * 7")
    assert result.success
    assert result.result == 42
    assert "interrupted after the cell had ended" in "".join(capsys.readouterr())
    assert interrupts.held.since is None
    hold.release()
    interrupts.let_through(hold)


def test_an_interrupt_before_the_first_statement_ends_the_cell(
    late: InteractiveShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "open", interrupted(Session.open))
    hold = grape.graph(lambda x: x)
    interrupts.hold_off(hold)
    result = late.run_cell("%%grape\nran = 1")
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert "ran" not in late.user_ns
    interrupts.let_through(hold)
