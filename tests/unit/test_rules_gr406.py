"""GR406: measured, the graph is not faster."""

from __future__ import annotations

import pytest

from grape.advisor.rules.gr4xx import gr406
from grape.model import Decision, Measured
from tests.unit.trace_builder import because, cell, ms, region, shapes

REFUSED = because("GR406", "the graph saves nothing")


def decision(action: str) -> Decision:
    return Decision(
        action=action,
        shapes="x [8, 20]",
        seen=2,
        expected_calls=4.0,
        saving_ms=1.5,
        capture_ms=40.0,
        why="4 calls would save 6 ms, the capture takes 40 ms",
    )


def test_measured_times_are_compared() -> None:
    slow = region(outcome="refused", refused=REFUSED, before_ms=ms(1.18, 0.1), after_ms=ms(1.2, 0.1))
    (finding,) = gr406.check(cell(slow))
    assert finding.message == "`step` was left eager: the graph is not faster, 1.2 ms per call against 1.18 ms eager"
    assert finding.severity == "hint"
    assert dict(finding.evidence)["after_ms"] == pytest.approx({"median": 1.2, "iqr": 0.1, "n": 30})


@pytest.mark.parametrize(
    ("after", "compared"),
    [(ms(0.8, 0.1), False), (ms(0.95, 0.2), True)],
    ids=["quartiles apart", "quartiles overlap"],
)
def test_not_faster_means_that_the_quartiles_overlap(after: Measured, compared: bool) -> None:
    (finding,) = gr406.check(cell(region(outcome="refused", refused=REFUSED, before_ms=ms(1.0, 0.1), after_ms=after)))
    assert ("the graph is not faster" in finding.message) is compared


def test_a_dropped_capture_gives_the_policys_reason() -> None:
    (finding,) = gr406.check(cell(region(decisions=(decision("wait"), decision("drop")))))
    assert finding.message == "`step` was left eager: 4 calls would save 6 ms, the capture takes 40 ms"
    assert (finding.advice, finding.predicted_ms_per_call) == (None, None)


def test_in_a_replayed_region_only_some_shapes_were_dropped() -> None:
    some = region(outcome="replayed", decisions=(decision("drop"),), shapes=shapes(*[{"x": (n,)} for n in range(1, 8)]))
    (finding,) = gr406.check(cell(some))
    assert finding.message.startswith("`step` was left eager for 1 of 7 shapes: ")


def test_waiting_and_capturing_are_no_findings() -> None:
    assert not list(gr406.check(cell(region(decisions=(decision("wait"), decision("capture"))))))
