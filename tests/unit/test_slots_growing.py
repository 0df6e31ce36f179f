"""A cache that grows at each call: whenever its graphs were captured, each reads what the one before it wrote."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good
from torch import Tensor

from grape.model import Later, Reason, Refused, RetryLater
from grape.runtime import GraphedFunction
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.buffers.lifetimes import Lifetimes
from grape.runtime.capture.proof.verification import Verification
from grape.runtime.capture.stop import Stop
from grape.runtime.guarding.structure import flatten
from grape.runtime.regions.captures import Captures
from tests.property.programs import eager_to_graph

FIRST, LAST = 4, 28
WIDTH = 4096
"""Rows of 16 KB, so that the slots of the first lengths are too small to grow and those of the later ones are not."""


def grow(cache: Tensor, x: Tensor) -> Tensor:
    """No two caches begin with the same rows: one that is written where another lies is seen."""
    return torch.cat([cache * 0.5, torch.tanh(cache[-1:] + x)])


class Growing:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.graphed = GraphedFunction(grow, backend=ReferenceBackend(poison=True), tolerance=0.0)
        self.x = torch.full((1, WIDTH), 0.01)
        self.late: set[int] = set()
        pays = Captures.pays

        def unless_late(captures: Captures, shape: Any) -> bool:
            return shape.shapes[0][1][0] not in self.late and pays(captures, shape)

        patch.setattr(Captures, "pays", unless_late)

    @property
    def region(self) -> Any:
        return self.graphed._region

    def run(self, keep: int = 0) -> tuple[int, int]:
        """One pass: how many calls were replayed, and how many bytes were copied in. Each `keep`th cache is kept."""
        kept = []
        before = (self.region.replays, self.region.replay_counts.copied_bytes) if self.region is not None else (0, 0)
        cache = wanted = torch.ones(FIRST, WIDTH)
        for _ in range(FIRST, LAST):
            cache, wanted = self.graphed(cache, self.x), grow(wanted, self.x)
            kept += [(cache, wanted)] if keep and len(cache) % keep == 0 else []
            assert torch.equal(cache, wanted) and all(torch.equal(one, other) for one, other in kept)
        return self.region.replays - before[0], self.region.replay_counts.copied_bytes - before[1]


@pytest.fixture
def growing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Growing]:
    made = Growing(monkeypatch)
    with torch.no_grad(), eager_to_graph():
        yield made
    made.graphed.release()


@pytest.mark.parametrize(
    "late",
    [set(), {4, 5, 6, 7}, {20}, {20, 21}, {20, 21, 22}, {4, 10, 15, 20, 25}, set(range(5, 28, 2))],
    ids=lambda late: ",".join(map(str, sorted(late))) or "none",
)
def test_lengths_that_are_captured_later_make_nobody_copy(growing: Growing, late: set[int]) -> None:
    growing.late = late
    for _ in range(2):
        growing.run()
    growing.late = set()
    for _ in range(2):
        growing.run()
    replays, copied = growing.run()
    assert replays == LAST - FIRST
    assert copied <= FIRST * WIDTH * 4, "more than the cache that each pass begins with"


def differing(patch: pytest.MonkeyPatch, times: dict[int, int]) -> dict[int, int]:
    """So many captures of these lengths have a replay with other bits. Counts those that had one."""
    compare, wrong = Verification._compare, dict.fromkeys(times, 0)
    seen: weakref.WeakSet[Verification] = weakref.WeakSet()

    def now_and_then(verification: Verification, *args: Any) -> str:
        found = compare(verification, *args)
        length = len(verification.layout.leaves[0])
        if verification in seen or wrong.get(length, 0) < times.get(length, 0):
            wrong[length] += verification not in seen
            seen.add(verification)
            verification.unfaithful, verification.faithful = verification.faithful, frozenset()
            raise Stop(RetryLater(later=Later.FORMS, refused=Refused.because(Reason.UNSETTLED)))
        return found

    patch.setattr(Verification, "_compare", now_and_then)
    return wrong


@pytest.mark.parametrize("times", [1, 3, 4])
def test_a_replay_that_differs_once_is_not_blamed_on_where_results_go(
    growing: Growing, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Attention in half precision gives other bits now and then. What was right at other lengths is blamed only where
    that goes on."""
    wrong = differing(monkeypatch, {20: times})
    for _ in range(6):
        growing.run()
    assert wrong[20] == times and growing.region.refused is None
    replays, copied = growing.run()
    assert replays == LAST - FIRST
    assert (copied <= FIRST * WIDTH * 4) is (times < 4)


@pytest.mark.parametrize("lengths", [(4,), (4, 7), (13, 17, 23, 24), (5, 6, 7, 8)], ids=str)
def test_the_first_replays_that_differ_do_not_end_it(
    growing: Growing, monkeypatch: pytest.MonkeyPatch, lengths: tuple[int, ...]
) -> None:
    wrong = differing(monkeypatch, dict.fromkeys(lengths, 1))
    for _ in range(6):
        growing.run()
    assert all(wrong.values()) and growing.region.refused is None
    replays, copied = growing.run()
    assert replays == LAST - FIRST
    assert copied <= FIRST * WIDTH * 4


def test_a_capture_that_fails_keeps_no_argument(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it seems to be in use until a garbage collection, and the next result goes elsewhere."""
    lengths = tuple(range(5, LAST - 1))
    wrong = differing(monkeypatch, dict.fromkeys(lengths, 1))
    arguments: list[weakref.ref[Tensor]] = []
    captured = Captures.capture

    def noted(captures: Captures, shape: Any, layout: Any, *args: Any) -> Any:
        assert [one for one in arguments if one() is not None] in ([], arguments[-1:]), "the one before is given"
        arguments.append(weakref.ref(layout.leaves[0]))
        return captured(captures, shape, layout, *args)

    monkeypatch.setattr(Captures, "capture", noted)
    gc.disable()
    try:
        for _ in range(3):
            growing.run()
    finally:
        gc.enable()
    assert all(wrong.values()) and len(arguments) > len(lengths)


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_what_is_kept_is_not_written_where_an_argument_will_lie(monkeypatch: pytest.MonkeyPatch, keep: int) -> None:
    growing = Growing(monkeypatch)
    with torch.no_grad(), eager_to_graph(in_place=True):
        for late in ({20, 22, 25}, {8, 9, 14, 15}, set(range(4, 28, 3)), set[int](), set[int]()):
            growing.late = late
            growing.run(keep)
        assert growing.region.refused is None
    growing.graphed.release()


def test_where_an_argument_will_lie() -> None:
    """It was the result of the eager call before, or of a replay, whose slot has two sides."""
    lifetimes = Lifetimes()
    first, other = torch.ones(3), torch.zeros(3)

    def call(number: int, given: Tensor, result: Tensor, at: dict[int, int]) -> None:
        lifetimes.arrive(number, flatten(((given, other), {}), "args"), at)
        lifetimes.leave(number, flatten((result, (given, other), {}), "result"))

    results = [torch.full((3,), float(number)) for number in range(6)]
    call(1, first, results[0], {})
    assert lifetimes.came_back == {} == lifetimes.sides
    call(2, results[0], results[1], {})
    (argument,), (result,) = lifetimes.came_back, lifetimes.came_back.values()
    assert lifetimes.sides == {argument: 0}
    call(3, results[1], results[2], {})
    assert lifetimes.came_back == {argument: result} and lifetimes.sides == {argument: 1}
    call(5, results[3], results[4], {results[3].untyped_storage()._cdata: 0})  # the fourth was a replay
    assert lifetimes.came_back == {} and lifetimes.sides == {argument: 0}
    call(6, results[4], results[5], {})
    assert lifetimes.came_back == {argument: result} and lifetimes.sides == {argument: 1}
    call(7, first, results[0], {})
    assert lifetimes.came_back == {} == lifetimes.sides
    call(8, results[0], results[1], {})
    assert lifetimes.sides == {argument: 0}
    lifetimes.begin_run()
    assert lifetimes.came_back == {} == lifetimes.sides
