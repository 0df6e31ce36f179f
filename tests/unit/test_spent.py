"""What a cell's time was spent on: parts that add up to it."""

from __future__ import annotations

import json
from dataclasses import replace
from html import unescape

import pytest

from grape.model import CellEvidence, Event, LineTime, LineTimes, Stop, Timeline
from grape.model.stream import READ
from grape.render import build_report
from grape.render.spent import data_ms, in_words, legend, shares_of, spent
from grape.render.timeline.recorded import recorded_report
from grape.render.timeline.view import build_view
from tests.unit.sample_evidence import at, cell, measured, region, sample, tape_cell, took
from tests.unit.test_rules_gr303 import wait
from tests.unit.test_streams_evidence import STREAM


def timeline(*spans: tuple[str, int, int], wall: int = 100) -> Timeline:
    """Kernels, and calls of the driver by their name."""
    events = tuple(
        Event(name=name, lane="device", category="kernel", start_ns=start, end_ns=end)
        if name == "kernel"
        else Event(name=name, lane="launch", category="runtime", start_ns=start, end_ns=end)
        for name, start, end in spans
    )
    return Timeline(events=events, wall_ns=wall, calls=1)


@pytest.mark.parametrize(
    ("spans", "waiting", "gpu"),
    [
        ([("kernel", 0, 40)], 0.0, 0.4),
        ([("kernel", 0, 40), ("cudaStreamSynchronize", 20, 60)], 0.4, 0.2),
        ([("kernel", 0, 40), ("cudaLaunchKernel", 0, 90)], 0.0, 0.4),
        ([("kernel", 0, 40), ("kernel", 10, 30), ("cudaMemcpy", 40, 50)], 0.1, 0.4),
        ([("kernel", 0, 40), ("cudaMemcpyAsync", 40, 50)], 0.0, 0.4),
    ],
)
def test_the_host_waits_or_the_gpu_works_beside_it(
    spans: list[tuple[str, int, int]], waiting: float, gpu: float
) -> None:
    assert shares_of(timeline(*spans)) == pytest.approx((waiting, gpu))


def parts(evidence: CellEvidence) -> dict[str, dict[str, float]]:
    return {
        one.when: {part.kind: pytest.approx(part.ms) for part in one.parts} for one in spent(build_report(evidence, ()))
    }


HALF = timeline(("kernel", 0, 50), ("cudaStreamSynchronize", 40, 60))


def test_calls_are_divided_as_the_profiled_ones_were() -> None:
    one = region(before=HALF, before_ms=measured(10.0), calls=20, replays=0, outcome="observed", after_ms=None)
    found = parts(cell(one, time=took(300.0, 320.0)))
    assert found["before"] == {"python": 80.0, "gpu": 80.0, "waiting": 40.0, "unprofiled": 100.0}
    assert found["after"] == {"python": 80.0, "gpu": 80.0, "waiting": 40.0, "grape": 20.0, "unprofiled": 100.0}


def test_replays_are_divided_as_the_profiled_replay_was() -> None:
    after = timeline(("kernel", 0, 100))
    one = region(before=HALF, before_ms=measured(10.0), after=after, after_ms=measured(2.0), calls=20, replays=15)
    found = parts(cell(one, time=took(250.0, 150.0)))
    assert found["after"] == {"python": 20.0, "gpu": 50.0, "waiting": 10.0, "grape": 20.0, "unprofiled": 50.0}


def test_regions_inside_of_others_count_once() -> None:
    outer = region("outer", before=HALF, before_ms=measured(10.0), calls=20, replays=0, outcome="observed")
    inner = region("inner", before=HALF, before_ms=measured(5.0), calls=20, parent="outer", outcome="observed")
    alone = parts(cell(outer, time=took(300.0, 320.0)))
    assert parts(cell(outer, inner, time=took(300.0, 320.0))) == alone


@pytest.mark.parametrize("plain_ms", [10.0, 150.0, 860.0])
def test_parts_add_up_to_the_cell(plain_ms: float) -> None:
    evidence, findings = sample()
    for one in spent(build_report(replace(evidence, time=took(plain_ms, 2 * plain_ms)), findings)):
        assert sum(part.ms for part in one.parts) == pytest.approx(one.total_ms)
        assert all(part.ms > 0 for part in one.parts)


LOOP = (
    "for batch in tqdm(loader):\n    step(batch)\nfor i in range(3):\n    pass\nfor i, x in enumerate(xs):\n    f(x)\n"
)


def test_loops_wait_for_data_at_their_own_line() -> None:
    times = LineTimes(lines=tuple(LineTime(line=line, ms=10.0 * line) for line in range(1, 7)), looks=99)
    assert data_ms(cell(source=LOOP, lines=times)) == pytest.approx(10.0 + 50.0), "of what is no counter"
    assert data_ms(cell(source="for", lines=times)) == 0.0 == data_ms(cell(source=LOOP))


def test_what_a_loader_took_is_known_better_than_from_its_line() -> None:
    times = LineTimes(lines=tuple(LineTime(line=line, ms=10.0 * line) for line in range(1, 7)), looks=99)
    inside = wait(at=replace(at(2), file="loader.py"), host_ms=7.0)  # a function's, called by the loop
    assert data_ms(cell(source=LOOP, lines=times, loaders=(wait(host_ms=12.0),))) == pytest.approx(12.0 + 50.0)
    assert data_ms(cell(source=LOOP, lines=times, loaders=(inside,))) == pytest.approx(7.0 + 10.0 + 50.0)
    assert data_ms(cell(loaders=(inside,))) == 7.0


def test_streams_tell_what_the_host_waited_for_and_nothing_else() -> None:
    read = Stop(operator="aten::item", reason=READ, user=at(2), inner=None, times=9, total_ns=50_000_000, segments=9)
    evidence = cell(streams=(replace(STREAM, reads=(read,), own_ms=10.0),), time=took(400.0, 300.0))
    assert parts(evidence)["after"] == {"waiting": 50.0, "grape": 30.0, "unprofiled": 220.0}


def test_without_a_gpu_or_a_profile_there_is_no_picture() -> None:
    for evidence in (tape_cell(region()), cell(region(before=None)), cell(region(), time=None), cell()):
        report = build_report(evidence, ())
        assert spent(report) == () and report.to_dict()["cell"]["spent"] is None


def test_text_and_html_have_the_figures_of_the_dict() -> None:
    report = build_report(*sample())
    before, after = spent(report)
    assert in_words(after) == "0.30 s: Python, GPU idle 18%, GPU busy 20%, Grape 7%, not profiled 55%"
    words = [said for _, said in legend((before, after))]
    assert words == [
        "Python, GPU idle 0.27 -> 0.05 s",
        "GPU busy 50 -> 60 ms",
        "Grape 0.02 s",
        "not profiled 0.54 -> 0.17 s",
    ]
    view = build_view(report).data
    assert [one["words"] for one in view["legend"]] == words
    assert [(one["total"], one["value"]) for one in view["spent"]] == [
        ("0.86 s", in_words(before)),
        ("0.30 s", in_words(after)),
    ]
    for said in (*words, "0.86 s", "0.30 s"):
        assert said in report.to_text(width=200) and said in unescape(report.to_html())
    for known in report.to_dict()["cell"]["spent"]:
        assert sum(ms for name, ms in known.items() if name not in ("when", "total_ms")) == pytest.approx(
            known["total_ms"]
        )


def test_a_recorded_report_has_its_picture_and_the_lines_that_streams_stopped_at() -> None:
    read = Stop(operator="aten::item", reason=READ, user=at(2), inner=None, times=9, total_ns=50_000_000, segments=9)
    report = build_report(cell(streams=(replace(STREAM, reads=(read,)),), time=took(400.0, 300.0)), ())
    content = json.loads(report.to_json())
    again = recorded_report(content)
    assert json.loads(again.to_json()) == content
    words = [said for _, said in legend(spent(report))]
    assert words == ["waiting for the GPU 0.05 s", "Grape 0.02 s", "not profiled 0.40 -> 0.23 s"]
    assert all(said in again.to_text(width=200) for said in words)
