"""A handler of a signal that raises, as timeouts do, ends the cell also where it finds Grape at work."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from grape.failures import Quietly, is_signalled
from grape.magics import load
from grape.outlining.parts import RegionPart
from grape.outlining.run import Run
from grape.runtime.guarding.guards import GuardSet
from grape.tracing.recorder import Recorder

SETUP = """
import signal, torch
net, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
def on(number, frame):
    raise TimeoutError("late")
"""
CELL = """%%grape --engine regions
n, y = 0, x
with torch.no_grad():
    for i in range(30):
        y = torch.tanh(net(y)) + 1
        n += 1
"""


def signalled(original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, with a signal in the middle of it; once."""
    left = [1]

    def call(*args: Any, **kwargs: Any) -> Any:
        if left:
            left.pop()
            signal.raise_signal(signal.SIGUSR1)
        return original(*args, **kwargs)

    return call


@pytest.fixture
def handling(shell: InteractiveShell) -> Iterator[InteractiveShell]:
    before = signal.getsignal(signal.SIGUSR1)
    load(shell)
    shell.run_cell(SETUP).raise_error()
    signal.signal(signal.SIGUSR1, shell.user_ns["on"])
    yield shell
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Recorder, "before"),
        (Recorder, "after"),
        (Run, "_learn"),
        (RegionPart, "_make"),
        (GuardSet, "_snapshot"),
        (GuardSet, "_unchanged"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_timeout_that_finds_grape_at_work_ends_the_cell(
    handling: InteractiveShell, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    monkeypatch.setattr(owner, name, signalled(getattr(owner, name)))
    result = handling.run_cell(CELL)
    assert repr(result.error_in_exec) == "TimeoutError('late')"
    assert handling.user_ns["n"] < 30
    handling.run_cell(CELL).raise_error()
    assert handling.user_ns["n"] == 30


class Handler:
    def method(self, number: int, frame: object) -> None:
        raise TimeoutError(number)

    def __call__(self, number: int, frame: object) -> None:
        raise TimeoutError(number)


@pytest.mark.parametrize("handler", [Handler(), Handler().method, partial(Handler().method)], ids=type)
def test_whose_exception_it_is(handler: Any) -> None:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(TimeoutError) as raised, Quietly():
            signal.raise_signal(signal.SIGUSR1)
        with Quietly():
            raise TimeoutError
        assert is_signalled(raised.value)
        assert not is_signalled(TimeoutError())
        assert not is_signalled(None)
    finally:
        signal.signal(signal.SIGUSR1, before)
