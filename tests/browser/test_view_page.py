"""The view in a page of its own, as `grape view` writes it: no kernel, no network."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grape.cli.written.page import Section, html_page
from grape.model import Stop, Timeline
from grape.render import Report, build_report
from grape.render.html.page import view_json, view_page
from grape.render.timeline.view import build_view
from grape.widgets import script, style
from tests.browser.pages import AXE_RULES, VIEW, colours_in, event_point, figures, pixels, settle, span, wait_for_view
from tests.browser.pages import words as words_of
from tests.unit.sample_evidence import cell, eager_timeline, host_sync, launch_bound, refused, region, sample
from tests.unit.test_streams_evidence import STREAM
from tests.unit.trace_builder import at

Opener = Callable[..., Any]


def report() -> Report:
    evidence, findings = sample()
    return build_report(evidence, findings)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Made by the command itself from a recorded file."""
    folder = tmp_path_factory.mktemp("view")
    (folder / "decode.json").write_text(view_json(build_view(report())))
    done = subprocess.run(
        [sys.executable, "-m", "grape.cli", "view", "decode.json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "wrote decode.html\n"
    return (folder / "decode.html").as_uri()


@pytest.fixture
def page(open_page: Opener, address: str) -> Any:
    page = open_page(address)
    wait_for_view(page)
    return page


def test_a_page_of_reports_draws_each(open_page: Opener, tmp_path: Path) -> None:
    view = build_view(report())
    sections = [Section(id=f"cell-{number}", title=f"Code cell {number}", html="", view=view) for number in (1, 2)]
    file = tmp_path / "page.html"
    file.write_text(html_page("notebook", sections))
    page = open_page(file.as_uri())
    page.wait_for_function("document.querySelectorAll('canvas[data-timeline=before]').length === 2")
    assert page.locator("canvas[data-timeline=after]").count() == 2


def timeline(page: Any, label: str = "before") -> Any:
    return page.locator(f"canvas[data-timeline={label}]")


def test_figures_are_those_of_text_html_and_dict(page: Any) -> None:
    made = report()
    text, html, main = made.to_text(width=160), words_of(made.to_html()), made.to_dict()["regions"][0]
    shown = figures(page)
    assert page.locator(".grape-verdict").inner_text() == made.verdict == made.to_dict()["verdict"]
    for label in ("before", "after"):
        assert shown[label] in html and shown[label] in text
        assert shown[f"GPU {label}"] in html and shown[f"GPU {label}"] in text
    assert shown["before"].startswith(f"{main['before_ms']['median']:.3g} ms (n={main['before_ms']['n']}")
    assert shown["after"].startswith(f"{main['after_ms']['median']:.3g} ms (n={main['after_ms']['n']}")
    assert shown["speedup"] == f"{main['speedup']:.1f}x" and shown["outputs"] == main["verified"]
    assert shown["calls"] == f"{main['calls']} calls of {main['name']}: 6 as written, {main['replays']} replayed"
    bars = page.locator(".grape-bars tr").all_inner_texts()
    assert [tuple(bar.split("\t")[::2]) for bar in bars] == [
        ("peak allocated", "310 MB"),
        ("peak reserved", "400 MB"),
        ("graphs", "1.16 MB"),
        ("device, all in use", "1,000 MB"),
    ]
    assert all(bar.split("\t")[-1] in html for bar in bars)


def test_nothing_is_fetched(open_page: Opener, address: str) -> None:
    page = open_page("about:blank")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    wait_for_view(page)
    assert [url for url in asked if not url.startswith(("file:", "blob:", "data:"))] == []


def test_both_timelines_are_drawn_and_differ(page: Any) -> None:
    assert colours_in(page, "before") > 4
    assert colours_in(page, "after") > 4
    assert pixels(page, "before") != pixels(page, "after")


def test_a_busy_share_is_not_overdrawn(page: Any) -> None:
    """Kernels thinner than a pixel must not look like a busy device: bars are as high as the share they cover."""
    script = f"""() => {{
        const picture = {VIEW}.pictures[0];
        const row = picture.timeline.rows.findIndex(r => r.lane === "device");
        const ratio = devicePixelRatio;
        const context = picture.canvas.getContext("2d");
        const left = Math.ceil(picture.gutter) + 2;
        const data = context.getImageData(left * ratio, (18 + 16 * row) * ratio, 400 * ratio, 16 * ratio).data;
        let filled = 0;
        for (let i = 3; i < data.length; i += 4) if (data[i] === 255) filled += 1;
        return filled / (data.length / 4);
    }}"""
    settle(page)
    assert 0.08 < page.evaluate(script) < 0.25  # the GPU is busy 16% of the time


def test_wheel_zooms_when_the_timeline_has_the_focus(page: Any) -> None:
    everything = span(page)
    timeline(page).hover(position={"x": 600, "y": 40})
    page.mouse.wheel(0, -200)
    settle(page)
    assert span(page) == everything, "without focus the wheel belongs to the notebook"
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    page.wait_for_function(f"{VIEW}.viewport.to - {VIEW}.viewport.from < {0.9 * (everything[1] - everything[0])}")
    before = span(page)
    timeline(page).click(position={"x": 600, "y": 40})
    page.mouse.wheel(0, -200)
    page.wait_for_function(f"{VIEW}.viewport.to - {VIEW}.viewport.from < {0.9 * (before[1] - before[0])}")


def test_drag_pans_and_shift_drag_zooms(page: Any) -> None:
    box = timeline(page).bounding_box()
    everything = span(page)
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 400, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 30, steps=4)
    page.mouse.up()
    page.keyboard.up("Shift")
    start, end = span(page)
    share = 100 / (box["width"] - 112)
    assert (end - start) / (everything[1] - everything[0]) == pytest.approx(share, rel=0.05)
    page.mouse.move(box["x"] + 600, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 30, steps=4)
    page.mouse.up()
    moved, _ = span(page)
    assert moved - start == pytest.approx((end - start) * share, rel=0.05)


def test_overview_chooses_the_range(page: Any) -> None:
    box = page.locator("canvas.grape-overview").bounding_box()
    page.mouse.move(box["x"] + 112, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(box["x"] + 112 + (box["width"] - 112) / 2, box["y"] + 10, steps=4)
    page.mouse.up()
    start, end = span(page)
    whole = page.evaluate(f"{VIEW}.viewport.longest")
    assert start == pytest.approx(0, abs=whole / 100) and end == pytest.approx(whole / 2, rel=0.02)


def test_cursor_is_drawn_in_both_timelines(page: Any) -> None:
    without = pixels(page, "after")
    timeline(page, "before").hover(position={"x": 300, "y": 30})
    assert pixels(page, "after") != without


def test_hover_and_click_name_the_event_and_its_line(page: Any) -> None:
    page.evaluate(f"{VIEW}.viewport.show(0, 100000)")
    first = page.evaluate(f"{VIEW}.pictures[0].timeline.rows.find(r => r.lane === 'device').first")
    x, y = event_point(page, "before", first + 1)
    timeline(page).hover(position={"x": x, "y": y})
    tooltip = page.locator(".grape-tooltip")
    assert tooltip.inner_text().splitlines() == ["gemm_fp16", "2.7 us, kernel", "In[4], line 12, in decode"]
    timeline(page).click(position={"x": x, "y": y})
    details = page.locator(".grape-details").inner_text()
    assert "In[4], line 12, in decode" in details and "2.7 us" in details and "cudaLaunchKernel" in details
    page.mouse.move(5, 5)
    assert tooltip.is_hidden()


def test_keyboard_alone(page: Any) -> None:
    timeline(page).focus()
    everything = span(page)
    page.keyboard.press("+")
    closer = span(page)
    assert closer[1] - closer[0] == pytest.approx((everything[1] - everything[0]) / 1.5)
    page.keyboard.press("ArrowRight")
    assert span(page)[0] > closer[0]
    page.keyboard.press("0")
    assert span(page) == everything
    page.keyboard.press("]")
    row = f"{VIEW}.pictures[0].rowOf({VIEW}.selected.index)"
    assert page.evaluate(row) == 0
    at = page.evaluate(f"{VIEW}.selected.index")
    page.keyboard.press("]")
    assert page.evaluate(f"{VIEW}.selected.index") == at + 1
    page.keyboard.press("ArrowDown")
    assert page.evaluate(row) == 1
    page.keyboard.press("Enter")
    assert span(page)[1] - span(page)[0] < 20_000
    page.keyboard.press("Escape")
    assert page.evaluate(f"{VIEW}.selected") is None


def test_every_control_is_reached_by_tab(page: Any) -> None:
    page.locator("body").click(position={"x": 2, "y": 2})
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        name = page.evaluate(
            "(() => { const e = document.activeElement; return e.dataset.timeline || e.getAttribute('aria-label')"
            " || (e.labels && e.labels[0] ? e.labels[0].textContent.trim() : e.textContent.trim()); })()"
        )
        if reached and name == reached[0]:
            break
        reached.append(name)
    expected = ["Region", "Colour by", "Search", "Zoom out", "Zoom in", "Fit everything", "before", "after"]
    assert [name for name in reached if name in expected] == expected
    assert "Show GR101 at In[4], line 11" in reached and "Show GR501 at In[4], line 7" in reached


def test_search_finds_dims_and_steps(page: Any) -> None:
    plain = pixels(page, "before")
    page.get_by_label("Search").fill("cudagraph")
    assert page.locator(".grape-bar [role=status]").inner_text() == "matches: 0 before, 3 after"
    assert pixels(page, "before") != plain
    for start_us in (0, 1140, 2280):
        page.get_by_label("Search").press("Enter")
        picked = page.evaluate(f"{VIEW}.selected.picture.timeline.startNs({VIEW}.selected.index)")
        assert picked == start_us * 1000
    page.get_by_label("Search").fill("line 12, in")
    assert page.locator(".grape-bar [role=status]").inner_text() == "matches: 807 before, 0 after"
    page.get_by_label("Search").fill("")
    assert pixels(page, "before") == plain


def test_colours(page: Any) -> None:
    pictures = {}
    legends = {}
    for mode in ("operator", "module", "line", "kind"):
        page.get_by_label("Colour by").select_option(mode)
        pictures[mode] = pixels(page, "before")
        legends[mode] = page.get_by_label("Colours").locator("li").all_inner_texts()
    assert pictures["operator"] != pictures["line"]
    assert legends["module"] == ["decode", "GPU idle"]
    assert legends["operator"] == ["aten::mm", "gemm_fp16", "cudaLaunchKernel", "cudaGraphLaunch", "GPU idle"]
    assert legends["line"] == ["In[4], line 12, in decode", "GPU idle"]
    assert legends["kind"] == ["operator", "kernel", "runtime", "graph", "GPU idle"]


def test_finding_leads_to_its_evidence_and_its_line(open_page: Opener, tmp_path: Path) -> None:
    source = "".join(f"line {number} of the cell\n" for number in range(1, 15))
    made = build_report(cell(region(), source=source), [host_sync(line=12), launch_bound()])
    page = open_view(open_page, tmp_path, made)
    everything = span(page)
    page.get_by_role("button", name="Show GR101").click()
    start, end = span(page)
    assert end - start < (everything[1] - everything[0]) / 100
    assert page.locator(".grape-finding mark").inner_text().split("  ")[-1].strip() == "line 12 of the cell"
    assert "In[4], line 12, in decode" in page.locator(".grape-details").inner_text()
    assert page.locator(".grape-status").inner_text() == "GR101: the longest event at In[4], line 12 is shown"
    page.get_by_role("button", name="Show GR501").click()
    assert span(page) == everything
    assert "all of GPT2LMHeadModel.forward, which is shown" in page.locator(".grape-status").inner_text()


def open_view(open_page: Opener, folder: Path, made: Report, limit: int = 50_000, **options: Any) -> Any:
    file = folder / "view.html"
    file.write_text(view_page(build_view(made, limit=limit), script=script(), style=style()))
    page = open_page(file.as_uri(), **options)
    wait_for_view(page)
    return page


def test_regions_can_be_chosen(page: Any) -> None:
    page.get_by_label("Region").select_option(label="sample_token (In[4], line 3)")
    assert figures(page)["outcome"] == "refused, GR101"
    assert timeline(page, "after").count() == 0 and colours_in(page, "before") > 4


def test_what_is_left_out_is_said(open_page: Opener, tmp_path: Path) -> None:
    page = open_view(open_page, tmp_path, report(), limit=1000)
    assert "before: 1,000 of 2,421 events shown; the trace holds all" in page.locator(".grape-report").inner_text()


def test_nothing_recorded(open_page: Opener, tmp_path: Path) -> None:
    made = build_report(cell(region(before=None, after=None)), [])
    file = tmp_path / "view.html"
    file.write_text(view_page(build_view(made), script=script(), style=style()))
    page = open_page(file.as_uri())
    page.wait_for_selector(".grape-report")
    assert "No timeline was recorded for this cell." in page.locator(".grape-report").inner_text()


def test_lines_that_streams_ran_as_written(open_page: Opener, tmp_path: Path) -> None:
    stop = Stop(
        operator="aten::mul", reason="number changed", user=at(2), inner=at(2), times=4, total_ns=9_000_000, segments=1
    )
    made = build_report(cell(region(), streams=(replace(STREAM, stops=(stop,)),)), [])
    shown = open_view(open_page, tmp_path, made).locator(".grape-report").inner_text()
    assert "In[4], line 2, `mul`: number changed, 4 times, 2.25 ms each" in shown
    assert "operator stream: 75% of 2,000 operators matched" in shown


def test_text_of_the_person_stays_text(open_page: Opener, tmp_path: Path) -> None:
    hostile = "</script><img src=x onerror=window.broken=1>"
    made = build_report(
        cell(region(name=hostile), refused("GR101", hostile), source=hostile, error=hostile),
        [host_sync(message=hostile)],
    )
    page = open_view(open_page, tmp_path, made)
    assert page.evaluate("window.broken") is None
    assert page.locator(".grape-finding").inner_text().count(hostile) == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessible(open_page: Opener, address: str, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = open_page(address, color_scheme=scheme)
    wait_for_view(page)
    page.get_by_role("button", name="Show GR101").click()
    page.evaluate(f"{VIEW}.select({VIEW}.pictures[0], 3)")
    found = Axe().run(page, options=AXE_RULES).response["violations"]
    assert [(one["id"], one["impact"], one["nodes"][0]["html"]) for one in found] == []


def test_theme_changes_the_ink(page: Any) -> None:
    light = pixels(page, "before")
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"{VIEW}.theme.ink !== 'rgb(0, 0, 0)'")
    assert pixels(page, "before") != light


@pytest.mark.parametrize(("width", "ratio"), [(320, 1), (320, 2), (1600, 2)])
def test_narrow_wide_and_dense_screens(open_page: Opener, address: str, width: int, ratio: int) -> None:
    page = open_page(address, viewport={"width": width, "height": 900}, device_scale_factor=ratio)
    wait_for_view(page)
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert colours_in(page, "before") > 4
    sizes = page.evaluate(f"{VIEW}.pictures.map(p => [p.canvas.width, p.canvas.clientWidth])")
    assert all(inner == ratio * outer for inner, outer in sizes)


def test_closing_releases_everything(page: Any) -> None:
    assert page.evaluate(f"(() => {{ const v = {VIEW}; v.close(); return [v.pictures.length, v.buffer]; }})()") == [
        0,
        None,
    ]
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 700, "height": 700})
    settle(page)
    assert page.locator("canvas").count() == 0


def test_a_long_timeline_keeps_its_times(open_page: Opener, tmp_path: Path) -> None:
    """Times past 2**31 ns are in ticks of more than one nanosecond."""
    slow = Timeline(events=eager_timeline(calls=1, kernels=4, call_us=9e6).events, wall_ns=9_000_000_000)
    page = open_view(open_page, tmp_path, build_report(cell(region(before=slow, after=None)), []))
    starts = page.evaluate(f"[0, 1, 2, 3].map(i => {VIEW}.pictures[0].timeline.startNs(i))")
    assert starts == pytest.approx([0, 2.25e9, 4.5e9, 6.75e9], rel=1e-8)
