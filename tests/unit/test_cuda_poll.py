"""Flags on their way to the host, over a stand-in for events: in order, behind their copy, never in memory in use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grape.runtime.backends.cuda import poll as cuda_poll
from grape.runtime.backends.cuda.poll import EventPoll


class Event:
    """Done when `stream` has got to it."""

    def __init__(self) -> None:
        self.stream: Any = None

    def record(self, stream: Any) -> None:
        self.stream, self.position = stream, stream.issued

    def query(self) -> bool:
        return bool(self.stream.done >= self.position)

    def synchronize(self) -> None:
        self.stream.done = max(self.stream.done, self.position)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(issued=0, done=0)
    asked: list[torch.device] = []

    def current(device: torch.device) -> SimpleNamespace:
        asked.append(device)
        return made

    made.asked = asked
    monkeypatch.setattr(torch.cuda, "current_stream", current)
    monkeypatch.setattr(cuda_poll, "_slot", lambda: (torch.empty((), dtype=torch.bool), Event()))
    return made


def post(poll: EventPoll, stream: SimpleNamespace, value: bool) -> None:
    stream.issued += 1
    poll.post(torch.tensor(value))


def test_flags_arrive_in_order_and_not_before_their_event(stream: SimpleNamespace) -> None:
    poll = EventPoll()
    for value in (True, False, True):
        post(poll, stream, value)
    assert poll.pending == 3 and poll.take(wait=False) is None
    stream.done = 2
    assert [poll.take(wait=False) for _ in range(3)] == [True, False, None] and poll.pending == 1
    assert poll.take(wait=True) is True and poll.pending == 0
    assert stream.asked == [torch.device("cpu")] * 3, "an event belongs to the stream of the copy"


def test_what_was_taken_is_used_again_and_what_was_pending_is_not(stream: SimpleNamespace) -> None:
    poll = EventPoll()
    post(poll, stream, True)
    first = poll._posted[0][0]
    assert poll.take(wait=True)
    post(poll, stream, False)
    assert poll._posted[0][0] is first
    poll.clear()
    assert poll.pending == 0
    post(poll, stream, True)
    assert poll._posted[0][0] is not first and poll.take(wait=True)
