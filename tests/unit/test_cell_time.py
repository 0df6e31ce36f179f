"""What a cell takes plain is found out from the cell as it ran, and from its earlier runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from grape.model import CallsAccount, OwnTime, StreamEvidence
from grape.options import Options
from grape.runtime.accounts.attention import Attention
from grape.runtime.accounts.samples import CallTimes
from grape.runtime.accounts.settling import settle_calls
from grape.runtime.accounts.tally import Tally
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.regions.region import Region
from grape.sessions import Cell, Session
from grape.sessions.engine import Engine
from grape.sessions.timing import CellClock, CellRuns, PlainRun, estimate, estimate_streamed

OWN = OwnTime(observe_ms=4.0, record_ms=3.0, capture_ms=2.0, report_ms=1.0)
REPLAYED = CallsAccount(replays=100, replayed_ms=50.0, eager_ms=400.0, samples=30)


def test_without_replays_the_plain_cell_is_this_one_less_what_grape_took() -> None:
    took = estimate(110.0, OWN, CallsAccount(), CellRuns())
    assert (took.plain_ms, took.basis) == (100.0, "this run, without what Grape took of it")
    assert took.served.as_written == 1.0


def test_replays_count_as_the_calls_as_written_that_they_stand_for() -> None:
    took = estimate(110.0, OWN, REPLAYED, CellRuns())
    assert (took.plain_ms, took.samples) == (450.0, 30)
    assert took.basis == "this run, its replays at what 30 calls as written took"
    assert took.served.to_dict() == {"streams": 0.0, "regions": 0.5, "as_written": 0.5}


def test_an_estimate_that_leaves_nothing_of_the_cell_tells_nothing() -> None:
    runs = CellRuns(count=1)
    took = estimate(5550.0, OwnTime(observe_ms=5549.94), CallsAccount(), runs)
    assert (took.plain_ms, took.slower, runs.plain) == (None, False, None)
    assert "estimate" in took.basis
    assert estimate(60.0, OwnTime(observe_ms=59.0), CallsAccount(), runs).plain_ms == pytest.approx(1.0)


def test_first_calls_are_no_part_of_the_warm_cell() -> None:
    took = estimate(140.0, OWN, CallsAccount(cold_ms=30.0), CellRuns())
    assert (took.plain_ms, took.cold_ms) == (100.0, 30.0)


def streamed(**counts: float) -> StreamEvidence:
    known: dict[str, Any] = {
        "name": "In[1]", "operators": 1000, "matched": 800, "issued": 800, "as_written": (), "last_divergence": None,
        "own_ms": 0.0, "recorded": 0, "segments": 0, "partial": 0, "iterations": 0, "diverged": 0, "fragments": 0,
        "steps": 0, "bytes": 0, "copies": 0, "copied_bytes": 0, "kept": 0,
    }  # fmt: skip
    return StreamEvidence(**known | counts)


@pytest.mark.parametrize(
    ("counts", "drained", "plain"),
    [
        ({"timed": 800, "saved_ms": 60.0}, 0.0, 160.0),
        ({"timed": 400, "saved_ms": 30.0}, 0.0, 160.0),  # what was not timed saved as much
        ({"timed": 800, "saved_ms": 60.0}, 20.0, 140.0),  # for so long the GPU would have worked all the same
        ({"timed": 800, "saved_ms": 60.0}, 90.0, 100.0),
        ({"timed": 800, "saved_ms": -30.0}, 90.0, 70.0),
        ({"timed": 800, "saved_ms": 60.0, "capture_ms": 25.0}, 0.0, 135.0),
        ({"timed": 399, "saved_ms": 30.0}, 0.0, None),
    ],
)
def test_streams_saved_what_the_same_loops_took_more_as_written(
    counts: dict[str, float], drained: float, plain: float | None
) -> None:
    took = estimate_streamed(110.0, OWN, streamed(**counts), CellRuns(), drained_ms=drained)
    assert took.plain_ms == plain
    assert took.own.total_ms == 10.0 + counts.get("capture_ms", 0.0)
    assert took.served.streams == 0.8


def test_where_too_few_were_timed_an_earlier_run_tells_if_it_had_the_same_work() -> None:
    runs = CellRuns(plain=PlainRun(number=2, ms=130.0))
    few = streamed(timed=10, saved_ms=1.0)
    assert estimate_streamed(110.0, OWN, few, runs, drained_ms=0.0).plain_ms == 130.0
    other = estimate_streamed(110.0, OWN, few, runs, drained_ms=0.0, same_work=False)
    assert (other.plain_ms, other.basis) == (None, "this run had more or less to do than the one that was timed")


@pytest.mark.parametrize(
    ("measured", "same_work", "plain"), [(190.0, True, 190.0), (190.0, False, 180.0), (300.0, True, 180.0)]
)
def test_an_earlier_plain_run_is_better_than_what_streams_say_they_saved(
    measured: float, same_work: bool, plain: float
) -> None:
    found = streamed(timed=800, saved_ms=80.0)
    runs = CellRuns(plain=PlainRun(number=3, ms=measured))
    took = estimate_streamed(110.0, OWN, found, runs, drained_ms=0.0, same_work=same_work)
    assert took.plain_ms == plain


@pytest.mark.parametrize(("measured", "matched", "plain"), [(60.0, 0, 60.0), (60.0, 600, 100.0), (200.0, 0, 100.0)])
def test_where_few_matched_an_earlier_plain_run_tells_rather_than_what_contains_the_looking(
    measured: float, matched: int, plain: float
) -> None:
    found = streamed(matched=matched, timed=matched, saved_ms=0.0)
    runs = CellRuns(plain=PlainRun(number=3, ms=measured))
    took = estimate_streamed(110.0, OWN, found, runs, drained_ms=0.0)
    assert took.plain_ms == plain and runs.plain == PlainRun(number=3, ms=measured)


@pytest.mark.parametrize(("measured", "plain", "samples"), [(430.0, 430.0, None), (700.0, 450.0, 30)])
def test_an_earlier_plain_run_is_better_unless_this_one_has_other_work(
    measured: float, plain: float, samples: int | None
) -> None:
    took = estimate(110.0, OWN, REPLAYED, CellRuns(count=2, plain=PlainRun(number=2, ms=measured)))
    assert (took.plain_ms, took.samples) == (plain, samples)


def test_only_a_run_after_the_first_that_was_nearly_plain_and_finished_is_remembered() -> None:
    little, much = OwnTime(observe_ms=2.0, report_ms=50.0), OwnTime(observe_ms=20.0)
    runs = CellRuns()
    estimate(152.0, little, CallsAccount(), runs)
    assert runs.plain is None  # it was cold
    estimate(152.0, little, CallsAccount(), runs, finished=False)
    estimate(120.0, much, CallsAccount(), runs)
    estimate(110.0, OWN, REPLAYED, runs)
    assert runs.plain is None
    estimate(152.0, little, CallsAccount(), runs)
    assert runs.plain == PlainRun(number=5, ms=100.0)


def test_what_is_not_known_is_said_to_be_so() -> None:
    took = estimate(110.0, OWN, CallsAccount(replays=3, replayed_ms=9.0, unknown="step"), CellRuns())
    assert (took.plain_ms, took.basis) == (None, "no warm call of step as written was timed")
    shared = CallsAccount(replays=100, replayed_ms=900.0, eager_ms=40.0, samples=30)
    took = estimate(110.0, OWN, shared, CellRuns())
    assert (took.plain_ms, took.basis[:29]) == (None, "events around replays add up ")
    paired = CallsAccount(replays=100, replayed_ms=50.0, eager_ms=40.0, samples=30, paired=True)
    assert estimate(110.0, OWN, paired, CellRuns()).plain_ms is None
    more = CallsAccount(replays=100, replayed_ms=50.0, eager_ms=400.0, samples=30, paired=True)
    assert estimate(110.0, OWN, more, CellRuns()).plain_ms == 450.0  # at least that


def test_the_clock_counts_opening_and_report_as_grapes_own() -> None:
    now = [0]
    attention = Attention(lambda: now[0])
    clock = CellClock(attention, lambda: now[0] / 1e9)
    now[0] += 5_000_000  # opening
    clock.start()
    with attention.spend("record"):
        now[0] += 30_000_000
        with attention.spend(None):
            now[0] += 100_000_000
    assert clock.end() == pytest.approx(135.0)
    clock.book(lambda: attention.book("record", -10_000_000))
    now[0] += 7_000_000
    took = clock.time(CallsAccount(), CellRuns(), finished=True)
    assert took.wall_ms == pytest.approx(142.0)
    assert took.own.to_dict() == pytest.approx(
        {"observe": 5.0, "record": 20.0, "capture": 0.0, "verify": 0.0, "report": 7.0}
    )
    assert took.plain_ms == pytest.approx(110.0)


def test_what_grape_takes_before_the_first_statement_is_waited_for_and_its_own() -> None:
    now = [0.0]
    clock = CellClock(Attention(lambda: 0), lambda: now[0], ahead_ms=8.0)
    clock.start()
    now[0] = 0.1
    assert clock.end() == pytest.approx(108.0)
    took = clock.time(CallsAccount(), CellRuns(), finished=True)
    assert (took.wall_ms, took.own.observe_ms, took.plain_ms) == pytest.approx((108.0, 8.0, 100.0))


def test_the_person_waits_from_the_beginning_of_the_cell_and_not_from_the_opening_of_its_session() -> None:
    now = [5.0]
    clock = CellClock(Attention(lambda: 0), lambda: now[0], ahead_ms=8.0, since=4.0)
    clock.start()
    now[0] = 5.1
    assert clock.end() == pytest.approx(1100.0)
    took = clock.time(CallsAccount(), CellRuns(), finished=True)
    assert (took.wall_ms, took.own.observe_ms, took.plain_ms) == pytest.approx((1100.0, 8.0, 1092.0))


def test_what_follows_when_a_recorded_call_is_left_to_itself_is_booked_once_and_as_the_persons() -> None:
    now = [0]
    attention = Attention(lambda: now[0])
    with attention.spend("observe"):
        now[0] += 1_000_000
        with attention.spend("record"):
            now[0] += 10_000_000
            attention.hand_back("record")
            now[0] += 500_000_000
        now[0] += 1_000_000
    assert attention.spent_ms("record") == 10.0
    assert attention.spent_ms("observe") == 2.0


class _Took:
    def __init__(self, ms: float) -> None:
        self._ms = ms

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def elapsed_ms(self) -> float:
        return self._ms


def test_a_cold_first_call_is_no_measure_of_others() -> None:
    times = CallTimes()
    for ms in (43.9, 10.8, 10.9):
        times.add(_Took(ms), cold=not len(times))
    assert times.ms() == [43.9, 10.8, 10.9]
    assert (times.warm_ms(), times.cold_ms) == ([10.8, 10.9], 43.9)


@pytest.fixture
def observed(request: pytest.FixtureRequest) -> Iterator[tuple[Engine, Region]]:
    request.getfixturevalue("closed_engine")
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).requires_grad_(False)
    session = Session(options=Options(), cell=Cell(name="c", source="", filename="c"), namespace={"model": model})
    session.open()
    for _ in range(30):
        model(torch.ones(2, 4))
    engine = session._engine
    assert engine is not None
    yield engine, next(region for region in engine.interceptor.regions if region.entries)
    session.abandon()


def test_every_watched_call_and_every_replay_is_counted(observed: tuple[Engine, Region]) -> None:
    _, region = observed
    (shape,) = region.shapes.values()
    tally = shape.tally
    assert tally.replays + len(tally.profiled_ns) == region.replays_in_run
    assert len(tally.traced_ns) == 2 and tally.watched["capture"] >= 1
    plain = len(shape.before)
    assert plain + tally.watched.total() + len(tally.traced_ns) + region.replays_in_run == region.calls


def test_watched_calls_are_taken_back_at_what_a_warm_call_takes(observed: tuple[Engine, Region]) -> None:
    engine, region = observed
    (shape,) = region.shapes.values()
    traced = [(int(6e6), int(1e6)), (int(90e6), int(1e6))]  # of the second, 73 ms are not explained by tracing
    shape.before = CallTimes()
    shape.tally = Tally(watched=Counter(record=1, capture=2), replays=15, replay_ns=int(15e6), traced_ns=traced)
    for ms in (50.0, 4.0, 4.0, 4.0):
        shape.before.add(_Took(ms), cold=not len(shape.before))
    attention = engine.context.attention
    record, capture = attention.spent_ms("record"), attention.spent_ms("capture")
    account, _ = settle_calls([region], attention)
    assert attention.spent_ms("record") == pytest.approx(record - 3 * 4.0 - 73.0)
    assert attention.spent_ms("capture") == pytest.approx(capture - 2 * 4.0)
    assert (account.replays, account.replayed_ms, account.eager_ms) == (15, pytest.approx(15.0), 60.0)
    assert (account.samples, account.cold_ms) == (3, pytest.approx(46.0 + 73.0))


@pytest.mark.parametrize(("took_ms", "eager_ms", "released"), [(3.0, 1.0, True), (1.0, 1.0, False), (1.0, 3.0, False)])
def test_graphs_that_cost_the_cell_more_than_three_percent_go(
    took_ms: float, eager_ms: float, released: bool, observed: tuple[Engine, Region], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, region = observed
    (shape,) = region.shapes.values()
    shape.before, shape.after = CallTimes(), CallTimes()
    shape.before.add(_Took(eager_ms))
    shape.tally = Tally(replays=50, replay_ns=int(50 * took_ms * 1e6))
    _, replayed = settle_calls([region], engine.context.attention)
    engine.release_losses(replayed, 1000.0)
    assert region.entries  # the reference backend is never faster, and shows all the same
    with monkeypatch.context() as patched:
        patched.setattr(ReferenceBackend, "kind", "cuda")
        engine.release_losses(replayed, 100_000.0)
        assert region.entries  # too little of the cell to matter
        engine.release_losses(replayed, 40.0)
        assert region.entries  # more than the cell took: no times of these calls
        engine.release_losses(replayed, 1000.0)
    assert (region.refused is not None and region.refused.code == "GR406") is released
    assert bool(region.entries) is not released


def test_a_plain_cell_that_replays_made_slower_undoes_it(
    observed: tuple[Engine, Region], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, region = observed
    (shape,) = region.shapes.values()
    shape.before = CallTimes()
    shape.before.add(_Took(1.0))
    shape.tally = Tally(replays=50, replay_ns=150_000_000)
    assert engine.undo_slower() == [] and region.entries
    with monkeypatch.context() as patched:
        patched.setattr(ReferenceBackend, "kind", "cuda")
        (line,) = engine.undo_slower()
    assert "was slower with its graphs (3.00 ms a call, 1.00 ms as written): it runs as written again" in line
    assert not region.entries
