"""`grape.pipeline`: what stages do on their streams is in order where it has to be, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo  # optimizers import it, and it wraps functions of torch for good

import grape
from grape.errors import UsageError
from tests.unit.stream_stand_in import FakeStream, Races, streams_of

GPU = torch.device("cuda", 0)


@pytest.fixture
def races(monkeypatch: pytest.MonkeyPatch) -> Iterator[Races]:
    with streams_of(monkeypatch, GPU) as races:
        yield races


def stages() -> list[Callable[[Any], Any]]:
    return [lambda x: (x + 1) * 2, lambda x: (x * 3, x), lambda pair: pair[0].add_(1) + pair[1], lambda x: x]


def test_nothing_is_read_before_it_is_there_nor_overwritten_before_it_was_read(races: Races) -> None:
    for depth in (1, 2, 4, 7):
        p = grape.pipeline(stages(), depth=depth)
        buffer = torch.empty(8)
        for number, result in enumerate(p(buffer.copy_(torch.full((8,), float(n))) for n in range(30))):
            assert result.tolist() == [((number + 1) * 2) * 4 + 1.0] * 8
            result.fill_(-1)
            del result
            torch.zeros(8)
        assert p.serial is None
        p.close()
    assert races.found == []


def test_the_callers_streams_may_change(races: Races) -> None:
    p, kept = grape.pipeline(stages(), depth=3), []
    sides = [FakeStream(GPU), FakeStream(GPU)]
    for number in range(40):
        with torch.cuda.stream(sides[number // 5 % 2]):
            kept += [result.clone() for result in p.push(torch.full((8,), float(number)))]
            torch.zeros(8)
    kept += list(p.drain())
    for side in sides:
        FakeStream.current[GPU].wait_stream(side)
    assert [result[0].item() for result in kept] == [((n + 1) * 2) * 4 + 1.0 for n in range(40)]
    assert races.found == []


def test_samples_overlap(races: Races) -> None:
    """The first stage does not wait for the last one's work on the sample before."""
    clocks: list[list[tuple[FakeStream, dict[FakeStream, int]]]] = [[], []]

    def note(which: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def stage(x: torch.Tensor) -> torch.Tensor:
            stream = FakeStream.current[GPU]
            clocks[which].append((stream, stream.tick()))
            return x + 1

        return stage

    def overlaps(sample: int, ahead: int) -> bool:
        (own, end), (_, start) = clocks[1][sample], clocks[0][sample + ahead]
        return start.get(own, 0) < end[own]

    list(grape.pipeline([note(0), note(1)], depth=3)(torch.ones(4) for _ in range(10)))
    assert not overlaps(0, 1)  # they are looked at
    assert overlaps(5, 1) and overlaps(5, 2)
    assert not overlaps(5, 3)  # no more than the depth
    assert races.found == []


def test_what_was_dropped_is_not_given_away_too_early(races: Races) -> None:
    p = grape.pipeline(stages(), depth=5)
    for number, _ in enumerate(p(torch.ones(8) for _ in range(30))):
        if number == 10:
            break
        torch.zeros(8)
    list(p(torch.ones(8) for _ in range(10)))
    for _ in range(4):
        p.push(torch.ones(8))
    del p
    torch.zeros(8)
    assert races.found == []


def test_behind_an_error(races: Races) -> None:
    def fail(x: torch.Tensor) -> torch.Tensor:
        if failing:
            raise ValueError("here")
        return x + 1

    failing: list[bool] = []
    p = grape.pipeline([*stages(), fail], depth=4)
    for number in range(30):
        if number % 7 == 6:
            failing.append(True)
            with pytest.raises(ValueError, match="here"):
                p.push(torch.ones(8))
            failing.clear()
        else:
            for result in p.push(torch.ones(8)):
                assert result[0].item() == 18
        torch.zeros(8)
    assert races.found == []


def test_a_stage_that_returns_its_state(races: Races) -> None:
    sums = torch.zeros(4) + 0
    p = grape.pipeline([lambda x: sums.add_(x), lambda x: x * 2, lambda x: x], depth=5)
    found = [result[0].item() for result in p(torch.ones(4) for _ in range(20))]
    assert found == [2.0 * (n + 1) for n in range(20)] and p.serial is None
    assert races.found == []


class Recurrent(torch.nn.Module):
    """Its first state is the caller's, who may begin anew."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(4) + 0)
        self.others = [torch.zeros(4) + 0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = self.last * 0.5 + x + self.others[0]
        self.others = [self.others[0] + 1]
        return self.last


def test_a_state_that_the_caller_made_is_kept_until_it_was_read(races: Races) -> None:
    first, state = Recurrent(), torch.zeros(4) + 0

    def second(x: torch.Tensor) -> torch.Tensor:
        nonlocal state
        state = state + x
        return state

    p = grape.pipeline([first, second, lambda x: x + 1], depth=3)
    for number in range(60):
        if number % 10 == 9:
            first.last, state = torch.zeros(4) + 0, torch.zeros(4) + 0
        p.push(torch.ones(4))
        torch.zeros(4)
    assert p.serial is None and races.found == []


def test_stages_that_share_what_one_writes_take_turns(races: Races) -> None:
    sums, kept = torch.zeros(4) + 0, {"skipped": torch.zeros(4), "back": torch.zeros(4) + 0}

    def keep(name: str, value: torch.Tensor) -> torch.Tensor:
        kept[name] = value
        return value

    cases: list[list[Callable[[Any], Any]]] = [
        [lambda x: sums.add_(x) * 1, lambda x: x + 1, lambda x: x + sums],
        [lambda x: keep("skipped", x * 2), lambda x: x + 1, lambda x: x + kept["skipped"]],
        [lambda x: x + kept["back"], lambda x: x + 1, lambda x: keep("back", x * 0.5)],
    ]
    for case in cases:
        p = grape.pipeline(case, depth=4)
        list(p(torch.ones(4) for _ in range(20)))
        assert p.serial is not None and "uses what stage" in p.serial
    assert races.found == []


def test_memory_that_is_only_read_is_no_hindrance(races: Races) -> None:
    weight = torch.ones(4) + 0
    p = grape.pipeline([lambda x: x * weight, lambda x: x + weight, lambda x: x - weight])
    list(p(torch.ones(4) for _ in range(10)))
    assert p.serial is None and races.found == []


def test_a_late_write_is_no_silent_one(races: Races) -> None:
    sums, own, on = torch.zeros(4) + 0, torch.zeros(4) + 0, [False]

    def first(x: torch.Tensor) -> torch.Tensor:
        if on:
            (sums if on[0] else own).add_(x)
        return x + own

    def source() -> Iterator[torch.Tensor]:
        for number in range(20):
            on[:] = {8: [False], 12: [True]}.get(number, [])
            yield torch.ones(4)

    p = grape.pipeline([first, lambda x: x + 1, lambda x: x + sums])
    found = p(source())
    with pytest.raises(UsageError, match=r"stage 0 .* what another stage uses, for the first time, at sample 12"):
        list(found)
    assert p.serial == "stage 0 wrote what another one uses"
    assert len(list(p(torch.ones(4) for _ in range(5)))) == 5


def test_a_stage_that_draws_has_no_graph(races: Races) -> None:
    p = grape.pipeline([lambda x: x + torch.rand(4), lambda x: x * 2])
    torch.manual_seed(0)
    found = list(p(torch.ones(4) for _ in range(20)))
    torch.manual_seed(0)
    assert all(torch.equal(one, (1 + torch.rand(4)) * 2) for one in found)
    assert "it draws random numbers on the GPU" in repr(p)
    assert [stage.plain is not None for stage in p._stages] == [True, False]


def test_streams_are_used_again_by_one_pipeline_at_a_time(races: Races) -> None:
    first, second = grape.pipeline(stages()), grape.pipeline(stages())
    of = [{stage.stream for stage in p._stages} for p in (first, second)]
    assert len(of[0]) == len(of[1]) == 4 and of[0].isdisjoint(of[1])
    first.close()
    third = grape.pipeline(stages())
    assert not of[1] & {stage.stream for stage in third._stages}
    assert third._stages[0].stream not in of[1]


def test_the_detector_finds_races(races: Races) -> None:
    side, here = FakeStream(GPU), FakeStream.current[GPU]
    x = torch.ones(4)
    with torch.cuda.stream(side):
        y = x + 1
    assert len(races.found) == 1
    side.wait_stream(here)
    with torch.cuda.stream(side):
        y = x + 1
    x.add_(1)
    assert len(races.found) == 2
    here.wait_stream(side)
    x.add_(1)
    with torch.cuda.stream(side):
        y.add_(x)
    here.wait_stream(side)
    del x
    with torch.cuda.stream(side):
        y.add_(1)
    assert len(races.found) == 3
    y.mul_(2)
    assert len(races.found) == 4
