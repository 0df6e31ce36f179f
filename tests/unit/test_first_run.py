"""What a person waits for in the first run of a cell was made with the extension, or once torch was there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
