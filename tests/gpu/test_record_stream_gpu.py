"""Results handed out in place and used on another stream: `record_stream` keeps what the allocator would have kept."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch
from torch import nn

import grape
from grape.runtime.accounts import policy
from grape.runtime.accounts.policy import decide


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(512, 512) for _ in range(4)])

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            h = torch.tanh(layer(h))
        return h


@pytest.fixture
def capture_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "decide", lambda estimate: replace(decide(estimate), action="capture"))
    monkeypatch.setattr(policy, "FEW", 1)


def watched() -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key("aten::record_stream", "BackendSelect"))


def run(step: nn.Module, side: torch.cuda.Stream, calls: int) -> list[torch.Tensor]:
    """Each state is read on a side stream that is far behind, then dropped."""
    generator = torch.Generator("cuda").manual_seed(0)
    h = torch.randn(256, 512, device="cuda", generator=generator)
    sums = [torch.zeros((), device="cuda") for _ in range(calls)]
    for index in range(calls):
        h = step(h)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
            sums[index].copy_(h.double().sum())
        h.record_stream(side)
    torch.cuda.synchronize()
    return sums


def test_a_result_in_use_on_another_stream_is_not_overwritten(capture_at_once: None) -> None:
    gc.collect()  # stores of earlier tests hold the kernel too
    assert not watched()
    step, side = Step().cuda().eval(), torch.cuda.Stream()
    with torch.no_grad():
        expected = run(step, side, 40)
        try:
            with grape.session(profile=False) as session:
                found = run(step, side, 40)
            found += run(step, side, 40)
        finally:
            from grape.sessions import close_engine

            close_engine()
    report = session.report
    assert report is not None and any(one.replays for one in report.regions)
    assert [a.item() for a in found] == [a.item() for a in expected] * 2
    assert not watched() and "record_stream" not in vars(torch.Tensor)
