"""What stands for one CUDA graph of torch's."""

from __future__ import annotations

from typing import Any

import pytest

from grape.runtime.backends.cuda.graph import CudaGraph


class Meter:
    def nbytes(self, nodes: int) -> int:
        return nodes

    def freed(self, nodes: int) -> None: ...


class Graph:
    """As torch's, whose methods operator streams exchange while they are open."""

    def replay(self) -> None: ...

    def reset(self) -> None: ...


def test_a_stream_that_opens_after_the_capture_is_told_of_each_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    graph: Any = CudaGraph(Graph(), 3, Meter())  # type: ignore[arg-type]
    told: list[Graph] = []
    monkeypatch.setattr(Graph, "replay", lambda self: told.append(self))
    graph.replay()
    assert len(told) == 1
    monkeypatch.undo()
    graph.replay()
    assert len(told) == 1


def test_what_was_released_does_not_replay() -> None:
    graph = CudaGraph(Graph(), 3, Meter())  # type: ignore[arg-type]
    graph.release()
    with pytest.raises(RuntimeError, match="released"):
        graph.replay()
