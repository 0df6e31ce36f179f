"""Looks at the lines of a cell that another thread asks for, and what is told of them."""

from __future__ import annotations

import _thread
import dis
import functools
import signal
import sys
import threading
import time
import weakref
from dataclasses import replace

import pytest

from grape.model import Fix, LineTime, LineTimes, Stop
from grape.model.stream import READ
from grape.model.times.lines import FEWEST_LOOKS
from grape.profiling import LineWatch
from grape.profiling.lines import _of_one_line
from grape.render import Report, build_report
from grape.render.lines import cell_lines, gpu_ms_by_line, shown_lines, warm_lines
from grape.render.timeline.recorded import recorded_report
from tests.processes import lines_of
from tests.unit.sample_evidence import at, cell, eager_timeline, host_sync, region, tape_cell
from tests.unit.test_streams_evidence import STREAM

FILE = "<a cell>"


def replay(run: object) -> None:
    run()  # type: ignore[operator]


class Clock:
    """Nanoseconds that a test sets."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


def watched(source: str, steps_ns: list[int]) -> LineTimes | None:
    """What is seen where `source` calls `look()`, with so much time since the look before."""
    clock, left = Clock(), list(steps_ns)
    watch = LineWatch(FILE, replay.__code__, clock=clock)

    def look() -> None:
        clock.ns += left.pop(0)
        watch.look(sys._getframe())

    exec(compile(source, FILE, "exec"), {"look": look, "replay": replay})
    return watch.times(1000.0)


def test_each_look_stands_for_the_time_since_the_one_before_it() -> None:
    found = watched("for i in range(10):\n    look()\n    look()\n", [1, 3] * 10)
    assert found is not None and found.looks == 20
    assert [(line.line, line.ms) for line in found.lines] == [(2, pytest.approx(250)), (3, pytest.approx(750))]
    assert found.total_ms == pytest.approx(1000.0), "the lines take what the cell's own work took"


def test_a_function_of_the_cell_is_told_by_its_own_lines() -> None:
    found = watched("def f():\n    look()\n\nfor i in range(20):\n    f()\n", [1] * 20)
    assert found is not None and [line.line for line in found.lines] == [2]


def test_replays_are_told_apart() -> None:
    found = watched("for i in range(10):\n    look()\n    replay(look)\n", [1] * 20)
    assert found is not None
    assert [(line.line, line.replayed_ms) for line in found.lines] == [(2, 0.0), (3, pytest.approx(500.0))]
    assert found.replayed_share == pytest.approx(0.5)


def test_of_few_looks_or_of_a_part_of_the_cell_nothing_is_told() -> None:
    assert watched("look()\n" * (FEWEST_LOOKS - 1), [1] * FEWEST_LOOKS) is None
    watch = LineWatch(__file__, replay.__code__)
    for _ in range(FEWEST_LOOKS):
        watch.look(sys._getframe())
    assert watch.times(1.0) is not None
    watch.cut = True
    assert watch.times(1.0) is None


def test_a_look_holds_no_frame() -> None:
    """What a function of the cell made dies with its call."""

    class Held:
        pass

    def inner() -> weakref.ref[Held]:
        held = Held()
        watch.look(sys._getframe())
        return weakref.ref(held)

    watch = LineWatch(__file__, replay.__code__)
    assert inner()() is None


def test_looks_become_rare_where_they_cost_or_the_cell_takes_long() -> None:
    clock = Clock()
    watch = LineWatch(FILE, replay.__code__, clock=clock)
    assert watch.wait_s == pytest.approx(0.002)
    clock.ns += 10_000_000_000
    watch.look(sys._getframe())
    assert watch.wait_s == pytest.approx(0.02), "of ten seconds"


def asked(source: str, more: int = 0) -> LineWatch:
    """Where `source` calls `ask()`, somebody asks, and again `more` times before anyone may look."""
    watch = LineWatch(FILE, replay.__code__)

    def ask() -> None:
        for _ in range(1 + more):
            watch.ask()

    names = {"ask": ask, "nap": time.sleep}
    exec(compile(source, FILE, "exec"), names)
    return watch


def test_the_main_thread_looks_where_the_call_ends_that_it_is_in() -> None:
    found = asked("for i in range(10):\n    pass\n    ask()\n    pass\n", more=2)
    assert found.looks == 30 and not found.doubtful, "each counts for those that were asked for"
    times = found.times(100.0)
    assert times is not None and [line.line for line in times.lines] == [3]


def test_another_thread_asks() -> None:
    watch, done = LineWatch(__file__, replay.__code__), threading.Event()

    def asking() -> None:
        while not done.wait(0.001):
            watch.ask()

    asker = threading.Thread(target=asking)
    asker.start()
    end, line = time.perf_counter() + 0.3, sys._getframe().f_lineno + 1
    while time.perf_counter() < end and sum(range(100)):
        pass
    done.set()
    asker.join()
    times = watch.times(300.0)
    assert times is not None and times.looks >= 20
    near = sum(one.ms for one in times.lines if one.line in (line, line + 1))
    assert near > 0.9 * times.total_ms, "the loop took the time"


def test_in_another_thread_than_the_main_one_nobody_looks() -> None:
    made: list[LineWatch] = []
    worker = threading.Thread(target=lambda: made.append(asked("for i in range(20):\n    ask()\n")))
    worker.start()
    worker.join()
    assert made[0].looks == 0 and made[0].times(1.0) is None


COMPILED = """
import threading, time, torch
from torch._dynamo.utils import counters
from grape.profiling import LineWatch

watch, done = LineWatch("<string>", compile("", "", "exec")), threading.Event()

def run(x):
    for i in range(3):
        time.sleep(0.001)  # where torch.compile gives the function up, and compiles what it calls
        x = x.sin()
    return x

def asking():
    while not done.wait(0.0005):
        watch.ask()

threading.Thread(target=asking).start()
compiled = torch.compile(run, backend="eager")
for i in range(100):
    compiled(torch.ones(3))
done.set()
print(watch.looks >= 50, counters["frames"]["total"])
"""


def test_what_looks_is_not_compiled_where_torch_compile_runs() -> None:
    assert lines_of(COMPILED) == ["True 1"]


def test_a_watch_that_is_gone_is_not_asked_any_more() -> None:
    """A call that is still pending when the cell is over finds nobody."""
    watch = asked("ask()\n")
    gone = weakref.ref(watch)
    watch.ask()
    del watch
    assert gone() is None


@pytest.mark.parametrize(
    ("source", "doubtful"),
    [
        ("ask()\nnap(0.002)\n", False),
        ("below(ask)\n", False),
        ("y = x + x\nnap(0.002)\n", True),
        ("y = x[0]\nz = 1\nnap(0.002)\n", True),
        ("y = 1\nz = nap(x + x)\n", False),
        ("for i in y:\n    nap(i)\n", False),
        ("if y:\n    z = 1\nnap(0.002)\n", True),
        ("y = 1 if x else 2\nnap(0.002)\n", True),
        ("y = x or 2\nnap(0.002)\n", True),
    ],
)
def test_a_late_look_tells_the_line_where_nothing_else_took_time_before_it(source: str, doubtful: bool) -> None:
    """Of the last call at the top level."""
    code = compile(source, FILE, "exec")
    calls = [one.offset for one in dis.get_instructions(code) if one.opname.startswith("CALL")]
    assert (calls[-1] not in _of_one_line(code)) is doubtful


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="only Python 3.11 has this instruction")
def test_a_late_look_tells_the_line_of_a_builtin_that_runs_often() -> None:
    """Its specialized call is done by the instruction before."""
    code = compile("y = 1\nnap(0.002)\nz = y + y\nnap(0.002)\n", FILE, "exec")
    calls = [one.offset for one in dis.get_instructions(code) if one.opname == "PRECALL"]
    assert [offset in _of_one_line(code) for offset in calls] == [True, False]


def test_late_looks_of_which_the_line_is_not_known_are_doubtful() -> None:
    clock = Clock()
    for source, doubtful in (("y = x + 1\nlook()\n", True), ("look()\n", False)):
        watch = LineWatch(FILE, replay.__code__, clock=clock)

        def look(watch: LineWatch = watch) -> None:
            watch._asked_ns = clock()
            clock.ns += 1_000_000
            cell = sys._getframe(1)
            watch.look(cell)

        exec(compile(source, FILE, "exec"), {"look": functools.partial(look), "x": 1})
        assert watch.doubtful is doubtful, source


def test_a_call_that_held_the_lock_ended_before_somebody_could_ask() -> None:
    """Then the look comes after the next call, which is of another line."""
    interval_ns = int(sys.getswitchinterval() * 1e9)
    for late_ns, doubtful in ((0, False), (2_000_000, True), (interval_ns, False), (2 * interval_ns, True)):
        watch = LineWatch(FILE, replay.__code__)
        ask = functools.partial(_thread.start_new_thread, watch.ask, (late_ns,))
        exec(compile("ask()\nwhile not watch.looks:\n    pass\n", FILE, "exec"), {"ask": ask, "watch": watch})
        assert watch.looks == 1 and watch.doubtful is doubtful, late_ns


def test_a_statement_that_ends_with_an_operator_is_looked_at_when_its_frame_has_gone() -> None:
    for source, doubtful in (("\n\ny = x + 1\n", False), ("\n\nz = (\n    x + 1,\n    2 + x\n)\n", True)):
        watch, clock = LineWatch(FILE, replay.__code__), Clock()
        watch._clock, watch._before = clock, 0
        code = compile(source, FILE, "exec")
        watch.statement(code)
        clock.ns += 100
        watch.look(sys._getframe())
        assert [line for line, _ in watch._line_ns] == [3] and watch.doubtful is doubtful
        watch.statement(None)
        clock.ns += 900
        watch.look(sys._getframe())
        assert sum(watch._line_ns.values()) == 100, "the cell is over"


def test_an_error_that_comes_before_the_look_does_not_end_the_looking() -> None:
    watch = LineWatch(__file__, replay.__code__)
    watch._asked_ns, looks = 1, watch.looks  # asked for, and what was pending is gone
    for _ in range(3):
        watch.ask()
    assert watch.looks > looks and not watch.is_asked


class Stopped(Exception):
    pass


@pytest.mark.parametrize("kind", [Stopped, KeyboardInterrupt])
def test_what_a_handler_of_a_signal_raises_within_a_look_is_raised_in_the_cell(
    kind: type[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    def handler(*_: object) -> None:
        raise kind

    def clock() -> int:
        if watch is not None and watch.is_asked:
            signal.raise_signal(signal.SIGALRM)
        return time.perf_counter_ns()

    watch: LineWatch | None = None
    watch = LineWatch(__file__, replay.__code__, clock=clock)
    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(kind):
            watch.ask()
            time.sleep(0)
            time.sleep(0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert capfd.readouterr().err == ""


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
