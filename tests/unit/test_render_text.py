from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import pytest

from grape.model import CellEvidence, Decision, Event, Finding, GraphMemory, MemoryCurve, Timeline
from grape.model.times.timeline import disjoint
from grape.render import build_report
from grape.render.memory_rows import graph_stores, memory_bars
from grape.render.summary import busy_buckets, level, strips, time_bars
from grape.render.verdict.next_step import NO_FILE
from tests.unit.sample_evidence import (
    cell,
    fix,
    host_sync,
    launch_bound,
    measured,
    memory_curve,
    operators,
    refused,
    region,
    replay_timeline,
    sample,
    tape_cell,
    took,
)

DROPPED = Decision(
    action="drop", shapes="x (1,)", seen=3, expected_calls=2.0, saving_ms=0.1, capture_ms=40.0, why="little to save"
)

EXPECTED = """\
cell 2.9x faster (0.86 -> 0.30 s), outputs identical, 1 blocker left; Grape itself took 0.02 s
In[4] took 300 ms; NVIDIA H200; 64 calls of GPT2LMHeadModel.forward: 6 as
written, 58 replayed

before  ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓███······································  0.86 s
after   ▓▓▓▓████+············  0.30 s
        ▓ Python, GPU idle 0.27 -> 0.05 s   █ GPU busy 50 -> 60 ms
        + Grape 0.02 s   · not profiled 0.54 -> 0.17 s

GR101 host-sync, In[4], line 11, about 0.420 ms per call, blocker
  .item() makes the CPU wait for the GPU in every step
  fix: keep the value on the GPU and read it after the loop
    --- In[4]
    +++ In[4]
    @@ -11 +11 @@
    -    if done.item() < 1:
    +    with grape.Predicate(done < 1):

GR501 launch-bound, In[4], line 7, about 3.54 ms per call, hint
  the GPU waits for launches 84% of the time

next: %grape apply 2 rewrites In[4], line 11 (GR101 host-sync)

the plain cell takes 860 ms: measured in run 2 of this cell

region                 outcome  calls replays   before   after speedup outputs
────────────────────────────────────────────────────────────────────────────────
…T2LMHeadModel.forward replayed    64      58  4.68 ms 1.14 ms    4.1x identical
  In[4], line 7
sample_token           refused     64       0 0.310 ms       -       - -
  In[4], line 3        GR101

time per call of GPT2LMHeadModel.forward
  before  ██████████████████████████  4.68 ms (n=44, IQR 93.6 us)
  after   ██████                      1.14 ms (n=40, IQR 22.8 us)

GPU over time (· idle, █ busy)
  before  ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░
          3 profiled calls in 14.0 ms, GPU busy 16%, 269 GPU operations a call
  after   ▓███░▓███░▓███░
          3 profiled calls in 3.42 ms, GPU busy 79%, 312 GPU operations a call

GPU memory
  peak allocated      ████████                    310 MB
  peak reserved       ██████████                  400 MB
  graphs              █                           1.16 MB
  device, all in use  ██████████████████████████  1,000 MB
"""


def test_the_sample_in_eighty_columns() -> None:
    assert build_report(*sample()).to_text() == EXPECTED


@pytest.mark.parametrize("width", [40, 60, 76, 80, 120])
def test_only_the_verdict_and_a_diff_are_wider_than_asked(width: int) -> None:
    lines = build_report(*sample()).to_text(width=width).splitlines()
    assert all(len(line) <= width for line in lines[1:] if not line.startswith("    "))


def test_plain_text_has_no_escape_and_coloured_text_the_same_words() -> None:
    report = build_report(*sample())
    plain, coloured = report.to_text(), report.to_text(color=True)
    assert "\x1b" not in plain
    assert "\x1b[" in coloured
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in stripped.splitlines()] == plain.splitlines()


def test_environment_does_not_change_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FORCE_COLOR": "1", "COLUMNS": "20", "TERM": "dumb", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    assert build_report(*sample()).to_text() == EXPECTED
    assert "\x1b[" in build_report(*sample()).to_text(color=True)


def test_three_findings_then_a_count() -> None:
    report = build_report(cell(region()), tuple(host_sync(line) for line in range(1, 8)))
    short = report.to_text(details=False)
    assert short.count("GR101 host-sync") == 3 and "\nand 4 more: import grape; print(grape.last)\n" in short
    text = report.to_text()
    assert text.count("GR101 host-sync") == 7
    assert re.search(r"^and 4 more:\n  GR101 host-sync, In\[4\], line \d, (costly|blocker): ", text, re.MULTILINE)


def test_markup_and_escapes_of_the_person_are_shown_not_obeyed() -> None:
    finding = host_sync(message="x[bold red]y[/] \x1b[2J :smile:", advice="[link=http://x]z[/link]")
    text = build_report(cell(region("f[red]\x07")), (finding,)).to_text()
    assert "x[bold red]y[/] \ufffd[2J :smile:" in text
    assert "[link=http://x]z[/link]" in text
    assert "f[red]\ufffd" in text
    assert "\x1b" not in text


def test_an_empty_report_and_one_with_only_an_error() -> None:
    assert build_report(tape_cell(time=None), ()).to_text() == (
        "no PyTorch work in this cell\nIn[4] took 310 ms; CPU (rehearsal)\n"
    )
    text = build_report(tape_cell(error="ValueError: boom\nmore", notes=("NVML is missing",), time=None), ()).to_text()
    assert text.splitlines()[2:] == ["the cell raised ValueError: boom", "note: NVML is missing"]


@pytest.mark.parametrize(
    ("evidence", "findings", "step"),
    [
        (cell(region()), (host_sync(fix=fix()),), "%grape apply 2 rewrites In[4], line 11 (GR101 host-sync)"),
        (cell(region()), (host_sync(),), "fix GR101 at In[4], line 11, as said there"),
        (cell(region()), (launch_bound(),), "later cells use the same graphs; %grape undo returns to eager execution"),
        (
            cell(region(after=replay_timeline(kernel_us=3.5))),
            (),
            "the GPU is busy: %grape whatif model(...), with your call, measures what would help beside graphs",
        ),
        (cell(region(), time=took(300.0, 420.0)), (), "%grape undo returns to eager execution"),
        (cell(region(outcome="observed")), (), "run the cell again: what was observed now is captured then"),
        (
            cell(region(outcome="observed", shapes=region().shapes)),
            (),
            "run the cell again: the graphs captured now are replayed then",
        ),
        (cell(region(outcome="observed", decisions=(DROPPED,))), (), None),
        (cell(region(outcome="observed"), given_up="graphs would save too little"), (), None),
        (tape_cell(region()), (), "run it on an NVIDIA GPU to measure; %grape doctor says what works on this machine"),
        (cell(refused("GR405", "autograd")), (), None),
        (cell(), (), None),
    ],
)
def test_one_next_step(evidence: object, findings: tuple[object, ...], step: str | None) -> None:
    text = build_report(evidence, findings).to_text(width=200)  # type: ignore[arg-type]
    assert re.findall(r"^next: (.*)$", text, flags=re.MULTILINE) == ([step] if step else [])


@pytest.mark.parametrize(
    ("evidence", "findings", "step"),
    [
        (
            cell(region()),
            (host_sync(fix=fix()),),
            "grape apply 'my run.ipynb' --cell 4 writes a copy with In[4], line 11 rewritten (GR101 host-sync)",
        ),
        (
            cell(region()),
            (host_sync(fix=replace(fix(), verified=False)),),
            "grape apply 'my run.ipynb' --cell 4 --unverified writes a copy with In[4], line 11 rewritten "
            "(GR101 host-sync)",
        ),
        (cell(region()), (launch_bound(),), "put %%grape on top of the cell to have its graphs when the notebook runs"),
        (cell(region(), time=took(300.0, 420.0)), (), None),
        (
            cell(region(outcome="observed")),
            (),
            "put %%grape on top of the cell and run it twice: what was observed now is captured then",
        ),
        (tape_cell(region()), (), "run it on an NVIDIA GPU to measure; grape doctor says what works on this machine"),
    ],
)
def test_one_next_step_outside_of_the_notebook(
    evidence: CellEvidence, findings: tuple[Finding, ...], step: str | None
) -> None:
    report = replace(build_report(evidence, findings), notebook="'my run.ipynb' --cell 4")
    assert re.findall(r"^next: (.*)$", report.to_text(width=200), flags=re.MULTILINE) == ([step] if step else [])


def test_where_no_report_was_written_it_is_written_first() -> None:
    report = replace(build_report(cell(region()), (host_sync(fix=fix()),)), notebook=f"train.py {NO_FILE}")
    said = "run it again as grape run --json FILE train.py, then grape apply train.py --report FILE writes a copy with"
    assert f"next: {said} In[4], line 11 rewritten" in report.to_text(width=200)


def test_on_the_tape_memory_is_that_of_the_process_and_no_bar_is_of_time() -> None:
    shown = build_report(tape_cell(region(), memory=memory_curve()), ()).to_text()
    assert "\nprocess memory\n  peak resident  " in shown
    assert "time per call" not in shown and "time of the cell" not in shown
    assert "checked" in shown and "replayed " not in shown.partition("\n\n")[2], "a rehearsal replays nothing for you"
    assert "GPU memory" not in shown and "peak allocated" not in shown
    html = build_report(tape_cell(region(), memory=memory_curve()), ()).to_html()
    assert "process memory" in html and "GPU memory" not in html


def test_memory_is_shown_only_where_something_ran() -> None:
    assert memory_bars(build_report(tape_cell(memory=memory_curve()), ())) == ()
    assert memory_bars(build_report(tape_cell(region(graph_bytes=0), memory=MemoryCurve()), ())) == ()
    (bar,) = memory_bars(build_report(tape_cell(trace=operators(), memory=memory_curve()), ()))
    assert (bar.label, bar.value, bar.share) == ("peak resident", "310 MB", 1.0)


def test_bars_are_proportional_to_the_medians() -> None:
    before, after = time_bars(build_report(*sample()))
    assert before.share == 1.0
    assert after.share == pytest.approx(1.14 / 4.68)
    assert time_bars(build_report(cell(region(before_ms=measured(0.0), after_ms=None)), ()))[0].share == 0.0


def kernel(start: int, end: int) -> Event:
    return Event(name="k", lane="device", category="kernel", start_ns=start, end_ns=end)


@pytest.mark.parametrize(
    ("events", "window", "buckets", "busy"),
    [
        ([], 100, 2, (0.0, 0.0)),
        ([kernel(0, 100)], 100, 4, (1.0, 1.0, 1.0, 1.0)),
        ([kernel(0, 25), kernel(40, 60)], 100, 2, (0.7, 0.2)),
        ([kernel(0, 30), kernel(10, 30), kernel(20, 40)], 100, 2, (0.8, 0.0)),
        ([kernel(90, 400)], 100, 2, (0.0, 0.2)),
        ([kernel(0, 1)], 0, 4, ()),
    ],
)
def test_busy_buckets(events: list[Event], window: int, buckets: int, busy: tuple[float, ...]) -> None:
    spans = disjoint((event.start_ns, event.end_ns) for event in events)
    assert busy_buckets(spans, window, buckets) == pytest.approx(busy)


def test_busy_buckets_keep_the_busy_time_of_the_timeline() -> None:
    timeline = sample()[0].regions[0].before
    assert timeline is not None
    shares = busy_buckets(timeline.busy_spans(), timeline.wall_ns, 60)
    assert sum(shares) / 60 == pytest.approx(timeline.gpu_busy_share)


def test_strips_share_a_time_scale_over_equally_many_calls() -> None:
    before, after = strips(build_report(*sample()))
    assert (len(before.buckets), len(after.buckets)) == (60, round(60 * 1.14 / 4.68))
    one = Timeline(events=(kernel(0, 500_000),), wall_ns=1_000_000, calls=1)
    ten = Timeline(events=(kernel(0, 500_000),), wall_ns=5_000_000, calls=10)
    first, second = strips(build_report(cell(region(before=one, after=ten)), ()))
    assert (len(first.buckets), len(second.buckets)) == (60, 30)
    assert first.value == "1 profiled call in 1.00 ms, GPU busy 50%, 1 GPU operation a call"


@pytest.mark.parametrize(("share", "step"), [(0.0, 0), (1e-9, 1), (0.3, 2), (0.74, 3), (0.75, 4), (1.0, 4)])
def test_levels(share: float, step: int) -> None:
    assert level(share) == step


def test_representations_of_a_report() -> None:
    report = build_report(*sample())
    assert repr(report) == f"<grape.Report: {report.verdict}>"
    assert str(report) == report.to_text()
    assert report._repr_mimebundle_() == {"text/plain": report.to_text(), "text/html": report.to_html()}
    assert list(report._repr_mimebundle_(include={"text/html"})) == ["text/html"]
    assert list(report._repr_mimebundle_(exclude={"text/html"})) == ["text/plain"]


def test_importing_the_renderers_imports_no_torch_ipython_or_rich() -> None:
    code = "import sys, grape.render; print([m for m in ('torch', 'IPython', 'rich', 'pygments') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


HELD = GraphMemory(
    pool_bytes=2 * 2**20,
    placeholder_bytes=2**20,
    executable_bytes=1_216_348,
    record_bytes=8 * 2**10,
    host_graph_bytes=0,
    graphs=1019,
    classes=2,
    alone=1,
    executables=3,
    switches=1018,
    evictions=0,
    refused_updates=1,
    per_graph_bytes=197 * 2**30,
)


def test_the_stores_of_graphs_are_told_apart() -> None:
    assert graph_stores(HELD) == (
        "on the device: pool 2.00 MB, placeholders 1.00 MB, executables 1.16 MB; "
        "on the host: records 8.00 KB, working set 0 B",
        "1,019 graphs in 2 classes, 1 that cannot share; 3 executables, switched 1,018 times, "
        "1 update refused by the device; one for each graph, with inputs and results of its own, "
        "would take about 197 GB on the device (estimate)",
    )
    bars = memory_bars(build_report(tape_cell(region(), graph_memory=HELD), ()))
    assert [(bar.label, bar.value) for bar in bars] == [
        ("graph pool", "2.00 MB"),
        ("placeholders", "1.00 MB"),
        ("executables", "1.16 MB"),
        ("graph records, host", "8.00 KB"),
    ]
