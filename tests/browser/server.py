"""A Jupyter server for tests and screenshots, with settings of its own; and where Chromium is."""

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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbformat.sign import NotebookNotary

ROOT = Path(__file__).parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]

SETTINGS: dict[str, dict[str, Any]] = {
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyter-widgets/jupyterlab-manager/plugin": {"saveState": True},
    "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
}

# JupyterLab whose kernels have imported torch and Grape already; what they are forked from starts beside it.
SERVER = """
import os, sys
sys.path[0] = os.environ["PYTHONPATH"]
from multiprocessing import forkserver
from jupyter_client.provisioning import local_provisioner
from jupyterlab.labapp import main
from tests.kernels import launch
local_provisioner.launch_kernel = launch
forkserver.ensure_running()
sys.argv[0] = "jupyter-lab"
sys.exit(main())
"""


def chromium_path() -> str | None:
    """The system's Chromium, or the one that GRAPE_CHROMIUM names."""
    return os.environ.get("GRAPE_CHROMIUM") or next((found for name in NAMES if (found := shutil.which(name))), None)


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


@contextmanager
def serve(home: Path, base: str = "/") -> Iterator[Jupyter]:
    """JupyterLab and Notebook 7 of one server, below the path `base` of its address. All that it writes is below
    `home`; it listens on this machine only.
    """
    folder = home / "notebooks"
    folder.mkdir()
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
        *(sys.executable, "-c", SERVER, "--no-browser", "--allow-root", "--expose-app-in-browser"),
        *(f"--ServerApp.port={port}", "--ServerApp.port_retries=0", "--IdentityProvider.token="),
        *("--ServerApp.open_browser=False", f"--ServerApp.root_dir={folder}", f"--ServerApp.base_url={base}"),
    ]
    with open(home / "log", "w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    try:
        url = f"http://127.0.0.1:{port}{base}".rstrip("/")
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
    raise RuntimeError(f"the Jupyter server did not start:\n{log.read_text()[-2000:]}")
