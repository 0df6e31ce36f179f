"""Fixtures of the tests that run cells."""

from __future__ import annotations

import atexit
import os
import random
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import IPython
import pytest
from IPython.core.interactiveshell import InteractiveShell
from jupyter_client.launcher import launch_kernel
from jupyter_client.provisioning import local_provisioner
from traitlets.config import Config

from grape.magics import unload
from tests.processes import Program

if TYPE_CHECKING:
    from tests.integration.notebook import Notebook


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[InteractiveShell]:
    """A shell of this process, in a folder of its own; Grape is not loaded, and unloaded at the end."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.chdir(tmp_path)
    config = Config()
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.colors = "nocolor" if IPython.version_info >= (9,) else "NoColor"
    InteractiveShell.clear_instance()
    made = InteractiveShell.instance(config=config)
    state = random.getstate()
    yield made
    random.setstate(state)
    unload(made)
    atexit.unregister(made.atexit_operations)
    made.atexit_operations()
    InteractiveShell.clear_instance()


class ForkedKernel(Program):
    """As much of a `subprocess.Popen` as jupyter_client asks of a kernel's process."""

    stdin = stdout = stderr = None

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


@pytest.fixture(scope="module")
def forked_kernels() -> Iterator[None]:
    """Kernels that this process starts have imported torch and Grape already. Tests that are about what happens when
    they are imported in a kernel do without.
    """

    def launch(command: list[str], *, env: dict[str, str], cwd: str | None = None, **_: object) -> ForkedKernel:
        words = [word for word in command[1:] if not word.startswith("-X")]
        made = ForkedKernel(*words, cwd=Path(cwd or "."), environment=env | {"JPY_PARENT_PID": str(os.getpid())})
        until = time.monotonic() + 60
        while not made.is_itself():  # signals go to its process group
            assert made.poll() is None and time.monotonic() < until, "the kernel did not start"
            time.sleep(0.002)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_provisioner, "launch_kernel", launch)
        yield


@pytest.fixture
def new_kernels(forked_kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this test kernels are new interpreters, as everywhere else."""
    monkeypatch.setattr(local_provisioner, "launch_kernel", launch_kernel)


@pytest.fixture
def notebook(
    request: pytest.FixtureRequest, shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch, closed_engine: None
) -> Iterator[Notebook]:
    """A notebook with Grape loaded, whose first cell is `SETUP` of the test's file. Streams leave nothing behind."""
    from tests.integration.notebook import Notebook, nothing_left  # imports torch, which not every test does

    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    shell.run_cell("%load_ext grape")
    yield Notebook(shell, request.module.SETUP)
    unload(shell)
    assert nothing_left()
