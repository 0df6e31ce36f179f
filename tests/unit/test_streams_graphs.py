"""Graphs of segments on the CPU, pretended: what they freeze, when they are made, dropped and made again."""

from __future__ import annotations

import random
import statistics
import sys
import time
from dataclasses import fields
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch._dynamo  # optimizers import it, and it wraps functions of torch for good
from torch import Tensor, nn

from grape.streams import Evidence, Settings, Stream, open_stream
from tests.property.stream_cases import CASES, RAISES
from tests.property.stream_programs import flat, needs_compiler

pytestmark = [needs_compiler, pytest.mark.filterwarnings("ignore")]


def agrees(function: Any, **options: Any) -> Evidence:
    torch.manual_seed(1)
    plain = flat(function())
    torch.manual_seed(1)
    stream = open_stream(
        Settings(device="pretended", **({"settled": 0, "patience": 0, "price": 0, "doubt": 0} | options))
    )
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


def test_nothing_is_deferred_before_it_has_taken_as_long_as_its_captures() -> None:
    def loop() -> Tensor:
        y = torch.ones(4)
        for _ in range(150):
            y = torch.tanh(y * 1.5) - 0.25
        return y

    dear = agrees(loop, shortest=1, hot=2, price=1e9)
    assert (dear.matched, dear.captured, dear.bytes) == (0, 0, dear.bytes)
    assert dear.written["not worth a capture yet"] > 300
    soon = agrees(loop, shortest=1, hot=2, price=0.003)
    assert soon.captured >= 1 and soon.written["not worth a capture yet"] > 0


def test_operators_that_take_longer_have_sooner_taken_as_long_as_their_captures() -> None:
    def unearned(size: int) -> int:
        def loop() -> Tensor:
            y = torch.full((size, size), 0.5)
            for _ in range(300):
                y = torch.tanh(y @ y)
            return y

        return agrees(loop, shortest=1, hot=2, price=0.02).written["not worth a capture yet"]

    # 18 us of an operator against 5, where no other process comes in between.
    assert min(unearned(256) for _ in range(2)) < 0.6 * max(unearned(2) for _ in range(2))


def test_what_is_slower_than_code_as_written_serves_no_more() -> None:
    """On the CPU it always is: a pretended graph computes everything and copies it."""

    def loop() -> list[Tensor]:
        x = torch.ones(256, 256)
        for _ in range(400):
            x = torch.tanh(x * 1.5)
            x = torch.roll(x, 1) - x.mean()
        return [x]

    for _ in range(5):  # by the clock: another process may come in between the laps that are compared
        evidence = agrees(loop, shortest=1, hot=2, doubt=4)
        if evidence.lost:
            break
    assert evidence.lost >= 1
    assert evidence.matched < 0.8 * evidence.seen
    assert 2 * 4 <= evidence.doubted <= evidence.written["nothing recorded yet"], "two laps tell, or more"
    never = agrees(loop, shortest=1, hot=2)
    assert never.matched > 0.8 * evidence.seen and never.doubted == 0


def test_an_iteration_is_recorded_around_its_inner_loop() -> None:
    """The loop inside repeats first, for longer than it takes to be believed."""

    def loop() -> list[Any]:
        cell, out = nn.Linear(16, 16), nn.Linear(16, 4)
        optimizer = torch.optim.SGD([*cell.parameters(), *out.parameters()], 0.01)
        xs, losses = torch.randn(30, 100, 16), []
        for x in xs:
            h, loss = torch.zeros(1, 16), torch.zeros(())
            optimizer.zero_grad()
            for t in range(100):
                h = torch.tanh(cell(h + x[t]))
                loss = loss + out(h).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    evidence = agrees(loop, settled=1000)
    assert evidence.issued > 35 * evidence.segments  # 22 without


def test_what_costs_more_than_it_may_rests() -> None:
    """Pretended graphs copy everything, so every served lap is slower than as written."""

    def loop() -> list[Tensor]:
        x = torch.ones(512, 512)
        for _ in range(400):
            x = torch.roll(x, 1) + 1
            x = torch.roll(x, 1) - 1
        return [x]

    tries = [agrees(loop, shortest=1, hot=2, price=0.003) for _ in range(3)]  # other processes come in between
    evidence = min(tries, key=lambda one: one.saved_ns)
    assert evidence.saved_ns < 0 < evidence.rested
    assert evidence.matched < 0.8 * evidence.seen
    free = agrees(loop, shortest=1, hot=2)
    assert (free.rested, free.matched > evidence.matched) == (0, True)


@pytest.mark.parametrize("rests_ms", [0, 2])
def test_the_time_saved_is_that_of_laps_as_written(rests_ms: int) -> None:
    """Where nothing is computed, a served lap takes next to nothing. What Python does in between is no part of it: a
    loader takes now this long, now that.
    """
    rest = random.Random(0)

    def loop() -> float:
        x, times = torch.full((128, 128), 0.5), []
        for _ in range(300):
            begun = time.perf_counter()
            for _ in range(4):
                x = torch.tanh(x @ x)
            times.append(time.perf_counter() - begun)
            if rests_ms:
                time.sleep(rest.random() * rests_ms / 1e3)
        return statistics.median(times) * 1e9

    for settings in ({"price": 0.003}, {"doubt": 32}):  # it was timed before it served, and in between
        at_once: dict[str, Any] = {"shortest": 1, "hot": 2, "settled": 0, "patience": 0, "price": 0, "doubt": 0}
        stream = open_stream(Settings(device="pretended", issue=False, **at_once | settings))
        assert isinstance(stream, Stream), stream
        before_ns = loop()
        with stream:
            loop()
        lap_ns, evidence = sorted([before_ns, loop()]), stream.evidence()
        laps = evidence.timed / 8
        assert laps > 50
        assert 0.25 * laps * lap_ns[0] < evidence.saved_ns < 4 * laps * lap_ns[1]  # other processes come in between


TIMED: dict[str, Any] = {"shortest": 1, "hot": 2, "settled": 0, "patience": 0, "price": 0.003, "doubt": 0}


def timed_stream(**settings: Any) -> Stream:
    """Which issues nothing, and times what its loops take as written before it serves them."""
    stream = open_stream(Settings(device="pretended", issue=False, **TIMED | settings))
    assert isinstance(stream, Stream), stream
    return stream


def wait(ms: float) -> None:
    """In a function that is known to wait for the device."""
    torch.zeros(1).apply_(lambda value: time.sleep(ms / 1e3) or value)


def steps(number: int, *, wait_ms: float = 0.0, wait_at: int | None = None) -> None:
    x = torch.full((128, 128), 0.5)
    for i in range(number):
        x = torch.tanh(x @ x)
        wait(wait_ms if wait_at in (None, i) else 0.0)


def test_waiting_outside_of_operators_is_part_of_a_lap() -> None:
    """As in `torch.cuda.synchronize`: a step that only waits longer there, as it is issued sooner, saves nothing."""

    def saves(wait_ms: float) -> float:
        with timed_stream() as stream:
            steps(300)  # what it takes as written is timed
            steps(300, wait_ms=wait_ms)
        return stream.evidence().saved_ns

    assert any(saves(0.3) < saves(0.0) - 200 * 0.1e6 for _ in range(3))  # other processes come in between


def test_a_wait_that_comes_seldom_is_told_apart() -> None:
    """Code as written waits there, too, and no lap of it was timed that did."""
    with timed_stream() as stream:
        steps(300)
        before = stream.evidence()
        steps(100, wait_ms=300.0, wait_at=50)
    found = stream.evidence().since(before)
    assert found.saved_ns > 0 and found.waits_ns > 200e6


def test_what_happens_in_a_pause_belongs_to_no_lap() -> None:
    with timed_stream() as stream:
        steps(300)
        before = stream.evidence()
    for _ in range(3):
        wait(300.0)
        with stream:
            steps(20)
    found = stream.evidence().since(before)
    assert found.saved_ns > -300e6 and found.waits_ns < 300e6  # of 900 ms; other processes come in between


def test_what_operators_take_to_pass_by_is_counted_upwards() -> None:
    """Some take far more than those that come behind them. What nothing serves passes by, also behind a served loop."""
    lists = [torch.ones(4)] * 50, [torch.ones(4)] * 50
    with timed_stream() as stream:
        for _ in range(300):
            torch._foreach_add_([one.clone() for one in lists[0]], lists[1])
        steps(300)
        counts = [stream.evidence()]
        for _ in range(3):
            steps(50)
            counts.append(stream.evidence())
        x, any_order = torch.ones(4), random.Random(0)
        for _ in range(4000):
            x = any_order.choice((torch.sin, torch.cos, torch.tanh, torch.neg, torch.abs, torch.square))(x)
        counts.append(stream.evidence())
    for earlier, later in pairwise(counts):
        since = later.since(earlier)
        falls = {one.name for one in fields(since) if isinstance(value := getattr(since, one.name), int) and value < 0}
        assert falls <= {"saved_ns"}
    assert counts[-1].since(counts[-2]).passing_ns > 2000 * 300


def test_memory_that_comes_to_stay_elsewhere_is_taken_for_the_slots() -> None:
    """Each of four runs has its own weights: one graph each, not copies at every step for good."""

    def loop() -> list[Tensor]:
        kept = []
        for _ in range(4):
            weight = torch.full((64,), 0.5)
            for _ in range(60):
                weight.sub_(torch.tanh(weight * 1.5) * 0.01)
            kept.append(weight)
        return kept

    evidence = agrees(loop, shortest=1, hot=2)
    assert evidence.captured >= 4
    assert evidence.copied_in < 0.5 * evidence.segments


def test_results_that_were_kept_once_get_a_home_again() -> None:
    def loop() -> list[Tensor]:
        x, kept = torch.ones(4), []
        for i in range(120):
            y = torch.tanh(x * 1.5)
            if i == 30:
                kept.append(y)
            y = y.mean()  # dead before the next pass, but for the one that was kept
            x.add_(0.5)
        return [x, *kept]

    evidence = agrees(loop, shortest=1, hot=2)
    assert evidence.copied_out < 40


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


def test_under_a_profiler_nothing_is_deferred() -> None:
    """Kernels that come late would be outside of the ranges that they belong to."""

    def loop() -> list[Any]:
        x, names = torch.ones(4), []
        for i in range(90):
            if i == 30:
                profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]).__enter__()
            if i == 60:
                profile.__exit__(None, None, None)
                names = [event.count for event in profile.key_averages() if event.key == "aten::tanh"]
            x = torch.tanh(x * 1.5) - x.mean()
        return [x, names]

    evidence = agrees(loop, shortest=1, hot=2)
    assert evidence.written["a profiler's"] >= 100
    assert evidence.matched > 100


def test_nothing_is_captured_before_the_eyes_of_who_traces_python() -> None:
    called = []

    def loop() -> list[Tensor]:
        x = torch.ones(4)
        for _ in range(60):
            x = torch.tanh(x * 1.5) - 0.25
        return [x]

    def traced() -> list[Tensor]:
        sys.setprofile(lambda frame, event, argument: called.append(frame.f_code.co_filename))
        try:
            return loop()
        finally:
            sys.setprofile(None)

    agrees(traced, shortest=1, hot=2)
    assert not [name for name in called if "grape/streams" in name]


def test_what_has_not_served_for_long_gives_its_memory_to_others() -> None:
    def loop(n: int, steps: int) -> Tensor:
        x = torch.ones(n)
        for _ in range(steps):
            x = torch.tanh(x * 1.5) - 0.25
        return x

    def cells() -> list[Tensor]:
        first = loop(1000, 60)
        others = loop(7, 18_000)  # small, and for long
        return [first, others, loop(1001, 60), loop(1000, 60), first * 2, loop(1001, 200)]

    evidence = agrees(cells, shortest=1, hot=2, budget=16_000)
    assert evidence.written.get("no room for its results", 0) < 250, "the last two take turns: one of them waits"
    assert evidence.matched > 0.97 * evidence.seen, evidence


def test_a_fragment_without_room_for_its_results_runs_as_written() -> None:
    def loop() -> list[Tensor]:
        x = torch.ones(1000)
        for _ in range(60):
            x = torch.tanh(x * 1.5) - 0.25
        return [x]

    evidence = agrees(loop, shortest=1, hot=2, budget=1000)
    assert evidence.written["no room for its results"] > 100
    assert (evidence.matched, evidence.bytes) == (0, 0)
