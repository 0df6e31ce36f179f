"""Graphs with branches: operators that need nothing of each other run at once, and give the same bits."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch._dynamo  # it wraps functions of torch for good
from torch import nn

import grape
from grape.model.overlap import Overlapped
from grape.profiling import TimelineRecorder
from grape.render.timeline.columns import Strings, pack
from grape.runtime import GraphedFunction
from grape.runtime.backends.cuda.branching import ordering
from tests.property.branching import branching

pytestmark = pytest.mark.usefixtures("without_gradients")
PROGRAMS = 60


class Experts(nn.Module):
    def __init__(self, width: int = 256, experts: int = 8) -> None:
        super().__init__()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)) for _ in range(experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([expert(x) for expert in self.experts]).sum(0)


def eager_to_capture(function: Callable[..., object], *examples: torch.Tensor) -> GraphedFunction:
    """Captures as soon as it can, whatever that costs, and replays whatever that gains."""
    served = grape.graph(function)
    served(*examples)
    assert served._region is not None
    served._region.context.unhurried, served._region.context.weighs = True, False
    return served


def overlapped(served: GraphedFunction) -> Overlapped | None:
    assert served._region is not None
    return served._region.captures.overlapped


def agrees(plain: object, served: GraphedFunction, calls: int = 60) -> None:
    assert callable(plain)
    for _ in range(calls):
        x = torch.randn(32, 256, device="cuda")
        assert torch.equal(plain(x), served(x))


def test_branches_that_pay_are_kept() -> None:
    model = Experts().cuda().eval()
    served = eager_to_capture(model, torch.randn(32, 256, device="cuda"))
    agrees(model, served)
    found = overlapped(served)
    assert found is not None and found.applied and found.lanes > 2
    assert found.branched_ms < found.chained_ms / ordering.AT_LEAST
    evidence = served.evidence()
    assert evidence is not None and evidence.replays > 20


def test_branches_that_do_not_pay_are_captured_as_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "AT_LEAST", 1e9)
    model = Experts().cuda().eval()
    served = eager_to_capture(model, torch.randn(32, 256, device="cuda"))
    agrees(model, served)
    evidence = served.evidence()
    assert overlapped(served) is None and evidence is not None and evidence.replays > 10


def test_several_shapes_share_what_they_may() -> None:
    model = Experts().cuda().eval()
    served = eager_to_capture(model, torch.randn(32, 256, device="cuda"))
    for _ in range(40):
        for rows in (8, 16, 24):
            x = torch.randn(rows, 256, device="cuda")
            assert torch.equal(model(x), served(x))
    evidence = served.evidence()
    assert evidence is not None and evidence.replays > 15


def test_random_functions_agree_bit_by_bit(request: pytest.FixtureRequest) -> None:
    more = int(request.config.getoption("--grape-random"))
    draw, graphed, branched = random.Random() if more else random.Random(7), 0, 0
    for _ in range(more or PROGRAMS):
        source, function = branching(draw, torch.device("cuda"), draw.choice((20, 40, 80)))
        served = eager_to_capture(function, torch.randn(8, 8, device="cuda"))
        for _ in range(40):
            x = torch.randn(8, 8, device="cuda")
            for mine, theirs in zip(function(x), served(x), strict=True):
                assert torch.equal(mine.nan_to_num(7), theirs.nan_to_num(7)), source
        evidence, found = served.evidence(), overlapped(served)
        graphed += evidence is not None and evidence.replays > 0
        branched += found is not None and found.applied
        served.release()
    print(f"{graphed} graphed, {branched} with branches, of {more or PROGRAMS}")
    assert graphed > 0.9 * (more or PROGRAMS)
    assert branched > 0.2 * (more or PROGRAMS)


def test_work_without_an_operator_ends_the_branches() -> None:
    triton = pytest.importorskip("triton")
    language = pytest.importorskip("triton.language")

    @triton.jit
    def double(pointer, size: language.constexpr):  # type: ignore[no-untyped-def]
        where = pointer + language.arange(0, size)
        language.store(where, 2 * language.load(where))

    model = Experts().cuda().eval()

    def work(x: torch.Tensor) -> torch.Tensor:
        hidden = model(x)
        double[(1,)](hidden, 256)
        return model(hidden)

    served = eager_to_capture(work, torch.randn(32, 256, device="cuda"))
    agrees(work, served, calls=60)
    found = overlapped(served)
    assert found is None or not found.applied


def test_a_stream_of_the_person_ends_the_branches() -> None:
    model, beside = Experts().cuda().eval(), torch.cuda.Stream()

    def work(x: torch.Tensor) -> torch.Tensor:
        hidden = model(x)
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            other = hidden * 2
        torch.cuda.current_stream().wait_stream(beside)
        return model(hidden) + other

    served = eager_to_capture(work, torch.randn(32, 256, device="cuda"))
    agrees(work, served, calls=60)


def test_the_timeline_shows_branches_beside_each_other() -> None:
    model = Experts().cuda().eval()
    served = eager_to_capture(model, torch.randn(32, 256, device="cuda"))
    agrees(model, served)
    found = overlapped(served)
    assert found is not None and found.applied
    x = torch.randn(32, 256, device="cuda")
    recorder = TimelineRecorder(x.device)
    recorder.start()
    for _ in range(3):
        served(x)
    recorder.stop()
    timeline = recorder.timeline()
    assert timeline is not None, recorder.unavailable
    rows = pack(timeline, Strings(), limit=10_000).rows
    assert len([row for row in rows if row.lane not in ("lines", "host", "launch") and row.count > 3]) > 1


def test_functions_on_several_streams_come_one_after_the_other() -> None:
    """Their graphs name the same workspaces of cuBLAS."""
    models = [Experts().cuda().eval() for _ in range(2)]
    x = torch.randn(32, 256, device="cuda")
    streams = [torch.cuda.Stream() for _ in models]
    served = []
    for model, stream in zip(models, streams, strict=True):
        with torch.cuda.stream(stream):
            served.append(eager_to_capture(model, x))
    for _ in range(60):
        x = torch.randn(32, 256, device="cuda")
        torch.cuda.synchronize()
        found = []
        for function, stream in zip(served, streams, strict=True):
            with torch.cuda.stream(stream):
                found.append([function(x).clone() for _ in range(3)])
        torch.cuda.synchronize()
        for model, results in zip(models, found, strict=True):
            plain = model(x)
            assert all(torch.equal(plain, one) for one in results)
    assert all(one.evidence().replays > 50 for one in served), served  # type: ignore[union-attr]
