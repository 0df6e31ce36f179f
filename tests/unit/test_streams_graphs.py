"""Graphs of segments on the CPU, pretended: what they freeze, when they are made, dropped and made again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo  # optimizers import it, and it wraps functions of torch for good
from torch import Tensor

from grape.streams import Evidence, Settings, Stream, open_stream
from tests.property.stream_cases import CASES, RAISES
from tests.property.stream_programs import flat, needs_compiler

pytestmark = [needs_compiler, pytest.mark.filterwarnings("ignore")]


def agrees(function: Any, **options: Any) -> Evidence:
    torch.manual_seed(1)
    plain = flat(function())
    torch.manual_seed(1)
    stream = open_stream(Settings(device="pretended", **({"settled": 0, "patience": 0, "price": 0} | options)))
    assert isinstance(stream, Stream), stream
    with stream:
        result = function()
    assert flat(result) == plain
    return stream.evidence()


@pytest.mark.parametrize("name", CASES)
def test_programs_of_the_gpu_tests(name: str) -> None:
    evidence = agrees(lambda: CASES[name]("cpu"))
    assert evidence.launched > 0
    assert evidence.raised == RAISES.get(name, 0)
    assert evidence.uncaptured == {}


def test_a_segment_is_captured_once_its_memory_stays() -> None:
    x = torch.ones(4)

    def loop() -> Tensor:
        y = x
        for _ in range(150):
            y = torch.tanh(x * 1.5) - 0.25
        return y

    evidence = agrees(loop, shortest=1, hot=2)
    assert evidence.captured >= 1
    assert evidence.launched > 0.5 * evidence.segments
    assert agrees(loop, shortest=1, hot=2, steady=1000).captured == 0
    assert agrees(loop, shortest=1, hot=2, price=1e9).captured == 0, "its launches have not taken as long as a capture"
    assert agrees(loop, shortest=1, hot=2, price=1e-6).captured >= 1


def test_a_home_that_moved_has_its_segment_captured_again() -> None:  # G1
    kept: list[Tensor] = []

    def body(x: Tensor, keep: bool) -> None:
        y = torch.tanh(x * 1.5)
        if keep:
            kept.append(y)  # the next pass finds its home occupied
        x.add_(y - y.mean())

    def loop() -> list[Tensor]:
        x = torch.linspace(0, 1, 4)
        kept.clear()
        for i in range(120):
            body(x, keep=i == 60)
        return [x, *kept]

    evidence = agrees(loop, shortest=1, hot=2)
    assert evidence.stale >= 1
    assert evidence.captured >= 2
    assert evidence.launched > 0.3 * evidence.segments


def test_who_lives_in_a_home_when_it_is_captured_keeps_its_bytes() -> None:  # G2
    def loop() -> list[Tensor]:
        x, kept = torch.ones(4), []
        for i in range(40):
            kept.append(torch.tanh(x * (1 + i // 20)) + 1)
        return kept

    for steady in range(6):
        agrees(loop, shortest=1, hot=2, steady=steady)


def test_what_a_pass_leaves_to_the_next_is_read_before_its_memory_is_written() -> None:  # G3
    def loop() -> Tensor:
        t = torch.ones(4)
        for _ in range(80):
            t = torch.tanh(t)  # at the next pass what it is given is dead before its home is written
            t = t * 0.9
            t = t + 0.1
            t = torch.sin(t)
        return t

    evidence = agrees(loop, shortest=1, hot=2)
    assert evidence.launched > 0
    assert (evidence.captured, evidence.stale) == (1, 0)


def test_captures_end_where_memory_never_stays() -> None:
    def loop() -> list[Any]:
        xs = [torch.full((4,), 0.1 * i) for i in range(200)]
        return [torch.tanh(x * 2) for x in xs]

    assert agrees(loop, shortest=1, hot=2, steady=0, captures=1).captured <= 4


def test_without_a_cuda_device_there_is_no_stream_of_one() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    refused = open_stream(Settings(device="cuda"))
    assert not isinstance(refused, Stream)
    assert refused.reason == "there is no CUDA device"
