"""Makes the pictures of docs/images, each in light and dark.

    python scripts/screenshots.py [--only report|notebook] [--view FILE.json] [--folder docs/images]
    python scripts/screenshots.py --only cells --folder FOLDER [--reports FOLDER]

report-*.png is the page that `grape view` writes from a recorded report (docs/data, see benchmarks/record_view.py);
made-of.txt beside it holds the page's SHA-256, so that a test sees when they no longer fit. notebook-*.png is what
the first %%grape cell of notebooks/quickstart.ipynb shows, executed now in JupyterLab on this machine's device.

`cells`: five kinds of reports to look at for five seconds each: is the cell faster, by how much, why not more, what to
do next? They are made from the tests' own evidence, or from reports that `%%grape --json` wrote. Needs Chromium,
playwright and jupyterlab, all of the test extra.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.browser.notebooks import run_all, wait_for_notebook
from tests.browser.pages import fragment_page, settle
from tests.browser.server import FLAGS, chromium_path, serve

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "docs" / "data" / "gpt2-decode.json"
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
SIZE = {"width": 1240, "height": 2000}  # the whole view below the toolbar
_ATTEMPTS = 6
MARGIN = 12  # pixels around the view


def of_a_notebook(browser: Any, folder: Path) -> None:
    """The output of the first cell under %%grape, in both themes."""
    if not any(_shown_with_its_view(browser, folder) for _ in range(_ATTEMPTS)):
        sys.exit("the cell's report had no finding, as on a machine that is busy; nothing was drawn")


def _shown_with_its_view(browser: Any, folder: Path) -> bool:
    with tempfile.TemporaryDirectory() as home, serve(Path(home)) as jupyter:
        shutil.copy(ROOT / "notebooks" / "quickstart.ipynb", jupyter.folder)
        page = browser.new_context(viewport=SIZE, device_scale_factor=1.5).new_page()
        page.goto(f"{jupyter.url}/lab/tree/quickstart.ipynb")
        wait_for_notebook(page)
        run_all(page)
        page.wait_for_timeout(1500)  # the view comes after the report
        if not page.locator(".grape-report").count():
            page.context.close()
            return False
        view = page.locator(".jp-Cell-outputWrapper", has=page.locator(".grape-report")).first
        view.scroll_into_view_if_needed()
        for name, theme in THEMES.items():
            page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })", theme)
            page.wait_for_function("theme => document.body.dataset.jpThemeName === theme", arg=theme)
            page.wait_for_timeout(600)  # the view reads the colours anew once the style sheet is there
            settle(page)
            view.screenshot(path=folder / f"notebook-{name}.png")
        page.context.close()
    return True


def of_a_file(browser: Any, folder: Path, file: Path) -> None:
    """The page that `grape view` writes, in both colour schemes."""
    from grape.cli import main as grape

    with tempfile.TemporaryDirectory() as home:
        target = Path(home) / "view.html"
        if grape(["view", str(file), "--out", str(target)]):
            sys.exit(1)
        for name in THEMES:
            page = browser.new_context(viewport=SIZE, device_scale_factor=1.5, color_scheme=name).new_page()
            page.goto(target.as_uri())
            page.wait_for_selector(".grape-report")
            settle(page)
            box = page.locator(".grape-report").bounding_box()
            around = {"x": box["x"] - MARGIN, "y": box["y"] - MARGIN}
            around |= {"width": box["width"] + 2 * MARGIN, "height": box["height"] + 2 * MARGIN}
            page.screenshot(path=folder / f"report-{name}.png", clip=around)
            page.context.close()
        digest = hashlib.sha256(target.read_bytes()).hexdigest()
        (folder / "made-of.txt").write_text(f"{digest}\n", encoding="utf-8")


def of_cells(browser: Any, folder: Path, reports: Path | None) -> None:
    """Each report as HTML: 900 pixels wide in both colour schemes, and 400 wide."""
    from grape.render.timeline.recorded import recorded_report
    from tests.unit.sample_cells import CELLS

    made = {name: make() for name, make in CELLS.items()}
    if reports is not None:
        made = {file.stem: recorded_report(json.loads(file.read_text("utf-8"))) for file in reports.glob("*.json")}
    for name, report in made.items():
        for label, width, scheme in (("light", 900, "light"), ("dark", 900, "dark"), ("narrow", 400, "light")):
            view = {"width": width, "height": 400}
            page = browser.new_context(viewport=view, device_scale_factor=1.5, color_scheme=scheme).new_page()
            page.set_content(fragment_page(report.to_html()))
            page.screenshot(path=folder / f"{name}-{label}.png", full_page=True)
            page.context.close()


@contextmanager
def chromium() -> Any:
    from playwright.sync_api import sync_playwright

    path = chromium_path()
    if path is None:
        sys.exit("no Chromium: install it with apt-get install chromium, or name one in GRAPE_CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("report", "notebook", "cells"))
    parser.add_argument("--view", type=Path, default=RECORDED)
    parser.add_argument("--reports", type=Path)
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "images")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        if arguments.only == "cells":
            of_cells(browser, arguments.folder, arguments.reports)
        if arguments.only in (None, "report"):
            of_a_file(browser, arguments.folder, arguments.view)
        if arguments.only in (None, "notebook"):
            of_a_notebook(browser, arguments.folder)
    print(*sorted(str(file) for file in arguments.folder.glob("*.png")), sep="\n")


if __name__ == "__main__":
    main()
