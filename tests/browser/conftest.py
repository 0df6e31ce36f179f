"""A real browser (the system's Chromium) and a real Jupyter server, one of each for a module of this folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.server import FLAGS, Jupyter, chromium_path, serve


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, headless. Without one the tests are skipped, and fail where CI=true. Playwright's event loop runs in
    this thread until the module ends: no test of another folder may find it.
    """
    path = chromium_path()
    if path is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(
            "no Chromium: install it with apt-get install chromium, or name one in GRAPE_CHROMIUM"
        )
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


def failed(item: pytest.Item) -> bool:
    """Whether the test has failed by now: only then is a picture worth its time."""
    return item.stash.get(_FAILED, False)


def is_ours(error: Any) -> bool:
    """Not an error within the front end's own scripts; the widget's module comes from a blob or from the page."""
    stack = str(error.stack)
    return "blob:" in stack or "/static/" not in stack


@pytest.fixture
def open_page(browser: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Open a page in a context of its own. At the end of the test there must have been no error in its scripts. Of
    a test that failed a picture lies in its folder.
    """
    contexts: list[Any] = []
    errors: list[str] = []

    def open_one(url: str, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1100, "height": 1400}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: errors.append(str(error)) if is_ours(error) else None)
        page.goto(url)
        return page

    yield open_one
    for number, context in enumerate(contexts):
        for page in context.pages if failed(request.node) else ():
            page.screenshot(path=tmp_path / f"page-{number}.png")
        context.close()
    assert errors == []


@pytest.fixture(scope="session")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jupyter]:
    with serve(tmp_path_factory.mktemp("jupyter")) as running:
        yield running
