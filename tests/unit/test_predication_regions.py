"""Regions with control flow on the device: eager, and replayed on the tape, over all outcomes; what is refused."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch

import grape
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.graphed import GraphedFunction
from grape.runtime.predication import flow
from tests.property.control_flow_programs import SelectsOnly

CALLS = 24


pytestmark = pytest.mark.usefixtures("without_gradients")


def bits(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.reshape(-1).view(torch.uint8).tolist()
    return tuple(map(bits, value)) if isinstance(value, tuple) else value


def graphed(function: Callable[..., Any]) -> GraphedFunction:
    return GraphedFunction(function, backend=ReferenceBackend(poison=True), tolerance=0.0)


def inputs(call: int) -> torch.Tensor:
    """Both signs and several sizes, so that each decision goes both ways more than once."""
    x = torch.tensor([1.0, -2.0, 0.5, 3.0]) * (1 + call % 3)
    return x if call % 2 else -x


def compare(make: Callable[[], Callable[..., Any]], calls: int = CALLS) -> GraphedFunction:
    """Call a fresh function plainly and another one as a region, with equal arguments; all bits must be equal."""
    plain, region = make(), graphed(make())
    for call in range(calls):
        mine, theirs = inputs(call), inputs(call)
        assert bits(region(mine)) == bits(plain(theirs)), f"call {call}"
        assert bits(mine) == bits(theirs), f"argument of call {call}"
    return region


def branch() -> Callable[..., Any]:
    return lambda x: grape.cond(x.sum() > 0, lambda: torch.relu(x) + 1, lambda: x * 2 - 1) * 3


def nested() -> Callable[..., Any]:
    def run(x: torch.Tensor) -> torch.Tensor:
        def inner() -> torch.Tensor:
            return grape.cond(x.abs().max() > 4, lambda: x * 0.5, lambda: x - 1)

        return grape.cond(x.sum() > 0, inner, lambda: x.flip(0) * 2) + 1

    return run


def heavy() -> Callable[..., Any]:
    """Bodies with enough kernels to become nodes."""

    def chain(x: torch.Tensor, sign: float) -> torch.Tensor:
        for step in range(30):
            x = torch.sin(x * sign) + step
        return x

    return lambda x: grape.cond(x.sum() > 0, lambda: chain(x, 1.0), lambda: chain(x, -0.5)) * 2


def in_place() -> Callable[..., Any]:
    def run(x: torch.Tensor) -> torch.Tensor:
        def arm() -> torch.Tensor:
            x.mul_(2)
            return x.sum()

        return grape.cond(x[0] > 0, arm, lambda: x.amax()) + x

    return run


def state() -> Callable[..., Any]:
    memory, count = torch.zeros(4), torch.zeros((), dtype=torch.int64)

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def note() -> torch.Tensor:
            memory.add_(x)
            count.add_(1)
            return x * 1

        grape.cond(x.sum() > 0, note, lambda: x - 1)
        return memory * 1, count * 1, x + 1

    return run


def loop() -> Callable[..., Any]:
    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        start = torch.zeros((), dtype=torch.int64)
        return grape.while_loop(lambda x, n: x.abs().sum() > 3, lambda x, n: (x * 0.5, n + 1), (x + 0, start))

    return run


def loop_swaps() -> Callable[..., Any]:
    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = x + 1, x * 2
        on = x.abs().sum().long()
        a, b, _ = grape.while_loop(lambda a, b, n: n > 5, lambda a, b, n: (b, a, n - 3), (a, b, on))
        return a * 1, b * 1

    return run


def loop_in_place() -> Callable[..., Any]:
    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        r = x * 1

        def body(r: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
            r.mul_(0.5)
            n.add_(1)
            return r, n

        n = torch.zeros((), dtype=torch.int64)
        left = grape.while_loop(lambda r, n: r.abs().sum() > 3, body, (r, n))
        return r * 1, left[0] + 1, n * 1

    return run


def loop_of_branches() -> Callable[..., Any]:
    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def body(v: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
            half = grape.cond(v % 2 == 0, lambda: v // 2, lambda: v * 3 + 1)
            return half, n + 1

        start = x.abs().sum().long() + 2
        return grape.while_loop(lambda v, n: v > 1, body, (start, torch.zeros_like(start)))

    return run


def predicate() -> Callable[..., Any]:
    cache = torch.zeros(4)

    def run(x: torch.Tensor) -> torch.Tensor:
        with grape.Predicate(x.sum() > 0):
            cache.copy_(x)
            cache[1] = 7
        return grape.cond(x[0] > 1, lambda: cache + x, lambda: cache - x)

    return run


def dropout_outside() -> Callable[..., Any]:
    def run(x: torch.Tensor) -> torch.Tensor:
        kept = torch.nn.functional.dropout(x, 0.5)
        return grape.cond(x.sum() > 0, lambda: kept + 1, lambda: kept * 2)

    return run


def loop_with_a_counter() -> Callable[..., Any]:
    """The counter is a Python number that nobody reads after the loop: the device cannot count it."""

    def run(x: torch.Tensor) -> torch.Tensor:
        return flow.loop(
            lambda x, k: flow.both(x.abs().sum() > 3, lambda: k < 2),
            lambda x, k: (x * 0.5, k + 1),
            (x + 0, 0),
            (True, False),
        )[0]

    return run


STRAIGHT = [branch, nested, heavy, in_place, state, predicate]
LOOPS = [loop, loop_swaps, loop_in_place, loop_of_branches, loop_with_a_counter]


@pytest.mark.parametrize("make", [*STRAIGHT, *LOOPS], ids=lambda make: make.__name__)
def test_regions_replay_with_the_bits_of_the_plain_call(make: Callable[[], Callable[..., Any]]) -> None:
    region = compare(make)
    evidence = region.evidence()
    assert evidence is not None and evidence.refused is None, evidence.refused
    assert evidence.replays > 4
    region.release()


def test_random_numbers_outside_of_bodies_follow_the_stream() -> None:
    plain, region = dropout_outside(), graphed(dropout_outside())
    for call in range(CALLS):
        results = []
        for function in (plain, region):
            torch.manual_seed(call)
            results.append((bits(function(inputs(call))), bits(torch.rand(2))))
        assert results[0] == results[1]
    assert region.evidence().replays > 4
    region.release()


def test_a_branch_is_not_used_before_a_replay_of_it_was_compared() -> None:
    """Until call 12 one way only; then each new way is served eagerly first, and its writes happen once."""
    memory = torch.zeros(4)

    def run(x: torch.Tensor) -> torch.Tensor:
        return grape.cond(x.sum() > 0, lambda: memory.add_(x) * 1, lambda: memory.sub_(1) * 1) + 1

    region = graphed(run)
    expected = torch.zeros(4)
    seen = []
    for call in range(30):
        x = inputs(1) if call < 16 or call % 2 else inputs(0)
        expected = expected + x if x.sum() > 0 else expected - 1
        before = region.evidence().replays if call else 0
        assert bits(region(x)) == bits(expected + 1)
        assert bits(memory) == bits(expected)
        seen.append(region.evidence().replays - before)
    assert sum(seen[:16]) > 4
    assert seen[16] == 0, "the other branch was replayed before it was compared"
    assert sum(seen[20:]) > 4
    region.release()


log: list[float] = []
counts = {"calls": 0}


class Meter:
    total = 0


def changes_a_list() -> Callable[..., Any]:
    def note(x: torch.Tensor) -> torch.Tensor:
        log.append(1.0)
        return x + 1

    return lambda x: grape.cond(x.sum() > 1e9, lambda: note(x), lambda: x * 2) + 1


def changes_a_dict() -> Callable[..., Any]:
    def note(x: torch.Tensor) -> torch.Tensor:
        counts["calls"] += 1
        return x + 1

    return lambda x: grape.cond(x.sum() > 1e9, lambda: note(x), lambda: x * 2) + 1


def changes_an_object() -> Callable[..., Any]:
    meter = Meter()

    def note(x: torch.Tensor) -> torch.Tensor:
        meter.total += 1
        return x + meter.total

    def run(x: torch.Tensor) -> torch.Tensor:
        result = grape.cond(x.sum() > 1e9, lambda: note(x), lambda: x * 2) + 1
        assert meter.total == 0
        return result

    return run


def prints() -> Callable[..., Any]:
    def note(x: torch.Tensor) -> torch.Tensor:
        print("in a branch")
        return x + 1

    return lambda x: grape.cond(x.sum() > 1e9, lambda: note(x), lambda: x * 2) + 1


def may_alias() -> Callable[..., Any]:
    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return grape.cond(x.sum() > 1e9, lambda: x, lambda: y), y * 2, y * 3

    return run


def hands_out_a_flag() -> Callable[..., Any]:
    def run(x: torch.Tensor) -> tuple[Any, ...]:
        return grape.cond(x.sum() > 1e9, lambda: True, lambda: False), x + 1, x * 2

    return run


def random_in_a_body() -> Callable[..., Any]:
    return lambda x: grape.cond(x.sum() > 1e9, lambda: x + torch.rand(4), lambda: x * 2) + 1


def shapes_differ() -> Callable[..., Any]:
    return lambda x: grape.cond(x.sum() > 1e9, lambda: x[:2] * 1, lambda: x * 2) + 1


def dtypes_differ() -> Callable[..., Any]:
    return lambda x: grape.cond(x.sum() > 1e9, lambda: x.double() * 1, lambda: x * 2) + 1


def reads_on_the_host() -> Callable[..., Any]:
    return lambda x: grape.cond(x.sum() > 1e9, lambda: x * x.sum().item(), lambda: x * 2) + 1


def loop_writes_what_it_hands_on() -> Callable[..., Any]:
    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        table = x * 1

        def body(row: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
            table.add_(1)
            return table[:2], n + row.sum().abs().long() + 1

        zero = torch.zeros((), dtype=torch.int64)
        _, n = grape.while_loop(lambda row, n: n < 5, body, (x[:2] * 1, zero))
        return n * 1, table * 1

    return run


REFUSED = [
    (changes_a_list, "GR404", "a body that the device may skip changes"),
    (changes_a_dict, "GR404", "a body that the device may skip changes"),
    (changes_an_object, "GR404", "a body that the device may skip changes"),
    (prints, "GR404", r"calls print\(\)"),
    (may_alias, "GR102", "shares memory with another tensor depends on data"),
    (hands_out_a_flag, "GR102", "only known on the device"),
    (random_in_a_body, "GR405", "random numbers"),
    (shapes_differ, "GR405", "different shape"),
    (dtypes_differ, "GR405", "different dtype"),
    (reads_on_the_host, "GR101", "on the host"),
    (loop_writes_what_it_hands_on, "GR102", "hands on memory that it writes"),
]


@pytest.mark.parametrize(("make", "code", "why"), REFUSED, ids=[row[0].__name__ for row in REFUSED])
def test_regions_that_are_refused_run_as_written(
    make: Callable[[], Callable[..., Any]], code: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log.clear()
    counts["calls"] = 0
    region = compare(make)
    refused = region.evidence().refused
    assert refused is not None and refused.code == code
    assert re.search(why, refused.why)
    assert (log, counts, capsys.readouterr().out) == ([], {"calls": 0}, "")
    region.release()


@pytest.mark.parametrize(("make", "refused"), [(branch, None), (heavy, None), (loop, "GR102"), (predicate, None)])
def test_without_conditional_bodies_selects_serve_or_the_region_is_refused(
    make: Callable[[], Callable[..., Any]], refused: str | None
) -> None:
    plain, region = make(), GraphedFunction(make(), backend=SelectsOnly(poison=True), tolerance=0.0)
    for call in range(CALLS):
        assert bits(region(inputs(call))) == bits(plain(inputs(call)))
    evidence = region.evidence()
    assert (evidence.refused.code if evidence.refused else None) == refused
    assert refused is not None or evidence.replays > 4
    region.release()


class Endless(ReferenceBackend):
    """A backend whose loops never see that their condition turned false."""

    def while_body(self, pred: torch.Tensor) -> AbstractContextManager[None]:
        return super().while_body(torch.ones((), dtype=torch.bool))


def test_a_replay_that_does_not_end_is_noticed_and_never_used() -> None:
    plain, region = loop(), GraphedFunction(loop(), backend=Endless(), tolerance=0.0)
    for call in range(CALLS):
        assert bits(region(inputs(call))) == bits(plain(inputs(call)))
    refused = region.evidence().refused
    assert refused is not None and refused.code == "GR102"
    assert re.search("a loop of the replay had not ended after [0-9]+ iterations", refused.why)
    region.release()


def test_a_bound_ends_loops_within_its_block_only() -> None:
    backend = ReferenceBackend()
    count, most = torch.zeros((), dtype=torch.int64), torch.full((), 30)
    on = torch.ones((), dtype=torch.bool)

    def body() -> None:
        on.fill_(True)
        count.zero_()
        with backend.while_body(on):
            count.add_(1)
            torch.lt(count, most, out=on)

    graph, _ = backend.capture(body)
    found = []
    for bound in (5, 29, 30):
        with backend.bounded(bound) as ended:
            graph.replay()
        found.append((count.item(), ended()))
    graph.replay()
    assert (*found, count.item()) == ((5, True), (29, True), (30, False), 30)
    backend.close()


def asserted() -> Callable[..., Any]:
    memory = torch.zeros(4)

    def run(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        memory.add_(x)
        assert flow.check((index < 4).all()), f"no such place: {index.tolist()}"
        memory.mul_(2)
        return memory[index] + torch.relu(x)[:2]

    return run


def test_an_assertion_raises_at_the_line_of_the_person_and_undoes_the_replay() -> None:
    """A bad index behind the assertion reaches no kernel; what the replay wrote is as if only eager code had run."""
    plain, region = asserted(), graphed(asserted())
    line = asserted.__code__.co_firstlineno + 5
    failures = 0
    for call in range(CALLS):
        index = torch.tensor([call % 4, 9 if call % 5 == 4 else 1])
        results: list[Any] = []
        for function in (plain, region):
            try:
                results.append(bits(function(inputs(call), index)))
            except AssertionError as error:
                failures += 1
                lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.name == "run"]
                assert lines == [line]
                results.append(str(error).splitlines()[0])  # pytest adds what it knows of the values
        assert results[0] == results[1], f"call {call}"
    assert failures == 2 * (CALLS // 5)
    evidence = region.evidence()
    assert evidence.refused is None and evidence.replays > 4
    region.release()
