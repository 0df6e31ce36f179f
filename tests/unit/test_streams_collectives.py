"""What collectives rely on, in one process: memory beside what is written, versions of views of one bucket, backends
and futures that see what is pending.
"""

from __future__ import annotations

import _thread
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from grape.streams import Stream, open_stream
from tests.property.stream_programs import device, flat, needs_compiler  # noqa: F401
from tests.unit.test_streams_contract import EAGER_TO_MATCH, agrees, under_a_stream

pytestmark = needs_compiler


@pytest.mark.parametrize("part", ["half", "columns", "every third", "one"])
def test_memory_beside_what_is_written_is_not_written(part: str) -> None:
    """E6: a thread without the key, as a backend's is, writes there while a segment runs."""
    large = torch.randn(400, 400)

    def other(x: Tensor) -> Tensor:
        rest = x[128:]
        return {"half": rest, "columns": rest.view(16, 8)[:, 2:5], "every third": rest[::3], "one": rest[70]}[part]

    def loop() -> list[Tensor]:
        kept = []
        for _ in range(20):
            x = torch.ones(256) * 1.0
            kept.append(x)  # so that the next one lies elsewhere
            x.sum().item()
            done: list[bool] = []

            def write(x: Tensor = x, done: list[bool] = done) -> None:
                time.sleep(0.002)
                x[:128].fill_(7)
                done.append(True)

            _thread.start_new_thread(write, ())
            rest = other(x)
            rest.add_(1)
            y = large
            for _ in range(4):
                y = (y @ large).tanh()
            rest.mul_(0.5)
            rest.sum().item()
            while not done:
                time.sleep(0.0005)
            x.mul_(0.5).add_(0.25)
            x.sum().item()
        return kept

    agrees(loop)


def test_lists_of_views_count_their_version_as_without_a_stream() -> None:
    def loop() -> list[Any]:
        x = torch.ones(64)
        views = [x[:16], x[16:32], x[32:]]
        other = torch.ones(8)
        for _ in range(30):
            torch._foreach_mul_([*views, other], 0.9)
            torch._foreach_add_([*views, other], 0.1)
            x.sum().item()
        return [x, other, x._version, other._version]

    agrees(loop)


@pytest.fixture
def backend() -> Iterator[Any]:
    """Of a group with one rank."""
    if not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("torch without gloo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD._get_backend(torch.device("cpu"))
    dist.destroy_process_group()


def test_a_backend_by_itself_sees_what_is_pending(backend: Any) -> None:
    """E7: its methods are no operators."""

    def loop() -> list[Tensor]:
        kept = []
        for x in torch.arange(160.0).view(20, 8):
            given, got = torch.tanh(x * 1.5), torch.empty(8)
            backend.allgather([[got]], [given]).wait()
            kept.append(got + 0.25)
        return kept

    agrees(loop)


@pytest.mark.parametrize("part", ["one row", "one column", "windows with gaps", "in a list"])
def test_what_was_expanded_is_written_back_where_its_memory_moves(part: str) -> None:
    """`fill_` and `zero_` take tensors whose elements share memory; `copy_` does not."""

    def write(x: Tensor) -> None:
        if part == "one row":
            x[:1].expand(8, 6).fill_(2.5)
        elif part == "one column":
            x[:, 2:3].expand(8, 6).zero_()
        elif part == "windows with gaps":
            x.as_strided((2, 2, 2), (1, 1, 5)).fill_(0.5)  # as many elements as bytes from the first to the last
        else:
            torch._foreach_zero_([x[:1].expand(4, 6), x[2:3, :1].expand(4, 6)])

    def loop() -> list[Any]:
        moving = [torch.full((8, 6), float(i)) for i in range(7)]
        kept = []
        for i in range(40):
            x = moving[i % 7]
            write(x)
            x[5].mul_(0.5)
            kept.append(x.tanh() + 1)
        return [moving, kept[::7]]

    agrees(loop)


def test_a_callback_of_a_future_sees_what_is_pending(backend: Any) -> None:
    """E7: it runs on a thread without the key, for the exchange takes longer than to ask for it."""
    large, copy, xs = torch.ones(1 << 21), torch.empty(1 << 21), torch.randn(60, 8)

    def loop() -> list[Tensor]:
        kept = []
        for x in xs:
            work = dist.all_gather([copy], large, async_op=True)
            scale = torch.tanh(x * 1.5)
            got = work.get_future().then(lambda _, scale=scale: scale.clone()).wait()
            kept.append(got + 0.25)
        return kept

    plain, served = flat(loop()), []
    for _ in range(5):
        result, evidence = under_a_stream(loop)
        assert flat(result) == plain
        served.append(evidence.matched)
    assert any(served), "and now and then the thread is too early for anything to be served"


def test_long_lists_are_recorded_in_time_that_grows_as_they_do() -> None:
    """Of views that share a version counter, and of results."""
    views, apart = list(torch.ones(12_000, 4).unbind()), [torch.ones(3) for _ in range(12_000)]

    def loop() -> None:
        for _ in range(6):
            torch._foreach_mul_(views, 0.9)
            torch._foreach_add_(views, 0.1)
            torch._foreach_mul(apart, 0.9)

    _, evidence = under_a_stream(loop)
    assert evidence.matched > 0
    assert evidence.record_ns < 1e9  # about 0.05 s; it was 5 s


@pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="torch without gloo")
def test_a_barrier_of_a_backend_by_itself_comes_behind_what_is_pending() -> None:
    """E7, as for its other methods."""
    untyped: Any = dist
    backend = untyped.ProcessGroupGloo(untyped.HashStore(), 0, 1, timedelta(seconds=10))
    stream = open_stream(EAGER_TO_MATCH)
    assert isinstance(stream, Stream), stream
    with stream:
        x = torch.ones(4)
        for _ in range(20):
            x = (x * 0.9 + 0.1).tanh()
        y = x * 0.9 + 0.1
        before = stream.counts()
        backend.barrier().wait()
        behind = stream.counts()
    assert before.issued < before.matched == behind.issued
    assert y.shape == (4,)
