"""Ranks beside each other: what was waited for, what they tell each other, what a report shows of it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grape.model import RanksEvidence, RankTimes
from grape.model.times.ranks import Meeting, compared
from grape.render import build_report
from grape.sessions.ranks import beside
from grape.sessions.ranks.exchange import Exchange
from grape.streams import Arrivals
from grape.streams.session import own_device
from grape.tracing import Group
from tests.unit.sample_evidence import cell, tape_cell
from tests.unit.trace_builder import at

dist = pytest.importorskip("torch.distributed")
MS = 1_000_000


def met(*names: str, goes_on: bool = False) -> list[Meeting]:
    return [Meeting(operator=name, user=at(1), inner=at(1), goes_on=goes_on) for name in names]


def test_each_waits_for_the_last() -> None:
    waits, late = compared(met("a", "a"), [[10 * MS, 30 * MS], [14 * MS, 30 * MS], [19 * MS, 31 * MS]])
    assert waits == (10.0, 6.0, 0.0)
    assert [(one.rank, one.times, one.ms) for one in late] == [(2, 2, 6.0)]


def test_what_is_issued_before_others_are_waited_for_counts_once() -> None:
    """Three buckets of one backward pass: the rank that is late at the first is late at all of them."""
    ahead, behind = [[10 * MS, 12 * MS, 14 * MS]], [[20 * MS, 22 * MS, 24 * MS]]
    assert compared(met("a", "a", "a"), ahead + behind)[0] == (10.0, 0.0)
    far = [[10 * MS, 30 * MS, 50 * MS], [20 * MS, 40 * MS, 60 * MS]]
    assert compared(met("a", "a", "a"), far)[0] == (30.0, 0.0)
    assert compared(met("a", "a", "a", goes_on=True), far)[0] == (10.0, 0.0), "one pass"


def test_lateness_within_what_clocks_make_is_nobodys() -> None:
    assert compared(met("a"), [[10 * MS], [10 * MS + 99_000]])[1] == ()
    assert compared(met("a"), [[10 * MS], [10 * MS + 100_000]])[1] != ()


def test_where_no_clock_told_nothing_is_compared() -> None:
    assert compared(met("a", "b"), [[0, 10 * MS], [5 * MS, 12 * MS]])[0] == (2.0, 0.0)


# What ranks tell each other


def group(rank: int, store: Any, size: int = 2, *, parts: bool = False) -> Group:
    return Group(rank=rank, size=size, store=lambda: store, of=lambda: store, has_parts=parts, groups=1)


@pytest.fixture
def store() -> Any:
    return dist.HashStore()


def always(message: str) -> bool:
    return True


def test_rank_0_hears_the_others_and_leaves_nothing_behind(store: Any) -> None:
    assert Exchange().tell(group(1, store, 3), "x", "one", always) == {}
    assert Exchange().tell(group(2, store, 3), "x", "two", always) == {}
    before = store.num_keys()
    assert Exchange().tell(group(0, store, 3), "x", "mine", always) == {1: "one", 2: "two"}
    assert store.num_keys() == before - 2


def test_of_another_cell_nothing_is_heard(store: Any) -> None:
    other = Exchange()
    other.tell(group(1, store), "y", "one", always)
    assert Exchange().tell(group(0, store), "x", "mine", always) == {}
    other.tell(group(1, store), "z", "one", always)
    keys = store.num_keys()
    other.tell(group(1, store), "w", "one", always)
    assert store.num_keys() == keys, "a rank keeps one key"


def test_of_an_earlier_run_nothing_is_heard(store: Any) -> None:
    other = Exchange()
    other.tell(group(1, store), "x", "old", always)
    assert Exchange().tell(group(0, store), "x", "mine", lambda message: message != "old") == {}
    other.tell(group(1, store), "x", "new", always)
    assert Exchange().tell(group(0, store), "x", "mine", lambda message: message != "old") == {1: "new"}


def test_rank_0_waits_half_a_second_and_then_less(store: Any) -> None:
    asking = Exchange()
    took = []
    for _ in range(3):
        begin = time.perf_counter()
        assert asking.tell(group(0, store), "x", "mine", always) == {}
        took.append(time.perf_counter() - begin)
    assert 0.45 < took[0] < 3 and took[1] < took[0] and took[2] < took[1]


class Stuck:
    """A store whose server is not there any more."""

    def __init__(self, raises: bool) -> None:
        self.raises, self.free = raises, threading.Event()

    def set(self, key: str, value: str) -> None:
        if self.raises:
            raise RuntimeError("Connection reset by peer")
        self.free.wait(30)

    def check(self, keys: list[str]) -> bool:
        self.set("", "")
        return False


@pytest.mark.parametrize("raises", [True, False], ids=["gone", "silent"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_store_that_fails_costs_nobody_anything(rank: int, raises: bool) -> None:
    stuck = Stuck(raises)
    telling = Exchange()
    try:
        begin = time.perf_counter()
        assert telling.tell(group(rank, stuck), "x", "mine", always) == {}
        assert time.perf_counter() - begin < 4
        begin = time.perf_counter()
        assert telling.tell(group(rank, stuck), "x", "mine", always) == {}
        assert raises or time.perf_counter() - begin < 0.05, "it is not asked again"
    finally:
        stuck.free.set()


def test_without_a_store_nobody_is_asked() -> None:
    gone = Group(rank=0, size=2, store=lambda: None, of=lambda: None, has_parts=False, groups=1)
    assert Exchange().tell(gone, "x", "mine", always) == {}


# The report


def arrivals(*at_ms: int, name: str = "c10d::allreduce_") -> Arrivals:
    return Arrivals(meetings=tuple(met(*[name] * len(at_ms))), at_ns=tuple(ms * MS for ms in at_ms), met=len(at_ms))


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch, store: Any) -> Iterator[Any]:
    """Reports both ranks' cells; gives the evidence of rank 0 about the ranks."""
    evidence = tape_cell(wall_ms=100.0, time=None)
    monkeypatch.setattr(beside, "_overlaps", lambda *_: True)  # this machine may take its time between the two

    def report(rank: int, seen: Arrivals | None, **more: Any) -> Any:
        monkeypatch.setattr(beside, "group_of_run", lambda: group(rank, store, **more))
        monkeypatch.setattr(beside, "exchange", Exchange())
        return beside.beside_ranks(build_report(evidence, ()), "x", seen)

    def both(mine: Arrivals | None, others: Arrivals | None, **more: Any) -> Any:
        report(1, others, **more)
        return report(0, mine, **more)

    yield SimpleNamespace(report=report, both=both)


def test_a_straggler_is_found_in_rank_0(two: Any) -> None:
    steps = range(10, 110, 10)
    seen = two.both(arrivals(*steps), arrivals(*(step + 5 for step in steps)))
    ranks = seen.evidence.ranks
    assert [one.waits_ms for one in ranks.shown] == [50.0, 0.0]
    assert [finding.code for finding in seen.findings] == ["GR601"]
    assert seen.with_fixes().findings == seen.findings
    assert "imbalance: 50% of the cell" in seen.to_text() and "GR601" in seen.to_html()


@pytest.mark.parametrize(
    ("others", "more", "why"),
    [
        (arrivals(10, 20), {}, "they issued different collectives"),
        (arrivals(10, 20, 30, name="c10d::broadcast_"), {}, "they issued different collectives"),
        (arrivals(10, 0, 30), {}, "not all of their arrivals were measured"),
        (arrivals(10, 20, 30), {"parts": True}, "groups of some of the ranks exchange tensors as well"),
        (None, {}, "they issued different collectives"),
    ],
)
def test_what_cannot_be_compared_is_not(two: Any, others: Arrivals | None, more: Any, why: str) -> None:
    seen = two.both(arrivals(10, 20, 30), others, **more)
    assert seen.evidence.ranks.apart == why and not seen.findings
    assert f"arrivals at collectives not compared: {why}" in seen.to_text(width=120)
    assert {one.waits_ms for one in seen.evidence.ranks.shown} == {None}


@pytest.mark.parametrize(("began", "ended", "same"), [(99, 110, True), (80, 101, False), (105, 109, True)])
def test_a_run_of_now_goes_on_while_rank_0_runs(began: float, ended: float, same: bool) -> None:
    assert beside._overlaps(100.0, json.dumps({"began_s": began, "ended_s": ended})) is same


def test_who_is_missing_is_said(two: Any) -> None:
    seen = two.report(0, None)
    assert seen.evidence.ranks.missing == (1,)
    assert "missing: 1 rank (1), not heard within half a second" in seen.to_text()


def test_a_group_that_is_gone_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Group(rank=0, size=2, store=lambda: None, of=lambda: None, has_parts=False, groups=1)
    monkeypatch.setattr(beside, "group_of_run", lambda: gone)
    seen = beside.beside_ranks(build_report(tape_cell(), ()), "x")
    assert "not compared: the process group was destroyed before the cell ended" in seen.to_text(width=120)


def test_other_ranks_have_a_line(two: Any) -> None:
    seen = two.report(1, None)
    line = "rank 1 of 2: no PyTorch work in this cell; "
    assert seen.to_text(details=False).startswith(line) and seen.to_text(details=False).count("\n") == 1
    assert f"<summary>{line}" in seen.to_html()
    assert "note: rank 1 of 2; the report of rank 0 has the ranks beside each other" in seen.to_text()


def test_nothing_of_it_may_fail_a_report(monkeypatch: pytest.MonkeyPatch, store: Any) -> None:
    monkeypatch.setattr(beside, "group_of_run", lambda: group(0, store))
    monkeypatch.setattr(beside, "_told", lambda *_: 1 / 0)
    report = build_report(tape_cell(), ())
    assert beside.beside_ranks(report, "x") is report


def test_the_table() -> None:
    shown = (
        RankTimes(rank=0, wall_ms=1200.0, operators=200, matched=150, collectives=40, waits_ms=310.0),
        RankTimes(rank=1, wall_ms=1210.0, operators=200, matched=150, collectives=40, waits_ms=2.0, error=True),
        RankTimes(rank=2, wall_ms=90.0, operators=0, matched=0, collectives=None),
    )
    ranks = RanksEvidence(rank=0, size=4, shown=shown, window_ms=1200.0)
    text = build_report(replace(cell(), ranks=ranks), ()).to_text()
    assert "1 (raised)" in text and "75% of 200" in text and "310 ms" in text
    assert "missing: 1 rank (3)" in text and "imbalance: 26% of the cell" in text
    data = json.loads(build_report(replace(cell(), ranks=ranks), ()).to_json())
    assert data["cell"]["ranks"]["missing"] == [3]


@pytest.mark.parametrize(("forked", "words"), [(1, "1 child process"), (4, "4 child processes")])
def test_work_of_children_is_not_called_none(forked: int, words: str) -> None:
    assert words + ", of which Grape saw nothing" in build_report(tape_cell(time=None, children=forked), ()).verdict


@pytest.mark.parametrize(
    ("current", "rank", "devices", "served"),
    [(0, None, 2, 0), (0, "1", 2, 1), (0, "1", 1, 0), (1, "0", 2, 1), (0, "first", 2, 0)],
)
def test_a_rank_is_served_on_its_own_device(
    current: int, rank: str | None, devices: int, served: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`torchrun` says which before the script makes it the current one; one device may be all that the rank sees."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    assert own_device() == served
