"""How high a report stands: a person sees all of it at once, on a wide screen and on a narrow one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grape.cli.written.page import Section, html_page
from grape.render.html.page import view_page
from grape.render.timeline.view import build_view
from grape.widgets import script, style
from tests.browser.pages import AXE_RULES, fragment_page, settle
from tests.unit.sample_cells import CELLS
from tests.unit.sample_evidence import one_finding

MOST = 600
"""Pixels, for one finding."""
WIDTHS = (400, 900)

Opener = Callable[..., Any]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rewritten", [False, True])
def test_of_the_report_as_html(open_page: Opener, width: int, rewritten: bool) -> None:
    page = open_page("about:blank", viewport={"width": width, "height": 900})
    report = one_finding(rewritten=rewritten)
    page.set_content(fragment_page(report.to_html()))
    box = page.locator("main > div").bounding_box()
    assert box["width"] == width and 0 < box["height"] <= MOST
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing to scroll to the side for"
    inside = page.locator("main > div").evaluate("one => one.scrollWidth")
    assert inside <= width
    for shown in (report.verdict, "before", "GPU busy", "if ids.item()", "GR101 host-sync", "next:", "all lines"):
        assert page.get_by_text(shown).first.is_visible(), shown
    assert page.get_by_text("+    with grape.Predicate(done < 1):").is_visible() is rewritten


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rewritten", [False, True])
def test_of_the_page_down_to_its_timelines(open_page: Opener, tmp_path: Path, width: int, rewritten: bool) -> None:
    file = tmp_path / "view.html"
    file.write_text(view_page(build_view(one_finding(rewritten=rewritten)), script=script(), style=style()))
    page = open_page(file.as_uri(), viewport={"width": width, "height": 900})
    page.wait_for_selector(".grape-report canvas")
    settle(page)
    top, below = (
        page.locator(selector).first.bounding_box()["y"] for selector in (".grape-report", ".grape-report > .grape-bar")
    )
    assert 0 < below - top <= MOST
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    below_its_line = page.locator(".grape-cut tr", has_text="if ids.item()").locator("+ tr")
    assert "GR101 host-sync" in below_its_line.inner_text()
    assert page.locator(".grape-finding").count() == 1


@pytest.mark.parametrize("name", CELLS)
def test_each_kind_of_cell_is_seen_at_once_and_by_everybody(open_page: Opener, name: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    report = CELLS[name]()
    page = open_page("about:blank")
    for width, scheme in ((400, "light"), (900, "light"), (900, "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.set_content(fragment_page(report.to_html()))
        box = page.locator("main > div")
        assert box.evaluate("one => one.scrollWidth") <= width
        if len(report.findings) < 2:
            assert box.bounding_box()["height"] <= MOST
        found = Axe().run(page, options=AXE_RULES).response["violations"]
        ours = [one for one in found if one["id"] != "page-has-heading-one"]  # the notebook's own
        assert [(one["id"], one["impact"], one["nodes"][0]["html"]) for one in ours] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_accessible(open_page: Opener, tmp_path: Path, scheme: str, width: int) -> None:
    """The page that `grape run --html` writes: the report as HTML, its view below it."""
    from axe_playwright_python.sync_playwright import Axe

    report = one_finding(rewritten=True)
    section = Section(id="cell", title="Code cell 1", html=report.to_html(), view=build_view(report))
    file = tmp_path / "page.html"
    file.write_text(html_page("notebook", [section]))
    page = open_page(file.as_uri(), viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.wait_for_selector(".grape-report", state="attached")
    settle(page)
    found = Axe().run(page, options=AXE_RULES).response["violations"]
    assert [(one["id"], one["impact"], one["nodes"][0]["html"]) for one in found] == []
