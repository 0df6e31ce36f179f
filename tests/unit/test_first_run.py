"""What a person waits for in the first run of a cell was made with the extension, or once torch was there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from grape import native
from grape.failures import failure_notes
from grape.sessions.process import preload

PROGRAM = """
import os, sys, tempfile
os.environ["IPYTHONDIR"] = tempfile.mkdtemp()
{first}
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.display_pub = CapturingDisplayPublisher()
shell.history_manager.enabled = False
shell.run_cell("%load_ext grape").raise_error()
{then}
loaded = set(sys.modules)
shell.run_cell("%%grape\\npass").raise_error()
print(sorted(name for name in set(sys.modules) - loaded if name.partition(".")[0] in ("grape", "rich", "cuda")))
assert shell.display_pub.outputs
"""


@pytest.mark.parametrize("engine", ["auto", "regions"])
@pytest.mark.parametrize(
    ("first", "then"),
    [("import torch", ""), ("", "shell.run_cell('import torch').raise_error()")],
    ids=["torch was there", "torch came later"],
)
def test_the_first_cell_imports_nothing(tmp_path: Path, engine: str, first: str, then: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(first=first, then=then)],
        env={**os.environ, "GRAPE_ENGINE": engine},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


def test_what_cannot_be_loaded_ahead_keeps_nobody_from_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> None:
        raise ImportError("undefined symbol")

    monkeypatch.setattr(native, "ready", lambda: True)
    monkeypatch.setattr(native, "load", load)
    preload()
    assert any("it loaded what operator streams need" in note for note in failure_notes())
