"""GR501: the GPU waits for launches."""

from __future__ import annotations

import pytest

from grape.advisor.rules.gr5xx import gr501
from tests.unit.trace_builder import cell, ms, region, timeline

# Two calls of 500 us with 10 kernels of 20 us each: busy 20 * 20 of 1000 us.
IDLE = timeline(*[(i * 50, i * 50 + 20) for i in range(20)], wall_us=1000, calls=2)


def test_says_share_kernels_and_mean_time() -> None:
    (finding,) = gr501.check(cell(region(before=IDLE)))
    assert finding.message == (
        "the GPU is idle 60% of each eager call of `step` (0.3 ms): 10 kernels of 20 us each wait for their launches"
    )
    assert finding.severity == "costly"
    assert finding.predicted_ms_per_call == pytest.approx(0.3 - 10 * 0.00084)


def test_idle_time_is_that_of_calls_that_nobody_profiled() -> None:
    """Under the profiler a call takes longer: 0.5 ms of the timeline were 0.25 ms, 0.2 ms of them on the device."""
    assert not list(gr501.check(cell(region(before=IDLE, before_ms=ms(0.25)))))
    (finding,) = gr501.check(cell(region(before=IDLE, before_ms=ms(0.4))))
    assert finding.message.startswith("the GPU is idle 50% of each eager call of `step` (0.2 ms)")


def test_a_replayed_region_has_the_gain_already() -> None:
    after = timeline((0, 90), wall_us=100)
    (finding,) = gr501.check(cell(region(outcome="replayed", before=IDLE, after=after)))
    assert finding.message.startswith("the GPU was idle 60% of each eager call")
    assert finding.message.endswith("; with the graph 10%")
    assert (finding.severity, finding.predicted_ms_per_call, finding.advice) == ("hint", None, None)


def test_what_is_left_is_of_replays_that_nobody_profiled() -> None:
    """Profiled, a replay took 0.4 ms, 90 us of them on the device; one of 0.1 ms is idle 10% of its time."""
    after = timeline((0, 90), wall_us=400)
    (finding,) = gr501.check(cell(region(outcome="replayed", before=IDLE, after=after, after_ms=ms(0.1))))
    assert finding.message.endswith("; with the graph 10%")
    assert dict(finding.evidence)["idle_share_after"] == pytest.approx(0.1)


@pytest.mark.parametrize(("busy_us", "found"), [(70, 1), (71, 0), (69, 1)])
def test_the_borderline_is_30_percent(busy_us: int, found: int) -> None:
    assert len(list(gr501.check(cell(region(before=timeline((0, busy_us), wall_us=100)))))) == found


def test_says_nothing_without_device_events_or_without_cuda() -> None:
    assert not list(gr501.check(cell(region(before=timeline(wall_us=100)))))
    assert not list(gr501.check(cell(region())))
    assert not list(gr501.check(cell(region(before=IDLE), cuda=False)))
