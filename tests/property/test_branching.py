"""Graphs with branches on the tape, which runs steps in the worst order that a plan allows (`--grape-random N`)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import grape
from grape.model.overlap import OverlapPlan, plan_overlap
from grape.runtime.capture.running import in_step
from tests.property.branching import branching
from tests.property.branching_memory import PROGRAMS as MEMORY

PROGRAMS = 25
CALLS = 14


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[OverlapPlan | None]:
    made: list[OverlapPlan | None] = []

    def planned(*args: object) -> OverlapPlan | None:
        made.append(plan_overlap(*args))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(in_step, "plan_overlap", planned)
    return made


@pytest.mark.usefixtures("without_gradients")
def test_random_functions_agree_bit_by_bit(request: pytest.FixtureRequest, plans: list[OverlapPlan | None]) -> None:
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


@pytest.mark.usefixtures("without_gradients")
@pytest.mark.parametrize("function", MEMORY, ids=lambda function: function.__name__)
def test_memory_that_no_operator_gives_back(
    function: Callable[[torch.Tensor], torch.Tensor], plans: list[OverlapPlan | None]
) -> None:
    served = grape.graph(function, device="cpu")
    for _ in range(CALLS):
        x = torch.randn(8, 8)
        assert torch.equal(function(x), served(x))
    evidence = served.evidence()
    assert evidence is not None and evidence.replays > 0 and None not in plans
    served.release()


@pytest.mark.usefixtures("without_gradients")
def test_branches_that_are_wrong_are_captured_as_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_waits(*args: object) -> OverlapPlan | None:
        plan = plan_overlap(*args)  # type: ignore[arg-type]
        return plan and replace(plan, waits={})

    monkeypatch.setattr(in_step, "plan_overlap", without_waits)
    _, function = branching(random.Random(3), torch.device("cpu"), 80)
    served = grape.graph(function, device="cpu")
    for _ in range(3 * CALLS):
        x = torch.randn(8, 8)
        assert all(map(torch.equal, function(x), served(x)))
    evidence = served.evidence()
    assert evidence is not None and evidence.replays > 0 and evidence.refused is None


@pytest.mark.usefixtures("without_gradients")
def test_what_is_held_is_no_other_reference() -> None:
    """With deterministic algorithms `index_add` goes another way where somebody else refers to the fresh zeros."""
    layers = [torch.randn(8, 8) for _ in range(4)]
    source, target = torch.randint(0, 6, (2, 20))

    def work(x: torch.Tensor) -> torch.Tensor:
        for weight in layers:
            sent = torch.relu(x @ weight)[source] * 2
            received = torch.zeros_like(x).index_add(0, target, sent)
            count = torch.zeros(6, 1).index_add(0, target, torch.ones(20, 1))
            x = x + received / count.clamp(min=1)
        return x

    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        served = grape.graph(work, device="cpu")
        for _ in range(2 * CALLS):
            x = torch.randn(6, 8)
            assert torch.equal(work(x), served(x))
    finally:
        torch.use_deterministic_algorithms(before)
    evidence = served.evidence()
    assert evidence is not None and evidence.replays > 0
