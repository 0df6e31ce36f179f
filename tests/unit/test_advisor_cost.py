"""The cost model: measured times, and None where nothing was measured."""

from __future__ import annotations

import pytest

from grape.advisor.cost import (
    call_ms,
    capture_ms,
    copy_ms,
    idle_ms,
    idle_share,
    sync_gap_ms,
    transfer_ms,
)
from grape.model import Event, Timeline
from grape.model.times.machine import H200
from tests.unit.trace_builder import ms, region, timeline

TO_HOST, TO_DEVICE = "Memcpy DtoH (Device -> Pageable)", "Memcpy HtoD (Pageable -> Device)"


def test_idle_time_is_per_call_and_counts_overlapping_work_once() -> None:
    two_streams = timeline((0, 40), (20, 60), wall_us=200, calls=2)
    assert idle_share(two_streams) == pytest.approx(0.7)
    assert idle_ms(two_streams) == pytest.approx(0.07)


@pytest.mark.parametrize("nothing", [None, timeline(wall_us=100)])
def test_nothing_measured_is_none(nothing: Timeline | None) -> None:
    assert idle_share(nothing) is None
    assert idle_ms(nothing) is None
    assert sync_gap_ms(nothing) is None
    assert capture_ms(nothing) is None
    assert transfer_ms(nothing, 4, 1.0) is None


def test_gaps_count_behind_copies_to_the_host_only() -> None:
    line = timeline((0, 10), (20, 25, TO_HOST, 4), (40, 50), (60, 65, TO_DEVICE, 4), (80, 90), wall_us=100)
    assert sync_gap_ms(line) == pytest.approx(0.015)


def test_work_on_another_stream_fills_the_gap() -> None:
    assert sync_gap_ms(timeline((0, 38), (20, 25, TO_HOST, 4), (40, 50), wall_us=100)) == pytest.approx(0.002)


def test_a_transfer_costs_its_launch_where_that_is_longer() -> None:
    events = (
        Event(name="cudaMemcpyAsync", lane="launch", category="runtime", start_ns=0, end_ns=30_000, correlation=5),
        Event(name=TO_DEVICE, lane="device", category="memcpy", start_ns=5_000, end_ns=7_000, correlation=5, bytes=64),
    )
    assert transfer_ms(Timeline(events=events, wall_ns=10**6), 64, 2.0) == pytest.approx(0.06)


def test_constants_name_the_machine_they_come_from() -> None:
    assert H200.source.startswith("H200")
    assert H200.host_copy_gb_per_s is None
    assert copy_ms(1_250_000, H200) == pytest.approx(0.001)
    assert capture_ms(timeline(*[(i * 10, i * 10 + 5) for i in range(312)], wall_us=4000)) == pytest.approx(40.0)


def test_a_call_takes_what_it_takes_now() -> None:
    assert call_ms(region(before_ms=ms(4.0), after_ms=ms(1.0))) == 4.0
    assert call_ms(region(outcome="replayed", before_ms=ms(4.0), after_ms=ms(1.0))) == 1.0
    assert call_ms(region(outcome="replayed", before_ms=ms(4.0))) == 4.0
    assert call_ms(region()) is None
