"""Ctrl-C ends the person's code, never Grape's between two steps that belong together."""

from __future__ import annotations

import asyncio
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
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import grape
from grape.runtime.dispatch import interrupts
from grape.runtime.dispatch.interrupts import at_work, handlers_held, held, hold_off, hold_off_again, let_through
from grape.runtime.regions.region import Region

GRAPE = os.path.dirname(os.path.abspath(grape.__file__))
WAITED_S = 20.0


class Owner:
    """Somebody who stands between."""


def of_grape(source: str, **names: Any) -> dict[str, Any]:
    """The names that `source` binds, run as a file of Grape's."""
    exec(compile(source, os.path.join(GRAPE, "runtime", "not_there.py"), "exec"), names)
    return names


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Who asked before, in other tests, and waits for the garbage collector, asks no more."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(interrupts, "_owners", weakref.WeakKeyDictionary())
    yield
    signal.signal(signal.SIGINT, before)


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


def test_an_interrupt_does_not_end_in_a_finalizer_that_swallows_it(owner: Owner) -> None:
    """A tensor's storage has one in torch, which dies in the person's code."""
    left: list[str] = []

    class Thing:
        def __del__(self) -> None:
            interrupt()
            left.append("whole")

    with pytest.raises(KeyboardInterrupt):
        del [Thing()][0]
        wait_to_be_interrupted()
    assert left == ["whole"]


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


def test_the_traceback_has_no_frame_of_grape(owner: Owner) -> None:
    with pytest.raises(KeyboardInterrupt) as raised:
        interrupt()
    assert [entry.path for entry in raised.traceback] == [Path(__file__)]


# --- where a call of Grape's ends


def test_an_interrupt_comes_where_a_call_ends(owner: Owner) -> None:
    """Chance would find no moment between two calls: there is next to none."""
    names: dict[str, Any] = {"interrupt": interrupt, "held": held, "sys": sys}
    call = of_grape("def call():\n    interrupt()\n    held.come(sys._getframe(1))\n", **names)["call"]
    outer = of_grape("def outer():\n    call()\n    done.append(1)\n", call=call, done=(done := []))["outer"]
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            call()
        assert held.since is None
    outer()
    assert done == [1], "the caller is Grape, and not done"
    with pytest.raises(KeyboardInterrupt):
        wait_to_be_interrupted()


def test_one_that_never_comes_is_not_waited_for(owner: Owner) -> None:
    """It was sent in the process that this one was forked from."""
    held.since = started = time.monotonic()
    held.come()
    assert held.since is None
    assert time.monotonic() - started < WAITED_S / 2


def of_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each call of a region interrupted while it is Grape's."""
    source = "def call(self, args, kwargs):\n    interrupt()\n    return self.function(*args, **kwargs)\n"
    monkeypatch.setattr(Region, "call", of_grape(source, interrupt=interrupt)["call"])
    monkeypatch.setattr(interrupts, "AGAIN_S", 0.02)  # the call has ended by then


def test_a_graphed_function_and_a_module_are_interrupted_when_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    of_regions(monkeypatch)
    step, module = grape.graph(torch.neg), torch.nn.Linear(2, 2)

    def is_interrupted(call: Callable[[torch.Tensor], Any]) -> None:
        with pytest.raises(KeyboardInterrupt) as raised:
            call(torch.ones(2))
            pytest.fail("went on")
        assert [entry.path for entry in raised.traceback] == [Path(__file__)]

    is_interrupted(step)
    is_interrupted(step)
    step.release()
    with grape.session():
        is_interrupted(module)


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
        assert handler() not in (ours, of_the_cell)
        let_through(owner)
        assert handler() is of_the_cell
    finally:
        signal.signal(signal.SIGINT, before)
        hold_off(owner)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_who_keeps_the_handler_puts_back_what_it_stands_before(owner: Owner) -> None:
    got: list[str] = []
    another = Owner()
    kept = signal.signal(signal.SIGINT, lambda number, frame: got.append("for a while"))
    hold_off(another)
    interrupt()
    assert got == ["for a while"]
    signal.signal(signal.SIGINT, kept)
    with pytest.raises(KeyboardInterrupt):
        interrupt()
    let_through(another)


@pytest.mark.parametrize("hangs", [False, True])
def test_a_handler_that_calls_the_one_it_replaced(owner: Owner, monkeypatch: pytest.MonkeyPatch, hangs: bool) -> None:
    monkeypatch.setattr(interrupts, "PATIENCE_S", 0.05)
    got: list[int] = []
    another, kept = Owner(), handler()

    def tell(number: int, frame: FrameType | None) -> None:
        got.append(number)
        kept(number, frame)

    signal.signal(signal.SIGINT, tell)
    hold_off(another)
    try:
        work = of_grape("def work(until):\n    interrupt()\n    wait(until)\n", interrupt=interrupt, wait=time.sleep)
        with pytest.raises(KeyboardInterrupt):
            work["work"](WAITED_S) if hangs else interrupt()
        assert got == [signal.SIGINT]
    finally:
        let_through(another)
        signal.signal(signal.SIGINT, kept)


def test_an_owner_that_dies_gives_the_handler_back() -> None:
    before, owner = handler(), Owner()
    hold_off(owner)
    hold_off(owner)
    assert handler() is not before
    del owner
    assert handler() is before


@pytest.mark.skipif(sys.platform == "win32", reason="loops have no signal handlers there")
def test_a_loop_that_counts_signals_gets_each_once() -> None:
    async def main() -> Any:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)
        before, owner = handler(), Owner()
        hold_off(owner)
        return handler() is before

    before = handler()
    assert asyncio.run(main())
    signal.signal(signal.SIGINT, before)


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


@pytest.fixture
def alarm() -> Iterator[list[int]]:
    seen: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: seen.append(number))
    yield seen
    signal.signal(signal.SIGALRM, before)


def test_a_handler_runs_once_behind_what_must_not_be_disturbed(alarm: list[int]) -> None:
    handler = signal.getsignal(signal.SIGALRM)
    with handlers_held():
        for _ in range(3):
            signal.raise_signal(signal.SIGALRM)
        assert alarm == []
    assert alarm == [signal.SIGALRM]
    assert signal.getsignal(signal.SIGALRM) is handler


def test_what_a_held_handler_raises_is_the_persons(alarm: list[int]) -> None:
    def ends(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("too late")

    signal.signal(signal.SIGALRM, ends)
    done = []
    with pytest.raises(TimeoutError, match="too late"), handlers_held():
        signal.raise_signal(signal.SIGALRM)
        done.append("the block")
    assert done == ["the block"]
    assert signal.getsignal(signal.SIGALRM) is ends


def test_a_handler_that_the_block_sets_stays(alarm: list[int]) -> None:
    with handlers_held():
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN


def test_an_event_loop_cancels_its_task_at_an_interrupt(owner: Owner) -> None:
    """It does so only where the handler is the default one, and its task may clean up."""
    said = []

    async def main() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
            said.append("goes on")
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            said.append("cancelled")
            raise

    stands = handler()
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert said == ["goes on", "cancelled"]
    assert handler() is stands


def test_the_default_handler_has_its_name_again_at_the_end() -> None:
    default, owner = signal.default_int_handler, Owner()
    assert handler() is default
    hold_off(owner)
    assert handler() is signal.default_int_handler is not default
    signal.signal(signal.SIGINT, lambda *_: None)  # whoever put another one there
    let_through(owner)
    assert signal.default_int_handler is default
    signal.signal(signal.SIGINT, default)


def test_a_handler_of_before_that_is_put_back_is_the_default_one_too() -> None:
    default, owner, later = signal.default_int_handler, Owner(), Owner()
    hold_off(owner)
    kept = handler()
    let_through(owner)
    signal.signal(signal.SIGINT, kept)
    hold_off(later)
    assert handler() is signal.default_int_handler is kept
    let_through(later)
    assert handler() is signal.default_int_handler is default
