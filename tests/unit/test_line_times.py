"""What is told of the times of a cell's lines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from grape.model import Fix, LineTime, LineTimes, Stop
from grape.model.stream import READ
from grape.render import Report, build_report
from grape.render.lines import cell_lines, gpu_ms_by_line, shown_lines, warm_lines
from grape.render.timeline.recorded import recorded_report
from tests.unit.sample_evidence import at, cell, eager_timeline, host_sync, region, tape_cell
from tests.unit.test_streams_evidence import STREAM

SOURCE = "a = 1\nfor x in xs:\n    y = f(x)\n    z = y.item()\n\nb = 2\nc = 3\nd = 4\nprint(z)\n"


def lines_report(**changes: object) -> Report:
    times = LineTimes(
        lines=(LineTime(line=3, ms=60.0, replayed_ms=30.0), LineTime(line=4, ms=39.9), LineTime(line=9, ms=0.1)),
        looks=50,
    )
    known = {"file": "In[4]", "source": SOURCE, "lines": times, **changes}
    return build_report(tape_cell(region(at=at(3), end_line=4), **known), (host_sync(line=4),))


def test_lines_have_their_share_and_what_was_found_there() -> None:
    third, fourth, last = (warm_lines(lines_report())[number - 1] for number in (3, 4, 9))
    assert (third.took, third.notes, third.codes) == ("60%", ("30% in replays of lines 3 to 4",), ())
    assert (fourth.took, fourth.text, fourth.codes) == ("40%", "    z = y.item()", ("GR101",))
    assert last.took == "", "next to nothing"


def test_memory_of_a_line_is_told_where_it_is_some_of_the_peak() -> None:
    mb = 2**20  # the sample's peak is 310 MB
    grown = LineTimes(lines=tuple(LineTime(line=n, ms=9.0, grown_bytes=n * mb) for n in (1, 3, 4)), looks=50)
    report = build_report(cell(source=SOURCE, lines=grown), ())
    assert [warm_lines(report)[number - 1].notes for number in (1, 3, 4)] == [(), (), ("memory +4.00 MB",)]
    assert "<- memory +4.00 MB" in report.to_text() and "memory +4.00 MB" in report.to_html()
    known = recorded_report(report.to_dict())
    assert known.to_dict() == report.to_dict()
    assert [one["grown_bytes"] for one in report.to_dict()["cell"]["lines"]["lines"]] == [mb, 3 * mb, 4 * mb]


def test_text_html_and_view_show_the_lines() -> None:
    from grape.render.timeline.view import build_view

    report = lines_report()
    text, html, view = report.to_text(details=False), report.to_html(), build_view(report).data["lines"]
    assert "time by line, in run 1\n" in text
    assert "time by line, in run 1<" in html and ">40%<" in html
    assert view["shown"] == [3, 4] and view["rows"][3]["took"] == "40%"


def test_a_finding_stands_below_its_line_and_nowhere_else() -> None:
    from grape.render.timeline.view import build_view

    report = lines_report()
    text, html, view = report.to_text(details=False), report.to_html(), build_view(report).data["lines"]
    assert "   4   40% ▇▇▇          z = y.item()\n           GR101 host-sync, about 0.420 ms per call" in text
    assert text.count("GR101 host-sync") == 1 == html.count("GR101 host-sync")
    assert html.index("y.item()") < html.index("GR101 host-sync") < html.index("all lines")
    assert [row["found"] for row in view["rows"]] == [[], [], [], [0], [], [], [], [], []]
    assert "In[4], line 4" not in html[: html.index("all lines")], "its place is not said again"


def test_a_rewrite_stands_below_its_line_without_the_code_around_it() -> None:
    from grape.render.timeline.view import build_view
    from grape.rewrite import unified_diff

    new = SOURCE.replace("y.item()", "y.detach()").replace("d = 4", "d = 5")
    fix = Fix(id=1, diff=unified_diff(SOURCE, new, "In[4]"), verified=True)
    report = replace(lines_report(), findings=(host_sync(line=4, fix=fix),))
    changes = ["-    z = y.item()", "+    z = y.detach()", " ", " b = 2", " c = 3", "-d = 4", "+d = 5"]
    (found,) = build_view(report).data["findings"]
    assert found["fix"]["changes"].split("\n") == changes
    text, html = report.to_text(details=False), report.to_html()
    assert "".join(f"{' ' * 15}{line}".rstrip() + "\n" for line in changes) in text
    assert "+++" not in text and "@@" not in text and "@@" not in html
    assert ">-    z = y.item()<" in html and ">+    z = y.detach()<" in html


def test_what_was_found_elsewhere_or_is_one_too_many_stands_apart() -> None:
    other = replace(at(4), file="model.py")
    found = [host_sync(at=other), *(host_sync(line=3) for _ in range(3))]
    report = build_report(lines_report().evidence, found)
    assert cell_lines(report).found == {3: (1, 2)}, "the fourth is folded"
    assert "GR101 host-sync, model.py, line 4" in report.to_text() and "model.py, line 4" in report.to_html()
    assert "1 more finding" in report.to_html() and "In[4], line 3" in report.to_html()
    without = build_report(replace(lines_report().evidence, lines=None), found)
    assert cell_lines(without).found == {} and "GR101 host-sync, In[4], line 3" in without.to_text()


def test_where_there_is_no_room_the_warm_and_the_found_lines_stay() -> None:
    many = LineTimes(lines=tuple(LineTime(line=n, ms=float(n)) for n in range(1, 41)), looks=400)
    source = "".join(f"line_{n}()\n" for n in range(1, 41))
    report = build_report(tape_cell(source=source, lines=many), (host_sync(line=2),))
    shown = shown_lines(warm_lines(report), 5)
    assert [line.number if line else None for line in shown] == [2, None, 37, 38, 39, 40]


def test_a_cell_whose_lines_nobody_saw_shows_none() -> None:
    report = build_report(tape_cell(region()), (host_sync(line=1),))
    assert warm_lines(report) == () and "time by line" not in report.to_text() + report.to_html()


def test_a_gpus_work_and_waits_stand_at_the_line_that_caused_them() -> None:
    timeline = eager_timeline(calls=2, kernels=10)
    evidence = cell(region(before=timeline, calls=8), source="\n" * 20)
    placed = {event.position.line for event in timeline.device_events() if event.position is not None}
    assert placed == {12}
    per_call_ms = sum(event.duration_ns for event in timeline.device_events()) / 2 / 1e6
    assert gpu_ms_by_line(evidence) == {12: pytest.approx(8 * per_call_ms)}
    assert gpu_ms_by_line(replace(evidence, backend="tape")) == {}, "nothing was measured that counts"
    read = Stop(operator="aten::item", reason=READ, user=at(2), inner=None, times=9, total_ns=3_000_000, segments=9)
    streamed = replace(
        evidence,
        streams=(replace(STREAM, reads=(read,)),),
        lines=LineTimes(lines=(LineTime(line=2, ms=5.0),), looks=20),
    )
    (noted,) = (line for line in warm_lines(build_report(streamed, ())) if line.number == 2)
    assert noted.notes == ("waits 3.00 ms",)
