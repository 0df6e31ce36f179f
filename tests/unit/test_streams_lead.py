"""When regions look at a cell that operator streams have served first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from grape.model import CellTime, OwnTime, StreamEvidence
from grape.model.stream import GROWS, WAITING
from grape.options import ENGINE, Options
from grape.sessions.past.history import Past
from grape.sessions.prospect import bar_over
from grape.sessions.streamed import lead
from grape.sessions.streamed.lead import (
    after_led_run,
    after_timed_run,
    has_to_be_timed,
    is_young,
    leads,
    may_be_looked_at,
)
from tests.unit.sample_past import LEFT

LONG = 10_000.0


def run(
    past: Past | None,
    *,
    operators: int = 100,
    matched: int = 90,
    saved: float | None = 0.4,
    backwards: int = 0,
    refused: bool = False,
    waiting: int = 0,
    rested: int = 0,
    doubted: int = 0,
    captured: int = 0,
    growing: int = 0,
    capture_ms: float = 0.0,
    as_written_ms: float = 1000.0,
) -> Past:
    found = StreamEvidence(
        name="In[1]",
        operators=operators,
        matched=matched,
        issued=0,
        recorded=0,
        as_written=((WAITING, waiting), (GROWS, growing)),
        segments=0,
        partial=0,
        iterations=0,
        diverged=0,
        last_divergence=None,
        fragments=0,
        steps=0,
        bytes=0,
        copies=0,
        copied_bytes=0,
        kept=0,
        own_ms=0.0,
        backwards=backwards,
        rested=rested,
        doubted=doubted,
        captured=captured,
    )
    plain_ms = None if saved is None else as_written_ms
    own = OwnTime(capture_ms=capture_ms)
    time = CellTime(wall_ms=as_written_ms * (1 - (saved or 0.0)), plain_ms=plain_ms, basis="", own=own)
    return after_led_run(
        past,
        evidence=LEFT.evidence,
        findings=(),
        found=None if refused else found,
        time=time,
        options=Options(),
        refused="a thread runs" if refused else None,
    )


def looked_at_after(**kinds: float | bool) -> int | None:
    past: Past | None = None
    for number in range(1, 9):
        past = run(past, **{"as_written_ms": LONG, **kinds})  # type: ignore[arg-type]
        if past.led is None:
            return None
        if may_be_looked_at(past.led):
            return number
    return None


def test_regions_look_once_streams_are_settled_and_have_paid_for_it() -> None:
    assert looked_at_after() == 3
    assert looked_at_after(saved=0.1) == 5
    assert looked_at_after(saved=0.0) is None
    assert looked_at_after(matched=60) is None, "something in it needs the host"
    assert looked_at_after(backwards=1) is None, "it trains"
    assert looked_at_after(as_written_ms=8000.0) is None, "a look takes too much of it"


def test_two_runs_have_to_be_alike() -> None:
    past = run(run(run(None, matched=70), matched=80), matched=90, as_written_ms=LONG)
    assert past.led is not None and not may_be_looked_at(past.led)
    past = run(past, matched=92, as_written_ms=LONG)
    assert past.led is not None and may_be_looked_at(past.led)


@pytest.mark.parametrize(("kind", "why"), [({"matched": 0}, "matched 0 of 100"), ({"saved": -0.2}, "made it slower")])
@pytest.mark.parametrize("backwards", [0, 1])
def test_where_streams_gain_nothing_it_runs_as_written(kind: dict[str, float], why: str, backwards: int) -> None:
    past = run(run(run(None, backwards=backwards), **kind), **kind)  # type: ignore[arg-type]
    assert past.led is None and past.settled and not past.served and past.runs == 1
    assert past.streamless is not None and why in past.streamless


def test_the_first_run_is_cold_and_loses_nothing() -> None:
    past = run(run(run(None, saved=-0.5), saved=-0.5))
    assert past.led is not None and past.lost == 0


def test_a_refusal_is_no_refusal_for_good() -> None:
    past = run(None, refused=True, as_written_ms=LONG)
    assert past.led is not None, "a thread may have been in the way"
    short = run(past, refused=True, saved=0.0, as_written_ms=999.0)
    assert short.led is None and short.settled and short.runs == 1, "a look costs it more than it can find"
    past = run(past, refused=True, saved=0.0, as_written_ms=1000.0)
    assert past.led is None and not past.settled and past.runs == 0, "regions look at the next run"
    past = run(run(run(None, backwards=1), refused=True), refused=True, saved=0.0, as_written_ms=LONG)
    assert past.led is None and past.settled and past.runs == 1, "it trains"


def test_graphs_have_to_be_faster_than_streams() -> None:
    assert bar_over(0.0) == pytest.approx(1 / 6) and bar_over(0.4) == pytest.approx(0.5)


def test_where_nothing_runs_on_the_gpu_the_cell_is_left() -> None:
    past = run(None, operators=0)
    assert past.settled and past.led is None and past.streamless == "no operator of it ran on the GPU"


def timed(past: Past, ms: float) -> Past:
    """After a run that took so long as written; those of `run` take 1000 ms, or what they save less."""
    return after_timed_run(past, CellTime(wall_ms=ms, plain_ms=ms, basis="", own=OwnTime()))


@pytest.mark.parametrize("kind", [{"saved": 0.14}, {"saved": -0.5}, {"saved": None}])
def test_a_run_is_timed_as_written_once_where_a_warm_one_saved_little(kind: dict[str, Any]) -> None:
    past = run(None, **kind)
    assert not has_to_be_timed(past), "the first run is cold"
    past = run(past, **kind)
    assert has_to_be_timed(past) and not has_to_be_timed(None)
    past = timed(past, 2000)
    assert past.led is not None and not has_to_be_timed(past)
    assert not has_to_be_timed(run(past, **kind)), "streams made it faster, whatever they can tell"


@pytest.mark.parametrize("kind", [{"saved": 0.16}, {"saved": 0.0, "waiting": 60, "matched": 71}, {"refused": True}])
def test_no_run_is_timed_where_streams_gain_or_are_on_their_way_or_were_refused(kind: dict[str, Any]) -> None:
    assert not has_to_be_timed(run(run(None), **kind))


EARLY = {"saved": 0.0, "matched": 1, "waiting": 60}


def test_while_little_matches_one_run_is_timed_and_however_long_it_waits_for_captures_no_other() -> None:
    past = run(run(None), **EARLY)
    assert has_to_be_timed(past)
    past = timed(past, 1000)
    for _ in range(12):
        past = run(past, **EARLY)
        assert past.led is not None and not has_to_be_timed(past)


def test_a_cell_that_never_ends_is_timed_early_once() -> None:
    past = after_timed_run(run(run(None), **EARLY), None)
    assert past.led is not None and not has_to_be_timed(past), "streams go on: no run of it would tell"


def test_what_clearly_gains_is_not_timed_however_little_matches() -> None:
    assert not has_to_be_timed(run(run(None), saved=0.16, matched=50, captured=1))
    assert has_to_be_timed(run(run(None), saved=0.14, matched=50, captured=1)), "estimates are off by as much"
    assert has_to_be_timed(run(run(None), saved=0.16, matched=40, captured=1))


def test_how_long_it_may_learn_is_decided_by_what_it_takes_as_written() -> None:
    """What the first warm run cost, of which the estimate saw nothing, counts; but later ones may still make graphs."""
    past = timed(run(run(None), **EARLY), 800)
    assert past.led is not None and past.paid == pytest.approx(0.24, abs=0.01)
    assert timed(run(run(None), **EARLY), 300).paid == 0.25
    assert is_young(ENGINE_OF_NO_RUNS, ("a", 1), past)
    for _ in range(2):
        past = run(past, **{**EARLY, "saved": -0.1}, captured=1)
        assert past.led is not None and past.led.learns and is_young(ENGINE_OF_NO_RUNS, ("a", 1), past)
    past = run(past, **{**EARLY, "saved": -0.1}, captured=1)
    assert past.streamless == "operator streams made it slower (1.00 -> 1.10 s)", "more was paid than half a run"


def test_regions_do_not_look_at_shapes_that_grow() -> None:
    assert looked_at_after() and looked_at_after(growing=1) is None


def test_runs_of_other_work_are_timed_again_where_nothing_tells_what_they_save() -> None:
    past = timed(run(run(None, saved=None), saved=None), 2000)
    past = run(past, saved=None)
    assert not has_to_be_timed(past) and has_to_be_timed(run(past, saved=None))


@pytest.mark.parametrize(
    ("as_written", "rested", "why"),
    [(900, 0, "made it slower (0.90 -> 1.00 s)"), (1010, 0, "made it no faster"), (900, 1, "made it slower")],
)
def test_what_streams_make_no_faster_is_given_up(as_written: float, rested: int, why: str) -> None:
    past = timed(run(run(None, saved=0.0), saved=0.0, rested=rested), as_written)
    assert past.led is None and past.settled and past.runs == 1
    assert past.streamless is not None and why in past.streamless


def test_a_run_in_which_some_of_it_went_as_written_to_compare_is_not_held_against_streams() -> None:
    good = run(run(run(None), saved=0.5), saved=0.5)
    doubted = run(good, saved=-0.3, doubted=40)
    assert doubted.led is not None and good.led is not None
    assert (doubted.lost, doubted.led.gains, doubted.led.wall_ms) == (0, True, good.led.wall_ms)
    assert not has_to_be_timed(doubted)
    again = run(doubted, saved=-0.3, doubted=40)
    assert again.lost == 1 and has_to_be_timed(again), "but not in each of its runs"
    assert has_to_be_timed(run(good, saved=-0.02, doubted=4)), "so few of them change little"


@pytest.mark.parametrize(
    ("saved", "capture_ms", "excused"), [(-0.1, 0.0, True), (-0.4, 0.0, False), (-0.4, 300.0, True)]
)
def test_what_went_as_written_to_compare_excuses_no_more_than_it_may_have_taken(
    saved: float, capture_ms: float, excused: bool
) -> None:
    good = run(run(run(None), saved=0.5), saved=0.5)
    compared = run(good, saved=saved, doubted=10, capture_ms=capture_ms)
    assert compared.led is not None and compared.led.doubted == excused
    unknown = run(good, saved=None, doubted=10)
    assert unknown.led is not None and unknown.led.doubted


@pytest.mark.parametrize(("as_written", "rested"), [(1040, 0), (1010, 1)])
def test_what_streams_make_faster_or_may_yet_goes_on(as_written: float, rested: int) -> None:
    past = timed(run(run(None, saved=0.0), saved=0.0, rested=rested), as_written)
    assert past.led is not None and past.led.timed == (not rested) and past.streamless is None


def test_captures_of_a_run_do_not_put_its_gain_in_doubt() -> None:
    past = run(run(None), saved=0.0, capture_ms=200.0)
    assert past.led is not None and past.led.gains and not has_to_be_timed(past)


def test_captures_of_the_run_that_is_compared_are_no_loss() -> None:
    past = timed(run(run(None, saved=0.0), saved=0.0, capture_ms=300.0), 900)
    assert past.led is not None and past.streamless is None, "700 ms, once they are made"


@pytest.mark.parametrize("made", [{"captured": 2}, {"rested": 1}, {"waiting": 5}])
def test_while_graphs_are_made_no_run_is_timed_as_written(made: dict[str, int]) -> None:
    past = run(None)
    for _ in range(5):
        past = run(past, saved=-0.05, **made)
        assert not has_to_be_timed(past) and past.streamless is None
    untold = run(run(run(None, saved=None, **made), saved=None, **made), saved=None, **made)
    assert not has_to_be_timed(untold)


def test_runs_that_make_graphs_for_ever_are_timed_after_all() -> None:
    past: Past | None = None
    for _ in range(9):
        assert not has_to_be_timed(past)
        past = run(past, saved=0.0, captured=1)
    assert has_to_be_timed(past)


def test_while_graphs_are_made_and_nothing_tells_what_that_costs_a_run_is_timed_earlier() -> None:
    def untold(runs: int) -> Past:
        past = None
        for _ in range(runs):
            past = run(past, saved=None, captured=1, as_written_ms=1000.0)
        assert past is not None
        return past

    assert not has_to_be_timed(untold(3)) and has_to_be_timed(untold(4))
    slower = timed(untold(4), 960)
    assert slower.streamless == "operator streams made it slower (0.96 -> 1.00 s)"
    past = timed(untold(4), 1000)
    assert past.led is not None and not past.led.timed and past.led.untold == 0, "graphs may gain something yet"
    for _ in range(4):
        assert not has_to_be_timed(past)
        past = run(past, saved=None, captured=1)
    assert has_to_be_timed(past)


def young(runs: int, **kinds: Any) -> list[bool]:
    past, told = None, []
    for _ in range(runs):
        told.append(past is None or is_young(ENGINE_OF_NO_RUNS, ("a", 1), past))
        past = run(past, **kinds)
    return told


def test_while_graphs_are_made_runs_may_spend_more_on_them() -> None:
    assert young(10, captured=1) == [True] * 8 + [False] * 2
    assert young(6, captured=0) == [True] * 4 + [False] * 2, "the third or fourth may be the first with captures"


def test_more_is_spent_no_longer_once_it_has_cost_a_quarter_of_a_run_or_nobody_knows_what() -> None:
    assert young(4, captured=1, saved=-0.3) == [True, True, False, False]
    assert young(5, captured=1, saved=-0.1) == [True] * 4 + [False]
    assert young(5, captured=1, saved=None) == [True, True, False, False, False]


def test_what_was_made_in_an_earlier_run_lets_no_later_one_spend_more() -> None:
    past = run(run(run(None, captured=1), captured=1), captured=0)
    assert not is_young(ENGINE_OF_NO_RUNS, ("a", 1), past)


ENGINE_OF_NO_RUNS: Any = SimpleNamespace(runs={})
KIND = {"unhurried": False, "backend": SimpleNamespace(kind="cuda")}


@pytest.mark.parametrize(
    ("options", "context", "hindered", "refused"),
    [
        ({"profile": True}, {}, None, None),
        ({"rewrite": True}, {}, None, None),
        ({"engine": "regions"}, {}, None, None),
        ({}, {"unhurried": True}, None, None),
        ({}, {"backend": SimpleNamespace(kind="reference")}, None, None),
        ({}, {}, "beside a process group", None),
        ({}, {}, None, "no compiler"),
    ],
)
def test_where_streams_do_not_come_first(
    options: dict[str, Any],
    context: dict[str, Any],
    hindered: str | None,
    refused: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(ENGINE, raising=False)
    monkeypatch.setattr(lead, "hindrance", lambda owner: hindered)
    monkeypatch.setattr(lead, "shared", SimpleNamespace(prepare=lambda: refused))
    owner: Any = SimpleNamespace(context=SimpleNamespace(**{**KIND, **context}))
    assert not leads(owner, Options(**options))
    monkeypatch.setattr(lead, "hindrance", lambda owner: None)
    monkeypatch.setattr(lead, "shared", SimpleNamespace(prepare=lambda: None))
    assert leads(SimpleNamespace(context=SimpleNamespace(**KIND)), Options())  # type: ignore[arg-type]


def test_beside_a_process_group_streams_come_first_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions would stand aside there."""
    monkeypatch.delenv(ENGINE, raising=False)
    monkeypatch.setattr(lead, "hindrance", lambda owner: None)
    monkeypatch.setattr(lead, "shared", SimpleNamespace(prepare=lambda: None))
    reference: Any = SimpleNamespace(context=SimpleNamespace(**{**KIND, "unhurried": True}))
    assert not leads(reference, Options())
    monkeypatch.setattr("grape.tracing.process_group", lambda: True)
    assert leads(reference, Options())
