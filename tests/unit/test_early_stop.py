"""Loops that the host drives and the device ends: flags that lag, wasted iterations, and nothing visible of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from grape.options import Options
from grape.rewrite.control_flow import RewrittenFlow, rewrite_control_flow
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.predication.early_stop import AHEAD, Iteration, Stopped, run_ahead, set_stepper
from grape.runtime.predication.lowering.active import in_loop
from grape.runtime.predication.lowering.merge import NOTHING, UNBOUND
from grape.sessions import Cell, Session

from .held_launches import launches_held

SOURCE = """
import torch
weight = torch.randn(8, 8, generator=torch.Generator().manual_seed(1)) / 3
written = torch.zeros(64, 8)

def decode(x, limit, steps=30):
    at = torch.zeros(1, dtype=torch.long)
    seen = at
    for _ in range(steps):
        x = torch.tanh(x @ weight) * 0.1 + x * 0.8
        written.index_copy_(0, at, x[None])
        at += 1
        if x.abs().sum() < limit:
            break
    else:
        x = x * 2
    return x.sum().item(), at, seen
"""


WHILE = SOURCE.replace(
    """    for _ in range(steps):
""",
    """    while (x.abs().sum() >= limit) & (at < steps).all():
""",
).replace(
    """        if x.abs().sum() < limit:
            break
    else:
        x = x * 2
""",
    "",
)


pytestmark = pytest.mark.usefixtures("closed_engine")


def namespace(path: Path, source: str) -> dict[str, Any]:
    path.write_text(source)
    made: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, str(path), "exec"), made)
    return made


def outcomes(names: dict[str, Any]) -> list[Any]:
    """Each call's result and what it left in memory, over loops that end early, late and not at all."""
    found = []
    for seed in range(20):
        names["written"].zero_()
        x = torch.randn(8, generator=torch.Generator().manual_seed(seed)) * 5
        number, at, seen = names["decode"](x, 0.0 if seed % 5 == 4 else 1.0 + seed % 4 * 3)
        assert seen is not None
        found.append((number, at.tolist(), seen.tolist(), names["written"].view(torch.uint8).tolist()))
    return found


@pytest.mark.parametrize("lag", [0, 2, 50])
@pytest.mark.parametrize("source", [SOURCE, WHILE], ids=["for", "while"])
def test_iterations_are_issued_ahead_and_wasted_ones_change_nothing(
    source: str, lag: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReferenceBackend, "flag_lag", lag)
    made = rewrite_control_flow(source, filename="plain.py")
    assert isinstance(made, RewrittenFlow)
    plain, mine = namespace(tmp_path / "plain.py", source), namespace(tmp_path / "mine.py", made.source)
    wasted = replays = 0
    with torch.no_grad():
        expected = outcomes(plain)
        lengths = {at[0] for _, at, _, _ in expected}
        assert len(lengths) > 3 and max(lengths) == 30
        for _ in range(2):
            session = Session(options=Options(), cell=Cell(name="c", source="", filename="c"), namespace=mine)
            session.open()
            found = outcomes(mine)
            session.close(None)
            assert found == expected
            assert session.report is not None
            regions = {region["name"]: region for region in session.report.to_dict()["regions"]}
            assert regions["decode"]["reason"] == "GR101"  # it reads a value at its end, so its loop alone can gain
            loop = regions["loop of decode"]
            assert loop["outcome"] == "replayed" and loop["verified"] == "identical"
            wasted, replays = wasted + loop["wasted_iterations"], replays + loop["replays"]
        assert outcomes(mine) == expected  # graphs stay applied
    assert replays > 100
    assert wasted == 0 if lag == 0 else 0 < wasted < replays / 2


def test_a_poll_of_the_tape_lags_and_keeps_the_order() -> None:
    backend = ReferenceBackend()
    poll = backend.flag_poll()
    flag = torch.zeros((), dtype=torch.bool)
    taken = []
    for step in range(6):
        flag.fill_(step == 3)
        poll.post(flag)
        taken.append(poll.take(wait=False))
    assert taken == [None, None, False, False, False, True]
    assert poll.pending == 2 and poll.take(wait=True) is False
    poll.clear()
    assert poll.pending == 0
    backend.close()


def test_what_was_posted_is_not_what_came_later() -> None:
    backend = ReferenceBackend()
    poll = backend.flag_poll()
    flag = torch.zeros((), dtype=torch.bool)
    with launches_held(backend):
        poll.post(flag)
        backend.copy([flag], [torch.ones((), dtype=torch.bool)])
        poll.post(flag)
        assert [poll.take(wait=True), poll.take(wait=True)] == [False, True]
    backend.close()


class Recorded:
    """A stepper whose steps are replays from the first call on, of loops that stop after `length` iterations."""

    def __init__(self, length: int, lag: int) -> None:
        self.length = length
        self.replays = self.wasted = 0
        self.moved: set[int] = set()
        self.most_pending = 0
        self._backend = ReferenceBackend()
        self._backend.flag_lag = lag

    def poll(self) -> Any:
        recorded, poll = self, self._backend.flag_poll()
        post = poll.post

        def noted(flag: torch.Tensor) -> None:
            post(flag)
            recorded.most_pending = max(recorded.most_pending, poll.pending)

        poll.post = noted  # type: ignore[method-assign]
        return poll

    def step(self, body: Any, test: Any, stop: int) -> Any:
        return self

    def waste(self, count: int) -> None:
        self.wasted += count

    def __call__(self, closure: tuple[Any, ...], state: tuple[Any, ...]) -> tuple[Any, ...]:
        self.replays += 1
        count, stopped = state
        count = count if bool(stopped) else count + 1
        return count, stopped | (count >= self.length)


@pytest.mark.parametrize("lag", [0, 1, 3, 100])
@pytest.mark.parametrize("length", [1, 2, 9, 10, 99])
def test_the_number_of_wasted_iterations_is_bounded_and_exact(length: int, lag: int) -> None:
    stepper = Recorded(length, lag)
    set_stepper(stepper)
    try:
        ran = run_ahead(10, lambda count, stopped: (count, stopped), (torch.zeros(()), False), 1)
    finally:
        set_stepper(None)
    assert ran is not None
    count, stopped = ran
    assert (count.item(), stopped) == (min(length, 10), length <= 10)
    assert stepper.wasted == stepper.replays - min(length, 10)
    assert stepper.wasted <= min(lag, AHEAD) and stepper.most_pending <= AHEAD + 1
    assert not in_loop()


@pytest.mark.parametrize("beside", ["cpu", "meta"])
def test_the_flag_lies_where_the_loop_works(beside: str) -> None:
    """A tensor of the CPU that is carried along, a step number for instance, does not take it to the host."""
    found: list[str] = []

    class Stops(Recorded):
        def __call__(self, closure: tuple[Any, ...], state: tuple[Any, ...]) -> tuple[Any, ...]:
            found.append(state[2].device.type)
            raise Stopped

    carried = (torch.zeros(()), torch.zeros(3, device=beside), False)
    set_stepper(Stops(1, 0))
    try:
        ran = run_ahead(3, lambda count, x, stopped: (count, x, stopped), carried, 2)
    finally:
        set_stepper(None)
    assert ran is not None and found == [beside]


def _plain(name: Any, count: Any, stopped: Any) -> tuple[Any, Any, Any]:
    return name, count + 1, stopped


def _with_default(name: Any, count: Any, stopped: Any, by: int = 1) -> tuple[Any, Any, Any]:
    return name, count + by, stopped


def _with_keyword(name: Any, count: Any, stopped: Any, *, by: int = 1) -> tuple[Any, Any, Any]:
    return name, count + by, stopped


@pytest.mark.parametrize(
    ("body", "first"),
    [
        (_plain, UNBOUND),
        (_plain, NOTHING),
        (_with_default, 0),
        (_with_keyword, 0),
        (Recorded(1, 0), 0),
    ],
    ids=["a name that is not bound", "a value that nobody looks at", "a default", "a keyword", "no function"],
)
def test_a_loop_whose_iteration_cannot_be_made_from_its_code_runs_as_written(body: Any, first: Any) -> None:
    stepper = Recorded(3, 0)
    set_stepper(stepper)
    try:
        assert run_ahead(10, body, (first, torch.zeros(()), False), 2) is None
    finally:
        set_stepper(None)
    assert stepper.replays == 0


def test_an_iteration_after_the_end_does_nothing_in_ordinary_python() -> None:
    ran = []

    def body(x: torch.Tensor, stopped: bool) -> tuple[torch.Tensor, bool]:
        ran.append(1)
        return x + 1, stopped

    step = Iteration(body, None, 1, torch.device("cpu"))
    closure = (tuple(cell.cell_contents for cell in body.__closure__ or ()),)
    after, flag = step(closure, (torch.zeros(2), torch.tensor(False)))
    assert (after.tolist(), flag.item(), ran) == ([1.0, 1.0], False, [1])
    with pytest.raises(Stopped):
        step(closure, (torch.zeros(2), torch.tensor(True)))
    assert ran == [1]
