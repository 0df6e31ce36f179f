"""Graphs with branches on the tape, which runs steps in the worst order that a plan allows (`--grape-random N`)."""

from __future__ import annotations

import random

import pytest
import torch

import grape
from grape.model.overlap import OverlapPlan, plan_overlap
from grape.runtime.capture.running import in_step
from tests.property.branching import branching

PROGRAMS = 25
CALLS = 14


@pytest.mark.usefixtures("without_gradients")
def test_random_functions_agree_bit_by_bit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[OverlapPlan | None] = []

    def planned(*args: object) -> OverlapPlan | None:
        plans.append(plan_overlap(*args))  # type: ignore[arg-type]
        return plans[-1]

    monkeypatch.setattr(in_step, "plan_overlap", planned)
    more = int(request.config.getoption("--grape-random"))
    draw, graphed = random.Random() if more else random.Random(7), 0
    for _ in range(more or PROGRAMS):
        source, function = branching(draw, torch.device("cpu"), draw.choice((20, 40, 80)))
        served = grape.graph(function, device="cpu")
        for _ in range(CALLS):
            x = torch.randn(8, 8)
            for mine, theirs in zip(function(x), served(x), strict=True):
                assert torch.equal(mine.nan_to_num(7), theirs.nan_to_num(7)), source
        evidence = served.evidence()
        assert evidence is not None
        graphed += evidence.replays > 0
        served.release()
    assert graphed > 0.9 * (more or PROGRAMS)
    assert sum(plan is not None for plan in plans) > 0.5 * len(plans)
