"""Python in a process of its own: for what cannot be undone in this one, or has to come first in one."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]


def lines_of(code: str, *folders: Path) -> list[str]:
    """What `code` prints in a new interpreter, which also finds modules in `folders`. It has to end well."""
    places = map(str, (ROOT, *folders))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*places, *filter(None, [os.environ.get("PYTHONPATH")])])}
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()
