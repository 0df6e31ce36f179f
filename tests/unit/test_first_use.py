"""What waits for the first use of a GPU, with a CUDA that begins when the test says so."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest
import torch

from grape.native import Unavailable
from grape.streams import Settings, Stream, open_stream, own_device, unused, when_used


class Started:
    """In the place of torch's beginning of CUDA."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    made = Started()
    monkeypatch.setattr(torch.cuda, "_lazy_init", made)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: made.times > 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    return made


def begin() -> None:
    start: Callable[[], None] = torch.cuda._lazy_init
    start()


def test_is_called_once_behind_the_first_use(started: Started) -> None:
    seen: list[int] = []
    when_used(lambda: seen.append(started.times))
    assert unused() and seen == []
    begin()
    assert seen == [1] and not unused()
    assert torch.cuda._lazy_init is started  # type: ignore[comparison-overlap]
    begin()
    assert seen == [1]


def test_a_device_that_is_chosen_is_current_by_then(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [0]

    def choose(device: int) -> None:
        begin()  # as torch does
        chosen.append(device)

    monkeypatch.setattr(torch.cuda, "set_device", choose)
    seen: list[list[int]] = []
    when_used(lambda: seen.append(chosen.copy()))
    torch.cuda.set_device(3)
    assert seen == [[0, 3]]
    torch.cuda.set_device(2)
    assert seen == [[0, 3]] and torch.cuda.set_device is choose


def test_a_choice_that_fails_is_the_person_s(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(device: int) -> None:
        begin()
        raise RuntimeError("invalid device ordinal")

    monkeypatch.setattr(torch.cuda, "set_device", choose)
    seen: list[int] = []
    undo = when_used(lambda: seen.append(1))
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.cuda.set_device(9)
    assert seen == []
    undo()
    assert torch.cuda.set_device is choose


def test_can_be_taken_back(started: Started) -> None:
    undo = when_used(lambda: pytest.fail("taken back"))
    undo()
    undo()
    begin()
    assert started.times == 1


def test_the_first_use_in_another_thread_is_not_this_one_s(started: Started) -> None:
    seen: list[int] = []
    undo = when_used(lambda: seen.append(1))
    other = threading.Thread(target=begin)
    other.start()
    other.join()
    assert seen == [] and not unused()
    undo()
    assert torch.cuda._lazy_init is started  # type: ignore[comparison-overlap]


def test_a_block_that_gives_the_dispatcher_back_as_it_was_is_waited_for(started: Started) -> None:
    """What began inside of it would be gone behind it, with operators that nobody issues."""
    seen: list[int] = []
    undo = when_used(lambda: seen.append(1))
    with torch.inference_mode():
        begin()
        begin()
        assert seen == [] and not unused()
    begin()
    assert seen == [1]
    undo()


def test_streams_that_begin_behind_such_a_block_give_right_values(started: Started) -> None:
    streams: list[Stream] = []

    def enter() -> None:
        opened = open_stream(Settings(device="cpu"))
        if isinstance(opened, Unavailable):
            pytest.skip(opened.reason)
        streams.append(opened)

    weight = torch.randn(8, 8)

    def work() -> torch.Tensor:
        x = weight
        with torch.inference_mode():
            begin()
            for _ in range(300):
                x = (x @ weight).tanh()
                x = x + 0.1
                x = x * 0.99
                x = x.relu()
        result = x.clone() + 1
        begin()
        return (result + 1).relu()

    wanted = work()
    undo = when_used(enter)
    try:
        assert torch.equal(work(), wanted)
    finally:
        undo()
        for stream in streams:
            stream.close()


def test_a_forked_process_is_left_alone(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    undo = when_used(lambda: pytest.fail("it has the thread's identity, and no session"))
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    begin()
    undo()


def test_a_use_that_fails_is_none(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("no CUDA GPUs are available")

    monkeypatch.setattr(torch.cuda, "_lazy_init", fail)
    undo = when_used(lambda: pytest.fail("CUDA did not begin"))
    with pytest.raises(RuntimeError, match="no CUDA GPUs"):
        begin()
    undo()


@pytest.mark.parametrize(("rank", "index"), [("2", 2), ("9", 0), ("", 0), ("x", 0)])
def test_the_device_of_a_rank_is_known_without_using_one(
    started: Started, monkeypatch: pytest.MonkeyPatch, rank: str, index: int
) -> None:
    monkeypatch.setenv("LOCAL_RANK", rank)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: pytest.fail("that uses it"))
    assert own_device() == index and started.times == 0
