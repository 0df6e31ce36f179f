"""A real browser (the system's Chromium) and a real Jupyter server, one of each for all tests of this folder."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.sign import NotebookNotary

ROOT = Path(__file__).parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]

SETTINGS: dict[str, dict[str, Any]] = {
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyter-widgets/jupyterlab-manager/plugin": {"saveState": True},
    "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, headless. Without one the tests are skipped, and fail where CI=true."""
    path = os.environ.get("GRAPE_CHROMIUM") or next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(
            "no Chromium: install it with apt-get install chromium, or name one in GRAPE_CHROMIUM"
        )
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


def is_ours(error: Any) -> bool:
    """Not an error within the front end's own scripts; the widget's module comes from a blob or from the page."""
    stack = str(error.stack)
    return "blob:" in stack or "/static/" not in stack


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open a page in a context of its own. At the end of the test there must have been no error in its scripts, and
    a picture of it lies in the test's folder.
    """
    contexts: list[Any] = []
    errors: list[str] = []

    def open_one(url: str, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1100, "height": 1400}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: errors.append(str(error)) if is_ours(error) else None)
        page.goto(url)
        return page

    yield open_one
    for number, context in enumerate(contexts):
        for page in context.pages:
            page.screenshot(path=tmp_path / f"page-{number}.png")
        context.close()
    assert errors == []


@dataclass(frozen=True)
class Jupyter:
    """A running server: where it is, the folder whose notebooks it shows, and where it keeps what it trusts."""

    url: str
    folder: Path
    data: Path

    def trust(self, name: str) -> None:
        """As ``jupyter trust``."""
        notebook = nbformat.read(self.folder / name, as_version=4)
        notary = NotebookNotary(data_dir=str(self.data))
        notary.sign(notebook)
        notary.store.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jupyter]:
    """JupyterLab and Notebook 7 of one server, with settings of its own. It listens on this machine only."""
    home, folder = tmp_path_factory.mktemp("jupyter"), tmp_path_factory.mktemp("notebooks")
    for name, values in SETTINGS.items():
        file = home / "settings" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    names = ("config", "data", "runtime", "settings", "workspaces")
    config, data, runtime, settings, workspaces = (str(home / name) for name in names)
    (home / "config").mkdir()
    (home / "config" / "jupyter_notebook_config.json").write_text(
        '{"JupyterNotebookApp": {"expose_app_in_browser": true}}'
    )
    environment = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": config,
        "JUPYTER_DATA_DIR": data,
        "JUPYTER_RUNTIME_DIR": runtime,
        "JUPYTERLAB_SETTINGS_DIR": settings,
        "JUPYTERLAB_WORKSPACES_DIR": workspaces,
        "PYTHONPATH": str(ROOT),
    }
    port = _free_port()
    command = [
        *(sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", "--expose-app-in-browser"),
        *(f"--ServerApp.port={port}", "--ServerApp.port_retries=0", "--IdentityProvider.token="),
        *("--ServerApp.open_browser=False", f"--ServerApp.root_dir={folder}"),
    ]
    with open(home / "log", "w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_up(url, server, home / "log")
        yield Jupyter(url=url, folder=folder, data=home / "data")
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(10)


def _wait_until_up(url: str, server: subprocess.Popen[bytes], log: Path, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if server.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{url}/api/status", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    pytest.fail(f"the Jupyter server did not start:\n{log.read_text()[-2000:]}")
