"""Whatever Grape captures on is no stream that torch hands out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import grape
from grape.profiling.calibration import CudaBench
from grape.profiling.private_streams import private_stream
from grape.streams import Settings, Stream, open_stream
from tests.property.stream_programs import needs_compiler


@pytest.fixture
def captured_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """The streams on which captures begin."""
    found: set[int] = set()
    begin = torch.cuda.CUDAGraph.capture_begin

    def capture_begin(self: torch.cuda.CUDAGraph, *args: Any, **kwargs: Any) -> None:
        found.add(torch.cuda.current_stream().cuda_stream)
        begin(self, *args, **kwargs)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", capture_begin)
    yield found
    monkeypatch.undo()
    of_torch = {torch.cuda.Stream(priority=priority).cuda_stream for priority in (0, -1) for _ in range(64)}
    assert len(of_torch) == 64, "torch hands out others than 32 of each priority: this test has to ask for all"
    assert found and not found & of_torch


def in_regions(function: Callable[[Tensor], Tensor]) -> int:
    served = grape.graph(function)
    x = torch.randn(32, 64, device="cuda")
    served(x)
    assert served._region is not None
    served._region.context.unhurried, served._region.context.weighs = True, False
    with torch.no_grad():
        for _ in range(60):
            served(x)
    evidence = served.evidence()
    served.release()
    return evidence.replays if evidence is not None else 0


def chain(*last: nn.Module) -> nn.Sequential:
    """Enough small kernels that a graph of them is worth its launch."""
    return nn.Sequential(*(layer for _ in range(20) for layer in (nn.Linear(64, 64), nn.Tanh())), *last).cuda()


def test_of_regions(captured_on: set[int]) -> None:
    with torch.no_grad():
        assert in_regions(chain().eval()) > 0


def test_of_regions_that_draw(captured_on: set[int]) -> None:
    with torch.no_grad():
        assert in_regions(chain(nn.Dropout(0.5))) > 0


@needs_compiler
def test_of_streams(captured_on: set[int]) -> None:
    with open_stream(Settings(device="cuda", shortest=1, hot=2, settled=0, patience=0, price=0, doubt=0)) as stream:
        assert isinstance(stream, Stream)
        x = torch.ones(64, 64, device="cuda")
        for _ in range(60):
            x = torch.tanh(x * 1.5 + 0.25) - x.mean()
    assert stream.evidence().captured > 0


def test_of_pipelines(captured_on: set[int]) -> None:
    stages = grape.pipeline([chain().eval() for _ in range(4)])
    with torch.no_grad():
        assert len(list(stages(torch.randn(32, 64, device="cuda") for _ in range(150)))) == 150
    stages.close()


def test_of_what_measures_the_machine(captured_on: set[int]) -> None:
    assert CudaBench(torch.device("cuda", torch.cuda.current_device())).replay_us(8) > 0


def test_each_use_has_one_and_keeps_it() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    one, other = private_stream(device, "a test"), private_stream(device, "another test")
    assert one != other and private_stream(device, "a test") == one
    with torch.cuda.stream(one):
        x = torch.ones(1, device=device).add_(1)  # kernels are loaded before, which may wait for the device
    one.synchronize()
    torch.cuda._sleep(200_000_000)
    with torch.cuda.stream(one):
        x.add_(1)
    one.synchronize()
    assert not torch.cuda.current_stream().query(), "it waits for the default stream"
    assert x.item() == 3
