"""Ctrl-C ends the person's code, never Grape's between two steps that belong together."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import pytest
import torch

import grape
from grape.runtime import interrupts
from grape.runtime.interrupts import at_work, hold_off, hold_off_again, let_through

GRAPE = os.path.dirname(os.path.abspath(grape.__file__))
WAITED_S = 20.0


class Owner:
    """Somebody who stands between."""


def of_grape(source: str, **names: Any) -> dict[str, Any]:
    """The names that `source` binds, run as a file of Grape's."""
    exec(compile(source, os.path.join(GRAPE, "runtime", "not_there.py"), "exec"), names)
    return names


@pytest.fixture
def owner() -> Iterator[Owner]:
    before = signal.getsignal(signal.SIGINT)
    owner = Owner()
    hold_off(owner)
    yield owner
    let_through(owner)
    assert signal.getsignal(signal.SIGINT) is before


def here() -> FrameType:
    return sys._getframe(1)


interrupt = functools.partial(signal.raise_signal, signal.SIGINT)
"""Has no frame: the one that calls it is interrupted."""


def wait_to_be_interrupted() -> None:
    until = time.monotonic() + WAITED_S
    while time.monotonic() < until:
        time.sleep(0.001)


# --- whose code runs


def test_code_of_the_person_is_not_grape() -> None:
    assert not at_work(here())
    assert not at_work(None)


def test_what_grape_calls_of_the_standard_library_and_of_torch_is_grape() -> None:
    frames: list[FrameType] = []
    calls = of_grape(
        """
def by_contextlib(body):
    with contextlib.ExitStack() as stack:
        stack.callback(body)
def by_torch(body):
    torch.nn.Module._wrapped_call_impl(type("Any", (torch.nn.Module,), {"forward": lambda self: body()})())
def directly():
    frames.append(sys._getframe())
""",
        contextlib=contextlib,
        torch=torch,
        sys=sys,
        frames=frames,
    )

    def person() -> None:
        frames.append(here())

    for name in ("by_contextlib", "by_torch"):
        calls[name](person)
        frame = frames.pop()
        assert not at_work(frame), "the person's code has called nothing of Grape's"
        assert at_work(frame.f_back), name
    calls["directly"]()
    assert at_work(frames.pop())


def test_what_the_person_calls_of_the_standard_library_is_the_persons() -> None:
    frames: list[FrameType] = []
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: frames.append(here()))
    assert frames[0].f_back is not None
    assert frames[0].f_back.f_code.co_filename == contextlib.__file__
    assert not at_work(frames[0].f_back)


def test_the_constructor_of_a_dataclass_is_whose_who_calls_it() -> None:
    frames: list[FrameType] = []

    @dataclass
    class Point:
        x: int

        def __post_init__(self) -> None:
            frames.append(here())

    Point(1)
    assert not at_work(frames[0].f_back)
    of_grape("make(1)", make=Point)
    assert at_work(frames[1].f_back)


def test_a_finalizer_is_not_interrupted_whosever_it_is() -> None:
    """What is raised in it would be printed and forgotten."""
    frames: list[FrameType] = []
    thing = Owner()
    weakref.finalize(thing, lambda: frames.append(here()))
    del thing
    assert at_work(frames[0].f_back)


# --- the signal


def test_an_interrupt_waits_until_grape_is_done(owner: Owner) -> None:
    done: list[int] = []
    work = of_grape(
        "def work():\n    interrupt()\n    for i in range(20):\n        sleep(0.002)\n        done.append(i)\n",
        interrupt=interrupt,
        sleep=time.sleep,
        done=done,
    )["work"]
    with pytest.raises(KeyboardInterrupt):
        work()
        wait_to_be_interrupted()
    assert done == list(range(20))


def test_the_persons_code_inside_grape_is_interrupted_at_once(owner: Owner) -> None:
    left: list[str] = []
    call = of_grape(
        "def call(body):\n    try:\n        body()\n    finally:\n        left.append('tidied')\n", left=left
    )["call"]

    def person() -> None:
        interrupt()
        left.append("went on")

    with pytest.raises(KeyboardInterrupt):
        call(person)
    assert left == ["tidied"]


def test_grape_that_hangs_can_be_interrupted(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "PATIENCE_S", 0.05)
    work = of_grape(
        "def work(until):\n    interrupt()\n    while monotonic() < until:\n        sleep(0.001)\n",
        interrupt=interrupt,
        sleep=time.sleep,
        monotonic=time.monotonic,
    )["work"]
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        work(started + WAITED_S)
        wait_to_be_interrupted()
    assert 0.05 <= time.monotonic() - started < WAITED_S / 2


def test_the_second_interrupt_has_patience_of_its_own(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one's is not counted on."""
    monkeypatch.setattr(interrupts, "PATIENCE_S", 0.2)
    done: list[int] = []
    work = of_grape(
        "def work():\n    interrupt()\n    sleep(0.005)\n    sleep(0.005)\n    done.append(1)\n",
        interrupt=interrupt,
        sleep=time.sleep,
        done=done,
    )["work"]
    for times in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            work()
            wait_to_be_interrupted()
        assert len(done) == times
        time.sleep(0.25)


def test_the_handler_of_before_is_the_one_that_is_called() -> None:
    got: list[tuple[int, FrameType | None]] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: got.append((number, frame)))
    owner = Owner()
    try:
        hold_off(owner)
        interrupt()
        assert got[0][0] == signal.SIGINT
        assert got[0][1] is here()
    finally:
        let_through(owner)
        signal.signal(signal.SIGINT, before)


# --- who stands between


def handler() -> Any:
    return signal.getsignal(signal.SIGINT)


def test_the_last_owner_gives_the_handler_back() -> None:
    before = handler()
    one, other = Owner(), Owner()
    hold_off(one)
    ours = handler()
    assert ours is not before
    hold_off(other)
    let_through(one)
    assert handler() is ours
    let_through(other)
    let_through(other)
    assert handler() is before


def test_jupyter_sets_its_own_for_each_cell(owner: Owner) -> None:
    ours = handler()
    of_the_cell: Callable[..., Any] = lambda number, frame: None  # noqa: E731
    before = signal.signal(signal.SIGINT, of_the_cell)
    try:
        hold_off_again()
        assert handler() is ours
        let_through(owner)
        assert handler() is of_the_cell
    finally:
        signal.signal(signal.SIGINT, before)
        hold_off(owner)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_nobody_asks_for_it_without_graphs() -> None:
    before = handler()
    hold_off_again()
    assert handler() is before


def test_a_process_that_ignores_interrupts_goes_on_to() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    owner = Owner()
    try:
        hold_off(owner)
        assert handler() is signal.SIG_IGN
        let_through(owner)
        assert handler() is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_changes_no_handler() -> None:
    """Python lets only the main thread do that."""
    before, owner = handler(), Owner()
    failed: list[BaseException] = []

    def elsewhere() -> None:
        try:
            hold_off(owner)
            let_through(owner)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert handler() is before
    assert not failed


def test_a_session_and_a_graphed_function_hold_interrupts_off() -> None:
    before = handler()
    with grape.session():
        assert handler() is not before
    assert handler() is before

    @grape.graph
    def step(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with torch.no_grad():
        step(torch.ones(2))
    assert handler() is not before
    step.release()
    assert handler() is before
