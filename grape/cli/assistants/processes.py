"""Runs of other programs, whose output is kept apart from the protocol's, and which end when their time is up."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import GrapeError


class TimeIsUp(GrapeError):
    """A run took longer than it may."""

    exit_code = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A program that has ended."""

    code: int
    out: str
    err: str


def ran(words: Sequence[str], *, folder: Path, timeout_s: float) -> Done:
    """Run this Python with `words` in `folder`. What it started goes with it. Raises `TimeIsUp`."""
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise TimeIsUp(f"it ran longer than {timeout_s:g} s and was ended; allow more with timeout_s") from None
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return Done(code=process.returncode, out=out, err=err)
