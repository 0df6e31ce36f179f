"""When CUPTI is taken out of a process; that it goes, and that the next profile works, is tested on a GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import Queue
from types import SimpleNamespace

import pytest
import torch

from grape.profiling.devices import cupti


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    calls: list[str] = []
    library = SimpleNamespace(cuptiFinalize=lambda: calls.append("finalize") or 0)
    monkeypatch.setattr(cupti, "_library", lambda: library)
    monkeypatch.setattr(cupti, "_times", 0)
    for name in cupti._TOOLS:
        monkeypatch.delenv(name, raising=False)
    yield calls


def test_it_goes_where_nobody_else_uses_it(asked: list[str]) -> None:
    assert cupti.detach() and asked == ["finalize"]


def test_it_goes_a_bounded_number_of_times(asked: list[str]) -> None:
    assert [cupti.detach() for _ in range(cupti.MOST + 2)] == [True] * cupti.MOST + [False] * 2
    assert len(asked) == cupti.MOST


@pytest.mark.parametrize("name", cupti._TOOLS)
def test_it_stays_where_a_tool_decides(asked: list[str], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "0")
    assert not cupti.detach() and asked == []


def test_it_stays_while_another_thread_is_inside_of_torch(asked: list[str]) -> None:
    """As the thread of a data loader that pins memory is, for as long as the loader lives."""
    there, leave = Queue[None](), threading.Event()

    class Waiting:
        @classmethod
        def __torch_function__(cls, func: object, types: object, args: object = (), kwargs: object = None) -> int:
            there.put(None)
            leave.wait(30)
            return 0

    thread = threading.Thread(target=lambda: torch.nn.functional.relu(Waiting()))  # type: ignore[arg-type]
    thread.start()
    there.get(timeout=30)
    try:
        assert not cupti.detach() and asked == []
    finally:
        leave.set()
        thread.join()
    assert cupti.detach()


def test_a_process_without_it_has_nothing_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(cupti, "_loaded", lambda path: pytest.fail(f"{path} was loaded"))
    if torch.version.cuda is None:  # else it may be there, with no device to use it
        assert not cupti.detach()
