"""What is made ready for a capture. Here a stand-in is the device, and the session where nothing has to be matched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from grape.streams import Settings, Stream, captures, open_stream, session, shared
from tests.property.stream_programs import needs_compiler

GPU = torch.device("cuda", 0)
SETTINGS = Settings(device="pretended", shortest=8, hot=2, settled=0, patience=0, price=0, doubt=0)


class Asked(Exception):
    pass


@pytest.fixture
def of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., captures.Captures]]:
    monkeypatch.setattr(captures, "private_stream", lambda *_: object())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: object())
    yield lambda **wanted: captures.Captures(SimpleNamespace(**wanted), GPU)
    captures._are_split.cache_clear()


def chunks(
    of: Callable[..., captures.Captures], monkeypatch: pytest.MonkeyPatch, size: int, *, most: int = -1, room: int = 99
) -> list[int]:
    got: list[int] = []

    def storage(size: int, *, device: torch.device) -> object:
        if len(got) == room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        got.append(size)
        return object()

    monkeypatch.setattr(torch, "UntypedStorage", storage)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda _: {"max_split_size": most})
    captures._are_split.cache_clear()
    of(bytes_wanted=lambda largest: size if largest == captures.LARGEST else 0)._reserve()
    return got


def test_large_results_are_cut_from_chunks(
    of: Callable[..., captures.Captures], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = captures.CHUNK
    assert chunks(of, monkeypatch, 0) == []
    assert chunks(of, monkeypatch, 2 * whole + 5) == [whole, whole, 5]
    assert chunks(of, monkeypatch, 2 * whole + 5, room=1) == [whole], "each by itself may have room"


def test_but_not_where_the_allocator_keeps_large_blocks_whole(
    of: Callable[..., captures.Captures], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`max_split_size_mb`: a chunk would hold nothing, and be kept."""
    assert chunks(of, monkeypatch, 5, most=captures.CHUNK) == []
    assert chunks(of, monkeypatch, 5, most=captures.CHUNK + 1) == [5]


def test_a_workspace_that_torch_gave_back_is_made_again_before_the_next_capture(
    of: Callable[..., captures.Captures], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: made.append("given back"), raising=False)
    given_back = torch._C._cuda_clearCublasWorkspaces
    monkeypatch.setattr(captures, "make_handle", lambda device, stream: made.append("handle"))
    monkeypatch.setattr(captures, "warm_products", lambda device, stream, kinds: made.append(kinds))
    kinds = [None, None, torch.bfloat16, torch.float32]
    ready = of(kind_wanted=lambda: kinds.pop(0))
    for _ in range(5):
        ready._prepare()
    assert made == ["handle", "handle", (torch.bfloat16,)], "a thread is made ready once"
    torch._C._cuda_clearCublasWorkspaces()
    ready._prepare()
    assert made[3:] == ["given back", (torch.float32,)]
    ready.close()
    assert torch._C._cuda_clearCublasWorkspaces is given_back


@pytest.fixture
def ready(of: Callable[..., captures.Captures], monkeypatch: pytest.MonkeyPatch) -> captures.Captures:
    """To capture what a function launches."""
    graph = SimpleNamespace(instantiate=lambda: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", SimpleNamespace(capture_begin=None, capture_end=None))
    found: Any = of(refused=lambda why: None, dropped=list)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda **_: graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(captures, "warm_products", lambda *_, **__: None)
    found._begin = found._end = found._recover = lambda *_, **__: None
    found._stream = found._deferred_on = SimpleNamespace(wait_stream=lambda _: None)
    return cast(captures.Captures, found)


def test_one_thread_captures_at_a_time(ready: captures.Captures, monkeypatch: pytest.MonkeyPatch) -> None:
    why: list[str] = []
    monkeypatch.setattr(ready._session, "refused", why.append)

    def inside() -> int:
        with pytest.raises(RuntimeError, match="another capture"):
            ready.call(lambda: 1)
        ready.capture()
        return 2

    assert ready.call(inside)[1] == 2 and why == ["another capture has not ended"]
    assert ready.call(lambda: 3)[1] == 3


def test_a_person_who_stops_a_capture_is_heard(ready: Any) -> None:
    def broken(graph: object) -> None:
        raise RuntimeError("operation failed due to a previous error during capture")

    def stopped() -> None:
        raise KeyboardInterrupt

    ready._end = broken
    with pytest.raises(KeyboardInterrupt):
        ready.call(stopped)
    with pytest.raises(RuntimeError, match="previous error"):
        ready.call(lambda: 1 / 0)


@needs_compiler
def test_what_a_segment_wants() -> None:
    """Of numbers of one byte, which only operators of their own multiply, cuBLAS would refuse the products that make it
    ready, and the segment would run as written for good.
    """
    eighths = torch.ones(16, 32).to(torch.float8_e4m3fn)
    half, large, one = torch.ones(16, 16).bfloat16(), torch.ones(1100, 1024), torch.ones(())

    def wanted(operator: Callable[[], torch.Tensor]) -> tuple[object, int, int]:
        stream = open_stream(SETTINGS)
        assert isinstance(stream, Stream), stream
        asked = []

        def ask() -> None:
            asked.append((stream._session.kind_wanted(), *map(stream._session.bytes_wanted, (1 << 20, 1 << 30))))
            raise Asked

        stream._session.on_capture(ask)
        with suppress(Asked), stream:
            for _ in range(40):
                for _ in range(16):
                    result = operator()
                result.sum().item()
        return asked[0]

    kind, small_bytes, large_bytes = wanted(large.sin)
    assert kind is None and small_bytes == 0
    assert large_bytes >= 8 * 5 << 20 and large_bytes % (5 << 20) == 0, "a megabyte begun is one"
    assert wanted(lambda: half @ half) == (torch.bfloat16, 0, 0)
    product = torch._scaled_mm
    assert wanted(lambda: product(eighths, eighths.t(), one, one, out_dtype=torch.float32))[0] is torch.float32


@needs_compiler
def test_a_cell_finds_no_stream_that_knows_nothing_and_defers_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a cell of imports chose the device in its last line."""
    device, current = 0, "a stream"
    monkeypatch.setattr(session, "own_device", lambda: device)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: current)
    for elsewhere in ((1, "a stream"), (0, "another stream")):
        device, current = 0, "a stream"
        shared.hold("a test")
        try:
            shared.enter(None)
            stream = shared.stream
            assert stream is not None
            stream._cuda, stream._defers_on = GPU, current
            shared.leave()
            shared.begin_here()
            assert shared.stream is stream and stream.is_open
            device, current = elsewhere
            shared.begin_here()
            assert shared.stream is None and not stream.is_open
        finally:
            shared.release("a test")
