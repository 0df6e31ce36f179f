"""The page that `grape view` writes from the timelines of a real run, in the browser."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grape.cli import main
from tests.browser.pages import (
    AXE_RULES,
    VIEW,
    colours_in,
    event_point,
    figures,
    pixels,
    settle,
    span,
    wait_for_view,
)

RECORDED = Path(__file__).resolve().parents[2] / "docs" / "data" / "gpt2-decode.json"

Opener = Callable[..., Any]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    target = tmp_path_factory.mktemp("recorded") / "view.html"
    assert main(["view", str(RECORDED), "--out", str(target)]) == 0
    return target.as_uri()


@pytest.fixture
def page(open_page: Opener, address: str) -> Any:
    page = open_page(address)
    wait_for_view(page)
    return page


def test_figures_are_those_of_the_file(page: Any) -> None:
    data = json.loads(RECORDED.read_text(encoding="utf-8"))["view"]
    region = data["regions"][data["main"]]
    shown = figures(page)
    assert page.locator(".grape-verdict").inner_text() == data["verdict"]
    assert {bar["label"]: bar["value"] for bar in region["bars"]}.items() <= shown.items()
    assert {f"GPU {strip['label']}": strip["value"] for strip in region["strips"]}.items() <= shown.items()
    assert (shown["speedup"], shown["outputs"]) == (region["speedup"], "identical")


def test_before_and_after_are_drawn_and_differ(page: Any) -> None:
    assert colours_in(page, "before") > 8 and colours_in(page, "after") > 8
    assert pixels(page, "before") != pixels(page, "after")


def test_both_stand_on_one_time_axis(page: Any) -> None:
    script = f"{VIEW}.pictures.map(p => [p.xAt(0), p.xAt(p.timeline.wall_ns), p.canvas.clientWidth])"
    (left, before, width), (also_left, after, _) = page.evaluate(script)
    assert left == also_left and before == width
    walls = [one["wall_ns"] for one in json.loads(RECORDED.read_text(encoding="utf-8"))["view"]["timelines"]]
    assert (after - left) / (before - left) == pytest.approx(min(walls) / max(walls), abs=0.001)


def test_idle_time_is_shaded_and_busy_time_is_not(page: Any) -> None:
    """Shading lets what is below shine through; where the graph runs, its span and its nodes cover the ground."""
    script = f"""() => {{
        const picture = {VIEW}.pictures[1];
        const row = picture.timeline.rows.findIndex(row => row.lane === "device");
        const ratio = devicePixelRatio;
        const at = ms => picture.canvas.getContext("2d")
            .getImageData(Math.round(picture.xAt(ms * 1e6)) * ratio, (18 + 16 * row + 2) * ratio, 1, 1).data;
        return [0.2, 1.5, 3.2, 4.1, 5].map(ms => [at(ms)[3] > 0, at(ms)[3] === 255]);
    }}"""
    settle(page)
    idle, busy, after_its_end = [True, False], [True, True], [False, False]
    assert page.evaluate(script) == [idle, idle, idle, busy, after_its_end]


def test_kernels_have_colours_of_their_own(page: Any) -> None:
    """They are short beside the operators that launch them: ranked together, all of them would be grey."""
    script = f"""() => {VIEW}.pictures.map(({{ timeline }}) => {{
        const rows = timeline.rows.filter(row => row.lane === "device");
        const row = rows[rows.length - 1];
        return new Set(timeline.colour.slice(row.first, row.first + row.count)).size;
    }})"""
    assert min(page.evaluate(script)) >= 4
    legend = page.get_by_label("Colours").locator("button").all_inner_texts()
    assert "CUDA graph, 247 nodes" in legend and any(name.startswith("nvjet") for name in legend)


def test_a_replay_is_one_span_above_its_nodes_which_know_their_lines(page: Any) -> None:
    page.get_by_label("Search").fill("CUDA graph")
    assert page.locator(".grape-bar [role=status]").inner_text() == "matches: 0 before, 1 after"
    page.get_by_label("Search").press("Enter")
    details = page.locator(".grape-details").inner_text()
    assert "CUDA graph, 247 nodes" in details and "launched with" in details, "the driver's launch is no event"
    timeline = page.locator("canvas[data-timeline=after]")
    timeline.focus()
    page.keyboard.press("ArrowDown")  # to the first of its nodes
    node = page.evaluate(f"{VIEW}.selected.index")
    page.keyboard.press("Enter")  # zooms to it
    settle(page)
    x, y = event_point(page, "after", node)
    timeline.hover(position={"x": x, "y": y})
    assert page.locator(".grape-tooltip").inner_text().splitlines()[1:] == [
        "4.54 us, kernel",
        "In[5], line 5, in <module>",
    ]
    assert "issued by" in page.locator(".grape-details").inner_text()
    assert "nn/functional.py, line 2567, in embedding" in page.locator(".grape-details").inner_text()


def test_a_finding_leads_to_its_evidence_and_its_line(page: Any) -> None:
    everything = span(page)
    page.get_by_role("button", name="Show GR501 at In[5], line 5").click()
    assert page.locator(".grape-status").inner_text() == "GR501: the longest event at In[5], line 5 is shown"
    assert span(page) != everything
    marks = page.locator(".grape-finding mark").all_inner_texts()
    assert [mark.split("  ")[-1].strip() for mark in marks] == [
        "out = model(input_ids=token, past_key_values=cache, use_cache=True)"
    ]
    assert "In[5], line 5" in page.locator(".grape-details").inner_text()
    page.get_by_role("button", name="Show GR301 at In[5], line 5").click()
    assert page.locator(".grape-status").inner_text() == "GR301: the longest event at In[5], line 5 is shown"


def test_memory_has_a_scale_and_names_its_curves(page: Any) -> None:
    section = page.get_by_role("region", name="Memory")
    assert section.locator(".grape-legend li").all_inner_texts() == [
        "allocated, at most 378 MB, 366 MB before the first graph",
        "reserved, at most 440 MB, 428 MB before the first graph",
        "device, all in use, at most 1.98 GB, 1.97 GB before the first graph",
        "3 graphs captured, the first at 2.26 s",
    ]


def test_amounts_on_the_scale_are_round(page: Any) -> None:
    """`byteTicks` is in the module of the page: it is read from its text."""
    script = """most => {
        const text = document.querySelector("script[type=module]").textContent;
        const ticks = new Function(text.match(/function byteTicks[\\s\\S]*?\\n}/)[0] + "; return byteTicks;")();
        return ticks(most, 4);
    }"""
    mega, giga = 2**20, 2**30
    assert page.evaluate(script, 2.17 * giga) == [0, giga, 2 * giga]
    assert page.evaluate(script, 330 * mega) == [0, 100 * mega, 200 * mega, 300 * mega]
    assert page.evaluate(script, 1.1 * mega) == [0, mega / 2, mega]
    assert page.evaluate(script, 1000 * giga) == [0, 500 * giga, 1000 * giga]
    for most in (1, 700, 1023.9, 5000, 139 * giga, 4000 * giga):
        found = page.evaluate(script, most)
        assert found[0] == 0 and 1 < len(found) <= 5 and found[-1] <= most


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessible(open_page: Opener, address: str, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = open_page(address, color_scheme=scheme)
    wait_for_view(page)
    page.get_by_role("button", name="Show GR501").click()
    found = Axe().run(page, options=AXE_RULES).response["violations"]
    assert [(one["id"], one["impact"], one["nodes"][0]["html"]) for one in found] == []


@pytest.mark.parametrize("width", [320, 1600])
def test_narrow_and_wide(open_page: Opener, address: str, width: int) -> None:
    page = open_page(address, viewport={"width": width, "height": 900})
    wait_for_view(page)
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert colours_in(page, "before") > 8
