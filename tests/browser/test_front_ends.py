"""The widget in JupyterLab 4 and Notebook 7: with a kernel, without one, trusted and not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.browser.conftest import failed, is_ours
from tests.browser.notebooks import (
    EARLY,
    FIXABLE,
    LOOP,
    MODEL,
    REWRITTEN,
    SAMPLE,
    STATUS,
    command,
    edit,
    run_all,
    run_code,
    source_of,
    wait_for_notebook,
    write,
)
from tests.browser.pages import AXE_RULES, VIEW, colours_in, figures, pixels, settle, span, unfold, wait_for_view

Opener = Callable[..., Any]
InLab = Callable[[str], Any]

OUTPUTS = "window.jupyterapp.shell.currentWidget.content.widgets[{}].model.outputs.toJSON()"


@pytest.fixture(scope="module")
def lab(browser: Any, jupyter: Any) -> Any:
    """One JupyterLab with an executed notebook: a cell under %%grape, then a widget of recorded data."""
    name = write(jupyter.folder, "run.ipynb", MODEL, LOOP, SAMPLE, STATUS)
    context = browser.new_context(viewport={"width": 1300, "height": 1000}, accept_downloads=True)
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)) if is_ours(error) else None)
    page.goto(f"{jupyter.url}/lab/tree/{name}")
    wait_for_notebook(page)
    run_all(page)
    page.wait_for_function("document.querySelectorAll('.grape-report').length === 2")
    unfold(page)
    yield page
    page.screenshot(path=jupyter.folder / "lab.png")
    context.close()


@pytest.fixture(scope="module")
def desk(browser: Any, jupyter: Any) -> Iterator[Any]:
    """Another JupyterLab, in which one notebook after another is opened: to load it takes longer than most tests."""
    context = browser.new_context(viewport={"width": 1100, "height": 1400})
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)) if is_ours(error) else None)
    page.goto(f"{jupyter.url}/lab?reset")
    page.wait_for_function("window.jupyterapp && window.jupyterapp.restored.then(() => true)")
    yield page
    context.close()


@pytest.fixture
def in_lab(desk: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[InLab]:
    """Open a notebook in JupyterLab. At the end of the test it is closed as it is, and its kernel is gone."""
    desk.errors.clear()

    def open_one(name: str) -> Any:
        desk.evaluate("async path => { await window.jupyterapp.commands.execute('docmanager:open', { path }); }", name)
        wait_for_notebook(desk)
        return desk

    yield open_one
    if failed(request.node):
        desk.screenshot(path=tmp_path / "desk.png")
    desk.evaluate(
        """async () => {
        for (const panel of [...window.jupyterapp.shell.widgets("main")].filter(one => one.context)) {
            await panel.sessionContext.shutdown();
            panel.context.model.dirty = false;
            panel.close();
        }
    }"""
    )
    desk.wait_for_function("!document.querySelector('.jp-Notebook')")
    assert desk.errors == []


def sample_view(page: Any) -> Any:
    """The widget of recorded data: it is the last of the notebook."""
    view = page.locator(".grape-report").last
    view.scroll_into_view_if_needed()
    return view


def test_summary_first_then_the_widget(lab: Any) -> None:
    outputs = lab.evaluate(OUTPUTS.format(1))
    outputs = [output for output in outputs if any(output["data"].values())]  # of the progress nothing is left
    kinds = [sorted(output["data"]) for output in outputs]
    assert [("text/html" in kind, "application/vnd.jupyter.widget-view+json" in kind) for kind in kinds] == [
        (True, False),
        (False, True),
    ]
    assert outputs[-1]["data"]["text/plain"] == "Grape: timelines and memory, shown by front ends with Jupyter widgets"


def test_the_widget_says_what_the_report_says_and_nothing_of_it_twice(lab: Any) -> None:
    said = json.loads(run_code(lab, "import json, grape; print(json.dumps(grape.last.to_dict()))"))
    region = said["regions"][0]
    shown = figures(lab)
    written = region["calls"] - region["replays"]
    assert shown["calls"] == f"{region['calls']} calls of step: {written} as written, {region['replays']} replayed"
    words = lab.locator(".grape-report").first.inner_text()
    assert said["verdict"] not in words and not any(finding["message"] in words for finding in said["findings"])
    assert f"(n={region['before_ms']['n']}, " in shown["before"] and f"(n={region['after_ms']['n']}, " in shown["after"]
    assert shown["outputs"] == region["verified"] == "identical"


def test_operators_stand_at_the_line_that_issued_them(lab: Any) -> None:
    lab.locator(".grape-report").first.scroll_into_view_if_needed()
    assert colours_in(lab, "before") > 4
    names = lab.evaluate(f"{VIEW}.view.places.map(p => p[0] && `${{p[0][1]}} ${{p[0][2]}}`)")
    assert "6 step" in names
    rows = lab.evaluate(f"{VIEW}.pictures[0].timeline.rows.map(r => r.label)")
    assert rows[0] == "lines" and "operators" in rows


def test_memory_shows_when_graphs_were_captured(lab: Any) -> None:
    legend = lab.locator(".grape-report").first.get_by_role("region", name="Memory").locator(".grape-legend li")
    resident, captured = legend.all_inner_texts()
    assert re.fullmatch(r"resident, at most [\d.]+ MB(, [\d.]+ MB before the first graph)?", resident)
    assert re.fullmatch(r"(graph|\d+ graphs) captured, (the first )?at [\d.]+ m?s", captured)
    script = f"""() => {{
        const {{ canvas, app }} = {VIEW}.memory;
        const {{ samples, at, captured_ms, wall_ms }} = app.view.memory;
        const last = new Float32Array(app.buffer, at, samples)[samples - 1];
        const left = canvas.clientWidth < 480 ? 56 : 112;
        const x = left + (captured_ms[0] / Math.max(wall_ms, last)) * (canvas.clientWidth - left - 4);
        const ratio = devicePixelRatio;
        return [...canvas.getContext("2d").getImageData(Math.round(x) * ratio, 60 * ratio, 1, 1).data];
    }}"""
    assert lab.evaluate(script) == [0xD0, 0x80, 0x2F, 255]


def test_apply_and_undo_act_in_the_kernel(lab: Any) -> None:
    view = sample_view(lab)
    apply, undo = (view.get_by_role("button", name=f"{word} GR101") for word in ("Apply", "Undo"))
    assert apply.is_enabled() and undo.is_disabled()
    apply.click()
    view.get_by_text("applied 2", exact=True).wait_for()
    assert run_code(lab, STATUS) == "applied: [2]"
    assert apply.is_disabled() and undo.is_enabled()
    undo.click()
    view.get_by_text("took 2 back", exact=True).wait_for()
    assert run_code(lab, STATUS) == "applied: []"
    assert apply.is_enabled() and undo.is_disabled()


def test_an_error_of_the_kernel_is_one_line(lab: Any) -> None:
    view = sample_view(lab)
    view.get_by_role("button", name="Undo its graphs: run GPT2LMHeadModel.forward eagerly again").click()
    view.get_by_text("GPT2LMHeadModel.forward cannot be undone here", exact=True).wait_for()


def test_undo_of_a_region_releases_its_graphs(lab: Any) -> None:
    assert "replayed by" in run_code(lab, "%grape status")
    view = lab.locator(".grape-report").first
    view.get_by_role("button", name="Undo its graphs: run step eagerly again").click()
    view.get_by_text(re.compile("^undone: step at In")).wait_for()
    assert "replayed by" not in run_code(lab, "%grape status")


def test_downloads(lab: Any) -> None:
    view = lab.locator(".grape-report").first
    with lab.expect_download() as found:
        view.get_by_role("button", name="Download trace").click()
    trace = json.loads(Path(found.value.path()).read_text())
    assert {"M", "X"} <= {event["ph"] for event in trace["traceEvents"]}
    with lab.expect_download() as found:
        view.get_by_role("button", name="Download HTML").click()
    page = Path(found.value.path()).read_text()
    assert page.startswith("<!doctype html>") and "startPage(" in page


def test_keys_are_the_views_own(lab: Any) -> None:
    """0 0 restarts the kernel and x cuts the cell, where JupyterLab takes the keys."""
    view = sample_view(lab)
    cells = "window.jupyterapp.shell.currentWidget.content.widgets.length"
    before = lab.evaluate(cells)
    for focused in (view.locator("canvas[data-timeline=before]"), view.get_by_role("button", name="Zoom in")):
        focused.focus()
        for key in ("+", "0", "0", "x", "Escape", "d", "d"):
            lab.keyboard.press(key)
    settle(lab)
    assert lab.locator(".jp-Dialog").count() == 0 and lab.evaluate(cells) == before


def test_accessible_in_the_notebook(lab: Any) -> None:
    from axe_playwright_python.sync_playwright import Axe

    # The page around the view is JupyterLab's, with its own headings and landmarks.
    wcag = {"runOnly": {"type": "tag", "values": [tag for tag in AXE_RULES["runOnly"]["values"] if "wcag" in tag]}}
    found = Axe().run(lab, context=".grape-report", options=wcag).response["violations"]
    assert [(one["id"], one["impact"], one["nodes"][0]["html"]) for one in found] == []


def test_theme_switch(lab: Any) -> None:
    lab.locator(".grape-report").first.scroll_into_view_if_needed()
    light, ink = pixels(lab, "before"), lab.evaluate(f"{VIEW}.theme.ink")
    set_theme = "theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })"
    lab.evaluate(set_theme, "JupyterLab Dark")
    try:
        lab.wait_for_function(f"ink => {VIEW}.theme.ink !== ink", arg=ink)
        assert pixels(lab, "before") != light
    finally:
        lab.evaluate(set_theme, "JupyterLab Light")
        lab.wait_for_function(f"ink => {VIEW}.theme.ink === ink", arg=ink)


def test_a_second_run_closes_the_first_view(lab: Any) -> None:
    widgets = (
        "import ipywidgets.widgets.widget as w\n"
        "print(sum(type(one).__name__ == 'ReportWidget' for one in w._instances.values()))"
    )
    before = run_code(lab, widgets)
    lab.evaluate(
        """async () => { const { content, sessionContext } = window.jupyterapp.shell.currentWidget;
        content.activeCellIndex = 1; await window.jupyterapp.commands.execute('notebook:run-cell'); }"""
    )
    lab.wait_for_function("document.querySelectorAll('.grape-report').length === 2")
    unfold(lab)
    assert run_code(lab, widgets) == before == "2"


def test_no_error_in_any_script(lab: Any) -> None:
    assert lab.errors == []


def saved(lab: Any, jupyter: Any, name: str, *, state: bool) -> str:
    """The notebook as JupyterLab saves it, with or without the widgets' state; the name of a copy. Jupyter trusts
    contents, not files: each copy has contents of its own.
    """
    command(lab, "docmanager:save")
    lab.wait_for_function("!window.jupyterapp.shell.currentWidget.context.model.dirty")
    notebook = nbformat.read(jupyter.folder / "run.ipynb", as_version=4)
    assert notebook.metadata["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
    notebook.metadata["title"] = name
    if not state:
        del notebook.metadata["widgets"]
    nbformat.write(notebook, jupyter.folder / name)
    return name


def test_saved_with_state_and_trusted_it_draws_without_running(lab: Any, in_lab: InLab, jupyter: Any) -> None:
    name = saved(lab, jupyter, "with.ipynb", state=True)
    jupyter.trust(name)
    page = in_lab(name)
    wait_for_view(page)
    page.locator(".grape-report").first.scroll_into_view_if_needed()
    assert colours_in(page, "before") > 4


def test_saved_without_state_and_trusted_the_summary_stands(lab: Any, in_lab: InLab, jupyter: Any) -> None:
    verdict = run_code(lab, "import grape; print(grape.last.verdict)")
    name = saved(lab, jupyter, "without.ipynb", state=False)
    jupyter.trust(name)
    page = in_lab(name)
    output = page.locator(".jp-OutputArea").nth(1)
    output.scroll_into_view_if_needed()
    assert verdict in output.inner_text()
    assert page.locator(".grape-report").count() == 0


@pytest.mark.parametrize("state", [True, False])
def test_saved_and_untrusted_the_summary_stands(lab: Any, in_lab: InLab, jupyter: Any, state: bool) -> None:
    verdict = run_code(lab, "import grape; print(grape.last.verdict)")
    page = in_lab(saved(lab, jupyter, f"untrusted-{state}.ipynb", state=state))
    output = page.locator(".jp-OutputArea").nth(1)
    output.scroll_into_view_if_needed()
    assert verdict in output.inner_text()
    assert page.locator(".grape-report").count() == 0


def test_nbconvert_keeps_the_summary(lab: Any, jupyter: Any, open_page: Opener) -> None:
    from nbconvert import HTMLExporter

    verdict = run_code(lab, "import grape; print(grape.last.verdict)")
    body, _ = HTMLExporter().from_filename(str(jupyter.folder / saved(lab, jupyter, "converted.ipynb", state=False)))
    file = jupyter.folder / "converted.html"
    file.write_text(body)
    page = open_page("about:blank")
    page.route("http*://**", lambda route: route.abort())
    page.goto(file.as_uri())
    assert verdict in page.locator("body").inner_text()


def test_a_restarted_kernel_is_said(lab: Any) -> None:
    """Last of the module: the widgets of the old kernel do not answer any more."""
    view = sample_view(lab)
    lab.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.restartKernel()")
    wait_for_notebook(lab)
    view.locator("canvas[data-timeline=before]").focus()
    lab.keyboard.press("+")
    assert span(lab)[1] > 0
    view.get_by_role("button", name="Apply GR101").click()
    view.get_by_text("the kernel that made this view is gone; run its cell again").wait_for()


def test_a_fix_is_handed_over_and_taken_back(jupyter: Any, in_lab: InLab) -> None:
    page = in_lab(write(jupyter.folder, "fix.ipynb", MODEL, FIXABLE))
    run_all(page)
    page.wait_for_selector(".grape-report")
    view = page.locator(".grape-report")
    apply, undo = (view.get_by_role("button", name=f"{word} GR101 at In[2], line 5") for word in ("Apply", "Undo"))
    assert apply.count() == 0, "nobody has asked for a rewrite yet"
    view.get_by_role("button", name="Show a rewrite for GR101 at In[2], line 5").click()
    apply.wait_for()
    assert apply.is_enabled() and undo.is_disabled()
    assert "kept.append(net(torch.ones(2, 8)).sum().detach().clone())" in view.get_by_label("Difference").inner_text()
    edit(page, 1, "# edited since\n")
    apply.click()
    taken = view.get_by_label("Source to run")
    taken.wait_for()
    assert taken.inner_text().rstrip() == REWRITTEN, "a cell that is not as it ran is the person's to change"
    assert source_of(page, 1).startswith("# edited since\n%%grape")
    assert "source of In[2]: fix 1" in run_code(page, "%grape status")
    undo.click()
    view.get_by_text("undone: source of In[2]: fix 1; run this in the place of In[2]").wait_for()
    assert taken.inner_text().rstrip() == FIXABLE.rstrip() and apply.is_enabled()
    assert "source of In[2]" not in run_code(page, "%grape status")


@pytest.mark.parametrize("front_end", ["lab", "notebooks"])
def test_a_fix_is_applied_in_place_and_undone(jupyter: Any, in_lab: InLab, open_page: Opener, front_end: str) -> None:
    name = write(jupyter.folder, f"place-{front_end[:3]}.ipynb", MODEL, FIXABLE)
    page = in_lab(name) if front_end == "lab" else open_page(f"{jupyter.url}/{front_end}/{name}")
    wait_for_notebook(page)
    run_all(page)
    page.wait_for_selector(".grape-report")
    view = page.locator(".grape-report")
    view.get_by_role("button", name="Show a rewrite for GR101 at In[2], line 5").click()
    apply, undo = (view.get_by_role("button", name=f"{word} GR101 at In[2], line 5") for word in ("Apply", "Undo"))
    apply.click()
    view.get_by_text("In[2] holds the rewrite now: run it", exact=True).wait_for()
    assert source_of(page, 1).rstrip() == REWRITTEN and view.get_by_label("Source to run").count() == 0
    undo.click()
    view.get_by_text("In[2] holds the source from before now: run it", exact=True).wait_for()
    assert source_of(page, 1).rstrip() == FIXABLE.rstrip()
    apply.click()
    view.get_by_text("In[2] holds the rewrite now: run it", exact=True).wait_for()
    run_all(page)
    wait_for_notebook(page)
    assert run_code(page, "print(type(kept[0]).__name__, len(kept))") == "float 12"


def test_the_runs_so_far_are_told_when_they_are_opened(jupyter: Any, in_lab: InLab) -> None:
    name = write(jupyter.folder, "runs.ipynb", MODEL, FIXABLE)
    page = in_lab(name)
    run_all(page)
    page.wait_for_selector(".grape-report")
    cell = "window.jupyterapp.shell.currentWidget.content.widgets[1].model.sharedModel"
    page.evaluate(f"() => {cell}.setSource({cell}.getSource() + '# again')")
    run_all(page)
    wait_for_notebook(page)
    page.wait_for_selector(".grape-report .grape-runs summary")
    page.locator(".grape-runs summary").click()
    table = page.locator(".grape-runs table")
    table.wait_for()
    said = table.inner_text()
    assert re.search(r"^1\s+[\d:]+\s+In\[2\]\s", said, re.MULTILINE) and re.search(r"^2\s", said, re.MULTILINE)
    assert "source since run 1: 1 line new, 0 gone" in said
    assert "%grape compare A B" in page.locator(".grape-runs").inner_text()


def test_the_magic_applies_in_place_and_undoes(jupyter: Any, in_lab: InLab) -> None:
    name = write(jupyter.folder, "magic.ipynb", MODEL, FIXABLE)
    page = in_lab(name)
    run_all(page)
    page.wait_for_selector(".grape-report")
    wait_for_notebook(page)
    assert "In[2] holds the source now, if it was as it ran: run it there" in run_code(page, "%grape apply 1")
    view = page.locator(".grape-report")
    view.get_by_text("In[2] holds the new source: run it", exact=True).wait_for()
    assert source_of(page, 1).rstrip() == REWRITTEN
    assert "In[2] holds the source now" in run_code(page, "%grape undo")
    holds = "window.jupyterapp.shell.currentWidget.content.widgets[1].model.sharedModel.getSource()"
    page.wait_for_function(f"!{holds}.includes('detach')")
    assert source_of(page, 1).rstrip() == FIXABLE.rstrip()
    edit(page, 1, "# edited since\n")
    run_code(page, "%grape apply 1")
    view.get_by_text("In[2] is not as it ran: put this in its place yourself", exact=True).wait_for()
    assert view.get_by_label("Source to run").inner_text().rstrip() == REWRITTEN


def test_the_timelines_may_come_later(jupyter: Any, in_lab: InLab) -> None:
    name = write(jupyter.folder, "early.ipynb", "import torch", SAMPLE.replace("\nwidget\n", "\n"), EARLY)
    page = in_lab(name)
    run_all(page)
    view = page.locator(".grape-report")
    unfold(page)
    view.get_by_text("The timelines come in a moment.").wait_for()
    assert view.locator("canvas[data-timeline]").count() == 0
    assert "GR101" in view.locator(".grape-findings").inner_text()
    run_code(page, "widget.show(view.data, view.blob)")
    view.locator("canvas[data-timeline=before]").wait_for(state="attached")
    assert view.get_by_text("The timelines come in a moment.").count() == 0
    view.get_by_role("button", name="Apply GR101").click()
    view.get_by_text("applied 2", exact=True).wait_for()


def test_notebook_7(jupyter: Any, open_page: Opener) -> None:
    name = write(jupyter.folder, "seven.ipynb", MODEL, LOOP)
    page = open_page(f"{jupyter.url}/notebooks/{name}")
    wait_for_notebook(page)
    run_all(page)
    wait_for_view(page)
    page.locator(".grape-report").scroll_into_view_if_needed()
    assert colours_in(page, "before") > 4
    everything = span(page)
    page.locator("canvas[data-timeline=before]").click(position={"x": 300, "y": 30})
    page.mouse.wheel(0, -200)
    page.wait_for_function(f"{VIEW}.viewport.to - {VIEW}.viewport.from < {0.9 * (everything[1] - everything[0])}")


def test_no_widget_leaves_the_summary_alone(jupyter: Any, in_lab: InLab) -> None:
    name = write(jupyter.folder, "plain.ipynb", MODEL, LOOP.replace("%%grape", "%%grape --no-widget"))
    page = in_lab(name)
    run_all(page)
    outputs = page.evaluate(OUTPUTS.format(1))
    shown = [output["data"] for output in outputs if any(output["data"].values())]
    assert [sorted(data) for data in shown] == [["text/html", "text/plain"]]
