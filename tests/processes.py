"""Python in a process of its own: for what cannot be undone in this one, or has to come first in one."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
M_MMAP_THRESHOLD = -3


def lines_of(code: str, *folders: Path) -> list[str]:
    """What `code` prints in a new interpreter, which also finds modules in `folders`. It has to end well."""
    places = map(str, (ROOT, *folders))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*places, *filter(None, [os.environ.get("PYTHONPATH")])])}
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def give_back_at_once() -> None:
    """Memory that is freed goes back to the system, from now on."""
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 16)


def in_a_fork(work: Callable[[], None]) -> None:
    """Call it in a forked process in which memory that is freed is given back at once. It has to end well."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            give_back_at_once()
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
