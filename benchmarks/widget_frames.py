"""What the view costs: script time of a frame while panning, bytes sent, time to the first picture.

    python benchmarks/widget_frames.py [--out FILE] [--events 1000 50000 300000]

Needs Chromium, playwright and jupyterlab; no GPU. "events" counts those of one timeline; two are drawn. For frames
events are synthetic: operators that launch a kernel each, and a replay of the same kernels. Script time is measured
around the drawing of each animation frame, without the rasterization that the browser does elsewhere.

"in_jupyterlab" are times from the end of a cell's own work in JupyterLab, as a cell under %%grape shows it, of events
that were recorded on an H200 and are repeated: until the summary is there, until the first frame of its view, with
findings and buttons, and until its timelines are drawn, which come behind and are opened at once: finding, making
report, summary and view, sending, drawing. What the kernel computes for it, without what else runs on the machine, is
"report_cpu_s" until summary and view are handed over, and "packing_cpu_s" for the timelines behind them; what the
browser's script takes for the timelines, "script_s". The report is the first HTML that the page shows, with which
JupyterLab loads MathJax; "below_text_in_jupyterlab" are the same times in a notebook with a Markdown cell, for which it
was loaded before.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from grape.model import CellEvidence, Event, Position, RegionEvidence, Timeline
from grape.render import build_report
from grape.render.html.page import view_page
from grape.render.timeline.view import SHOWN_EVENTS, View, build_view
from grape.widgets import script, style

VIEW = "document.querySelector('.grape-report').grape"

PAN = f"""async frames => {{
    const view = {VIEW};
    const frame = () => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
    const span = view.viewport.to - view.viewport.from;
    view.frames.length = 0;
    for (let k = 0; k < frames; k++) {{
        view.viewport.pan(k % 20 < 10 ? 0.03 : -0.03);
        view.viewport.cursor = view.viewport.from + span / 2;
        view.redraw();
        await frame();
    }}
    return view.frames.slice();
}}"""


def timelines(events: int) -> tuple[Timeline, Timeline]:
    """Before: operator, launch and kernel in turn. After: one launch, the same kernels closer together."""
    before: list[Event] = []
    after: list[Event] = []
    kernels = events // 3
    for k in range(kernels):
        start, kind = 18_000 * k, k % 37
        at = Position(file="In[1]", line=k % 50 + 1, function=f"Block{kind % 9}.forward")
        common = {"correlation": k + 1, "position": at}
        before += [
            Event(
                name=f"aten::op{kind}",
                lane="host",
                category="operator",
                start_ns=start,
                end_ns=start + 17_000,
                **common,
            ),
            Event(
                name="cudaLaunchKernel",
                lane="launch",
                category="runtime",
                start_ns=start,
                end_ns=start + 4000,
                **common,
            ),
            Event(
                name=f"kernel{kind}",
                lane="device",
                category="kernel",
                start_ns=start + 6000,
                end_ns=start + 9000,
                stream=7,
                **common,
            ),
        ]
    for k in range(events):
        start = 3000 * k
        after.append(
            Event(
                name=f"kernel{k % 37}", lane="device", category="kernel", start_ns=start, end_ns=start + 2900, stream=7
            )
        )
    return (
        Timeline(events=tuple(before), wall_ns=18_000 * kernels),
        Timeline(events=tuple(after), wall_ns=3000 * events),
    )


CELLS = (
    """\
import time
import grape.widgets.report  # as %load_ext grape does
from grape.advisor import advise
from grape.magics import display as shown, view
from grape.render import build_report
from tests.recorded import recorded_cell
evidence = recorded_cell({events})
small = recorded_cell(1)
shown._unfolded(build_report(small, advise(small)))  # a first report imports what makes it
kernel = {}
complete = view._complete
def completed(*arguments):
    began = time.thread_time()
    complete(*arguments)
    kernel["packing_cpu"] = time.thread_time() - began
view._complete = completed
""",
    """\
ended, began = time.time(), time.thread_time()
output = shown.CellDisplay(get_ipython())
report = build_report(evidence, advise(evidence))
output.finish(report, None)
output.widget(report)
output.close()
kernel["report_cpu"] = time.thread_time() - began
""",
)

SEEN = f"""() => {{
    window.seen = {{}};
    window.drawn = new Promise(done => {{
        const look = () => {{
            const now = Date.now() / 1e3, {{ seen }} = window;
            const fold = document.querySelector('.grape-report .grape-more');
            const canvas = fold && fold.querySelector('canvas[data-timeline]');
            if (!seen.summary && document.querySelector('.jp-RenderedHTML details')) seen.summary = now;
            if (!seen.view && fold) seen.view = now;
            if (canvas && fold.open && {VIEW}.frames.length) return done({{ ...seen, timelines: now }});
            if (canvas) fold.open = true;
            requestAnimationFrame(look);
        }};
        look();
    }});
}}"""

SCRIPT = f"""() => {{
    const shown = {VIEW};
    const root = document.body.appendChild(document.createElement('div'));
    const began = performance.now();
    const again = new shown.constructor(root, {{ ...shown.host, beside: false }});
    again.draw();
    const took = performance.now() - began;
    again.close();
    root.remove();
    return took / 1e3;
}}"""
"""A second view of the same timelines, from its columns to its first picture."""


def in_jupyterlab(browser: Any, events: int, times: int, *, text: str = "") -> dict[str, Any]:
    """Seconds from the end of a cell's work to what is seen of its report, in notebooks of one JupyterLab. They begin
    with a Markdown cell that holds `text`, if there is any.
    """
    from tests.browser.notebooks import run_all, run_code, wait_for_notebook, write
    from tests.browser.server import serve

    samples: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as home, serve(Path(home)) as jupyter:
        for number in range(times):
            cells = (cell.replace("{events}", str(events)) for cell in CELLS)
            name = write(jupyter.folder, f"{number}.ipynb", *cells, text=text)
            page = browser.new_page(viewport={"width": 1200, "height": 2000})
            page.set_default_timeout(60_000)
            page.goto(f"{jupyter.url}/lab/tree/{name}?reset")
            wait_for_notebook(page)
            page.evaluate(SEEN)
            run_all(page)
            seen, script_s = page.evaluate("window.drawn"), page.evaluate(SCRIPT)
            ended, kernel = json.loads(run_code(page, "import json; print(json.dumps([ended, kernel]))"))
            found = {what: at - ended for what, at in seen.items()} | kernel | {"script": script_s}
            for what, taken in found.items():
                samples.setdefault(what, []).append(taken)
            page.close()
    medians = {f"{what}_s": statistics.median(taken) for what, taken in samples.items()}
    return {"events": events, **medians, "samples": samples}


def evidence_of(events: int) -> CellEvidence:
    """A cell with one region that has such timelines."""
    before, after = timelines(events)
    at = Position(file="In[1]", line=1, function="step")
    region = RegionEvidence(
        name="step", at=at, end_line=9, outcome="replayed", refused=None, calls=1, replays=1, before=before, after=after
    )
    return CellEvidence(
        file="In[1]", source="\n" * 60, device="synthetic", backend="cuda", wall_ms=1.0, regions=(region,), cuda=True
    )


def view_of(events: int) -> tuple[View, float]:
    """The view of a report with such timelines, and the seconds that packing it takes."""
    report = build_report(evidence_of(events), [])
    began = time.perf_counter()
    view = build_view(report, limit=max(SHOWN_EVENTS, events))
    return view, time.perf_counter() - began


def measure(browser: Any, events: int, frames: int) -> dict[str, Any]:
    view, packed_s = view_of(events)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "view.html"
        file.write_text(view_page(view, script=script(), style=style()))
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.set_default_timeout(60_000)
        began = time.perf_counter()
        page.goto(file.as_uri())
        page.wait_for_function(f"document.querySelector('.grape-report') && {VIEW}.frames.length > 0", polling=5)
        painted_s = time.perf_counter() - began
        found: dict[str, Any] = {
            "events": events,
            "packed_s": packed_s,
            "opened_to_first_frame_s": painted_s,
            "columns_bytes": len(view.blob),
            "page_bytes": file.stat().st_size,
        }
        for name, share in (("whole", 1.0), ("tenth", 0.1), ("thousandth", 0.001)):
            page.evaluate(f"{VIEW}.viewport.show(0, {VIEW}.viewport.longest * {share})")
            samples = page.evaluate(PAN, frames)
            found[f"frame_ms_{name}"] = {
                "median": statistics.median(samples),
                "p95": sorted(samples)[int(0.95 * len(samples))],
                "n": len(samples),
            }
        page.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--events", type=int, nargs="+", default=[1000, 50_000, 300_000])
    parser.add_argument("--frames", type=int, default=120)
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("GRAPE_CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        sys.exit("no Chromium: install it with apt-get install chromium, or name one in GRAPE_CHROMIUM")
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        rows = [measure(browser, events, arguments.frames) for events in arguments.events]
        result = {
            "browser": f"Chromium {browser.version}, headless, software rendering",
            "python": platform.python_version(),
            "processors": os.cpu_count(),
            "rows": rows,
            "in_jupyterlab": in_jupyterlab(browser, SHOWN_EVENTS, 9),
            "below_text_in_jupyterlab": in_jupyterlab(browser, SHOWN_EVENTS, 9, text="Some text."),
        }
        browser.close()
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
