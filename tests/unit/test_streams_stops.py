"""What streams ran as written inside of fragments: how often, why, and at which line of the person's code."""

from __future__ import annotations

import _thread
import operator
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from grape.model import Stop
from grape.model.stream import COLD
from grape.streams import Evidence, Settings, Stream, open_stream, shared
from grape.streams.places import Places
from tests.property.stream_programs import device, needs_compiler  # noqa: F401
from tests.unit.test_streams_contract import EAGER_TO_MATCH, under_a_stream

pytestmark = needs_compiler


def line(words: str, function: Callable[..., Any]) -> int:
    """The line of this file that says so in `function`."""
    code = function.__code__
    with open(__file__, encoding="utf-8") as file:
        lines = file.read().split("\n")
    found = [n for n in range(code.co_firstlineno, len(lines)) if words in lines[n - 1]]
    return found[0]


def rows(evidence: Evidence, **wanted: object) -> list[Stop]:
    return [stop for stop in evidence.stops if all(getattr(stop, name) == value for name, value in wanted.items())]


def test_a_read_has_its_line_its_time_and_the_segments_that_it_ends() -> None:
    def loop() -> list[float]:
        x, out = torch.ones(4), []
        for _ in range(50):
            y = torch.tanh(x * 1.5).sum()
            out.append(y.item())
        return out

    _, evidence = under_a_stream(loop)
    (read,) = rows(evidence, operator="aten::_local_scalar_dense")
    assert read.reason == "host read" and read.user is not None
    assert (read.user.file, read.user.line) == (__file__, line("y.item()", loop))
    assert read.user.function.endswith("<locals>.loop")
    assert 40 < read.times <= 50 and read.segments == read.times
    assert 0 < read.total_ns < 1e9
    assert read.times <= evidence.written["host read"]


def test_what_changes_draws_and_depends_on_data() -> None:
    def loop() -> Tensor:
        x = torch.linspace(-1, 1, 8)
        for i in range(50):
            x = x * (1 + i / 100)
            x = torch.nn.functional.dropout(x, 0.1)
            x[x > 1] = 0.5
        return x

    _, evidence = under_a_stream(loop, replace(EAGER_TO_MATCH, draws=False))
    found = {(stop.operator, stop.reason, stop.user.line) for stop in evidence.stops if stop.user is not None}
    assert ("aten::mul", "number changed", line("1 + i / 100", loop)) in found
    assert ("aten::index_put_", "host read", line("x[x > 1]", loop)) in found
    drawn = [where for name, why, where in found if why == "random numbers"]
    assert set(drawn) == {line("dropout", loop)}


def test_an_operator_of_a_library_stands_at_the_persons_line_and_at_its_own() -> None:
    def loop() -> nn.Parameter:
        weight = nn.Parameter(torch.ones(4))
        optimizer = torch.optim.Adam([weight], foreach=True)
        for _ in range(50):
            optimizer.zero_grad()
            weight.pow(2).sum().backward()
            optimizer.step()
        return weight

    _, evidence = under_a_stream(loop)
    changed = rows(evidence, reason="number changed")
    assert {stop.user.line for stop in changed if stop.user} == {line("optimizer.step()", loop)}
    assert all(stop.inner is not None and stop.inner.file.endswith("torch/optim/adam.py") for stop in changed)


def test_two_lines_that_run_the_same_operators_one_after_the_other() -> None:
    def loop() -> list[float]:
        x, first, second = torch.ones(4), [], []
        for _ in range(200):
            first.append(torch.tanh(x * 1.5).sum().item())
        for _ in range(200):
            second.append(torch.tanh(x * 1.5).sum().item())
        return first + second

    _, evidence = under_a_stream(loop)
    reads = {stop.user.line: stop.times for stop in rows(evidence, reason="host read") if stop.user is not None}
    assert set(reads) == {line("first.append", loop), line("second.append", loop)}
    assert 380 < sum(reads.values()) <= 400 and min(reads.values()) > 130, "no more than 64 count for the other line"


def test_what_is_followed_but_not_deferred_yet_has_no_row_and_what_never_is_has_one() -> None:
    def loop() -> list[float]:
        x = torch.ones(4)
        return [torch.tanh(x * 1.5).sum().item() for _ in range(50)]

    _, evidence = under_a_stream(loop, replace(EAGER_TO_MATCH, price=1e6, device="pretended"))
    assert evidence.matched == 0 and evidence.written["not worth a capture yet"] > 100
    assert {stop.reason for stop in evidence.stops} == {"host read"}


def test_a_thread_that_no_line_calls_has_no_line() -> None:
    """As autograd's own threads on a GPU: nothing of Python stands below."""
    places = Places()
    numbers: list[int] = []
    _thread.start_new_thread(numbers.extend, (map(operator.call, [places.here]),))
    began = time.monotonic()
    while not numbers and time.monotonic() < began + 10:
        time.sleep(0.001)
    assert [places.of(number) for number in numbers] == [(None, None)]


def test_who_traces_python_sees_nothing_and_gets_no_line() -> None:
    seen: list[str] = []

    def loop() -> list[float]:
        x = torch.ones(4)
        return [torch.tanh(x * 1.5).sum().item() for _ in range(50)]

    def profile(frame: Any, event: str, argument: Any) -> None:
        seen.append(frame.f_code.co_filename)

    def traced() -> list[float]:
        before = sys.getprofile()
        sys.setprofile(profile)
        try:
            return loop()
        finally:
            sys.setprofile(before)

    _, evidence = under_a_stream(traced)
    assert not [file for file in seen if "places.py" in file or "positions.py" in file]
    (read,) = rows(evidence, reason="host read")
    assert (read.user, read.inner) == (None, None) and read.times > 40


def test_another_look_finds_other_lines() -> None:
    def one(x: Tensor) -> float:
        return torch.tanh(x * 1.5).sum().item()

    def other(x: Tensor) -> float:
        return torch.tanh(x * 1.5).sum().item() + 0

    stream = open_stream(EAGER_TO_MATCH)
    assert isinstance(stream, Stream), stream
    with stream:
        x = torch.ones(4)
        for _ in range(40):
            one(x)
        first = stream.evidence()
        stream.look_anew()
        for _ in range(40):
            other(x)
        second = stream.evidence()
    assert {stop.user.function for stop in first.stops if stop.user} == {one.__qualname__}
    assert {stop.user.function for stop in second.stops if stop.user} == {other.__qualname__}
    assert sum(stop.times for stop in second.stops) == 40


def test_for_whom_it_counts() -> None:
    def work(x: Tensor) -> float:
        return torch.tanh(x * 1.5).sum().item()

    def inside(user: object, times: int) -> None:
        assert isinstance(shared.enter(user, EAGER_TO_MATCH), Stream)
        for _ in range(times):
            work(torch.ones(4))
        shared.leave()

    def read(user: object) -> int:
        found = shared.evidence(user)
        assert found is not None
        return sum(stop.times for stop in found.stops if stop.reason == "host read")

    one, two, holder = object(), object(), object()
    shared.hold(holder)
    try:
        inside(one, 40)
        before = read(one)
        inside(two, 7)
        inside(one, 3)
        assert 30 < before <= 40 and (read(one), read(two)) == (before + 3, 7)
        shared.look_anew()
        assert (read(one), read(two)) == (before + 3, 7)
        inside(two, 5)
    finally:
        shared.release(holder)
    assert shared.stream is None
    assert (read(one), read(two)) == (before + 3, 12)
    shared.hold(holder)
    try:
        inside(one, 40)
        assert 30 < read(one) - before - 3 <= 40
    finally:
        shared.release(holder)
    assert shared.evidence(one, forget=True) is not None and shared.evidence(one) is None
    shared.evidence(two, forget=True)


def test_an_interrupt_while_the_line_is_looked_up_ends_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, asked = Places.here, []

    def here(self: Places) -> int:
        asked.append(1)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return plain(self)

    monkeypatch.setattr(Places, "here", here)
    x, kept = torch.ones(4), []

    def loop() -> list[Any]:
        y = torch.zeros(4)
        for _ in range(50):
            try:
                y = y * 0.5 + x
                kept.append(y)
                y.sum().item()
            except KeyboardInterrupt:
                kept.append(None)
        return [None if one is None else one.clone() for one in kept]

    under, evidence = under_a_stream(loop)
    assert sum(one is None for one in under) == 1 and evidence.matched > 0
    assert rows(evidence, reason="host read")[0].times > 40
    values = [one for one in under if one is not None]
    expected = torch.zeros(4)
    for value in values:
        expected = expected * 0.5 + x
        assert torch.equal(value, expected)


def test_rows_are_bounded() -> None:
    x = torch.ones(4)

    def loop() -> None:
        source = "\n".join(f"    y = x * (i + {n})" for n in range(1100))
        names: dict[str, Any] = {"x": x}
        exec(compile(f"for i in range(12):\n{source}\n", __file__, "exec"), names)

    _, evidence = under_a_stream(loop, Settings(price=0, doubt=0, settled=0, patience=0))
    assert evidence.written["number changed"] > 1100
    assert 900 < len(evidence.stops) <= 1000


def test_another_thread_reads_the_evidence_meanwhile() -> None:
    stream = open_stream(EAGER_TO_MATCH)
    assert isinstance(stream, Stream), stream
    x, stop = torch.ones(4), threading.Event()
    found: list[int] = []
    with stream:
        for _ in range(10):
            torch.tanh(x * 1.5).sum().item()
        reader = threading.Thread(target=lambda: [found.append(len(stream.evidence().stops)) for _ in range(50)])
        reader.start()
        for _ in range(2000):
            torch.tanh(x * 1.5).sum().item()
        reader.join()
        stop.set()
    assert found and max(found) <= 2


def test_operators_that_plan_for_sizes_which_they_meet_for_the_first_time() -> None:
    met: set[tuple[int, ...]] = set()

    def plan(x: Tensor) -> Tensor:
        if x.shape not in met and x.dim() == 1:
            time.sleep(0.004)
        met.add(x.shape)
        return x + 1

    with torch.library._scoped_library("plans", "FRAGMENT") as library:
        library.define("plan(Tensor x) -> Tensor")
        library.impl("plan", plan, "CPU")

        def loop(sizes: range = range(4, 16)) -> list[Tensor]:
            shapes = [shape for size in sizes for shape in ((size,), (size, 1), (1, size))]
            return [torch.ops.plans.plan(torch.zeros(shape)) for shape in shapes for _ in range(6)]

        stream = open_stream(Settings())
        assert isinstance(stream, Stream), stream
        with stream:
            loop()
            (cold,) = rows(stream.evidence(), reason=COLD)
            stream.look_anew()
            loop()
            again = rows(stream.evidence(), reason=COLD)
            loop(range(16, 22))
            later = rows(stream.evidence(), reason=COLD)
    assert cold.user is not None and (cold.operator, cold.user.line) == ("plans::plan", line("ops.plans.plan", loop))
    assert cold.times == 12 and 12 * 3e6 < cold.total_ns < 12 * 30e6
    assert again == [] and [one.times for one in later] == [6]


def test_operators_that_are_slow_whatever_sizes_come_are_not_cold() -> None:
    with torch.library._scoped_library("plans", "FRAGMENT") as library:
        library.define("wait(Tensor x) -> Tensor")
        library.impl("wait", lambda x: time.sleep(0.002) or x + 1, "CPU")
        _, evidence = under_a_stream(
            lambda: [torch.ops.plans.wait(torch.zeros(size)) for size in range(4, 12) for _ in range(4)]
        )
    assert rows(evidence, reason=COLD) == []
