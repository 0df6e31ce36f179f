"""Fixtures of the tests that run cells."""

from __future__ import annotations

import atexit
import random
import sys
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
from tests.kernels import launch

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


@pytest.fixture(scope="module")
def forked_kernels() -> Iterator[None]:
    """Kernels that this process starts have imported torch and Grape already. Tests that are about what happens when
    they are imported in a kernel do without.
    """
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
