"""Runs each row and column in a process of its own, with a time limit, and keeps what it found in a file of its own.

What ends a process (a crash, a time-out, no memory) becomes the outcome of that file, and the others go on. Files that
exist are not made again, so a run that was cut goes on where it ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _machine import WORKERS

from .job import Row

__all__ = ["Cell", "Limits", "cell_file", "devices", "left", "run_all", "runnable"]

POLL_S = 0.05
LEFT_S = 10.0
"""No process begins with less time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    row: Row
    column: str


@dataclass(kw_only=True)
class Limits:
    """`seconds` for the measuring of one, `hard` until it is ended; `ends` is when all are."""

    seconds: float
    hard: float
    ends: float


@dataclass(kw_only=True)
class Running:
    cell: Cell
    pid: int
    device: int | None
    until: float
    began: float = field(default_factory=time.monotonic)


def cell_file(out: Path, row: str, column: str) -> Path:
    return out / "cells" / f"{row}.{column}.json"


def devices() -> int:
    """GPUs of the machine that may be used. torch is not asked: a process that has touched one cannot be forked."""
    try:
        said = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return 0
    there = sum(line.startswith("GPU") for line in said.splitlines())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return there if visible is None else min(there, len([one for one in visible.split(",") if one.strip()]))


def run_all(cells: Sequence[Cell], out: Path, *, quick: bool, workers: int, limits: Limits) -> int:
    """As many at a time as there are workers, each with a GPU of its own; how many were run."""
    (out / "cells").mkdir(parents=True, exist_ok=True)
    free: deque[int | None] = deque(range(min(workers, devices())) if workers > 1 and not quick else [])
    free = free or deque([None] * (workers if quick else 1))
    os.environ[WORKERS] = str(len(free))  # for the records of its children
    waiting, running, ran = deque(cells), [], 0
    try:
        while waiting or running:
            while waiting and free and time.monotonic() < limits.ends - LEFT_S:
                running.append(_begin(waiting.popleft(), out, free.popleft(), quick=quick, limits=limits))
            if waiting and not running:
                break
            time.sleep(POLL_S)
            for one in list(running):
                if _ended(one, out, limits):
                    running.remove(one)
                    free.append(one.device)
                    ran += 1
    finally:
        for one in running:
            _kill(one.pid)
    return ran


def _begin(cell: Cell, out: Path, device: int | None, *, quick: bool, limits: Limits) -> Running:
    pid = os.fork()
    if pid:
        now = time.monotonic()
        return Running(cell=cell, pid=pid, device=device, until=min(now + limits.hard, limits.ends))
    status = 1
    try:
        os.setsid()  # what it starts ends with it
        _child(cell, out, device, quick=quick, seconds=limits.seconds)
        status = 0
    finally:
        os._exit(status)


def _child(cell: Cell, out: Path, device: int | None, *, quick: bool, seconds: float) -> None:
    """Here the device is used for the first time, and libraries of the row are imported."""
    path = cell_file(out, cell.row.name, cell.column).resolve()
    began = time.monotonic()
    found: dict[str, Any] = {}
    log = path.with_suffix(".log").open("w")
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    if device is not None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[device] if visible else str(device)
    folder = tempfile.mkdtemp()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/inductor"  # nobody profits from what another has compiled
    os.environ["TRITON_CACHE_DIR"] = f"{folder}/triton"
    os.chdir(folder)

    def save(known: dict[str, Any]) -> None:
        found.clear()
        found.update(known)
        _write(path, cell, {**known, "took_s": time.monotonic() - began})

    try:
        import torch

        from .job import Size
        from .process import measure

        if quick:
            torch.set_num_threads(1)
        size = Size(quick=quick, device=torch.device("cpu" if quick or not torch.cuda.is_available() else "cuda"))
        measure(cell.row, cell.column, size, seconds, save)
    except BaseException as error:
        traceback.print_exc()
        whose = "failed" if "plain" in found else "the row fails"
        if isinstance(error, ImportError) and "plain" not in found:
            whose = "not installed"
        save({**found, "outcome": whose, "why": f"{type(error).__name__}: {error}"[:600]})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _ended(one: Running, out: Path, limits: Limits) -> bool:
    """Whether its process is over; one that is late is ended here."""
    pid, status = os.waitpid(one.pid, os.WNOHANG)
    late = pid == 0 and time.monotonic() > one.until
    if pid == 0 and not late:
        return False
    _kill(one.pid)  # with what it started
    if late:
        os.waitpid(one.pid, 0)
    path = cell_file(out, one.cell.row.name, one.cell.column)
    known: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(path.read_text())
    if late and time.monotonic() >= limits.ends:
        path.unlink(missing_ok=True)  # the evaluation's time was over, not the cell's: it is for another run
    elif late:
        limit = f"longer than {limits.hard:g} s, in {known.get('at', 'its beginning')}"
        _write(path, one.cell, {**known, "outcome": "time-out", "why": limit})
    elif status and known.get("outcome") not in ("measured", "failed", "the row fails", "not possible"):
        end = f"signal {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else f"status {status}"
        _write(path, one.cell, {**known, "outcome": "crash", "why": f"{end}, in {known.get('at', 'its beginning')}"})
    if path.is_file():
        _say(json.loads(path.read_text()), time.monotonic() - one.began)
    return True


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _write(path: Path, cell: Cell, known: dict[str, Any]) -> None:
    """At once or not at all: this process may be ended at any time."""
    about = {"row": cell.row.name, "group": cell.row.group, "what": cell.row.what, "column": cell.column}
    part = path.with_suffix(".part")
    part.write_text(json.dumps({**about, **known}, indent=1) + "\n")
    part.replace(path)


def left(cells: Iterable[Cell], out: Path, *, again: bool) -> list[Cell]:
    """Those still to be run, here or where their libraries are; a pair whose run was killed is one of them."""
    return [cell for cell in cells if again or _outcome(cell, out) in (None, "not installed", "unfinished")]


def runnable(cells: Iterable[Cell], out: Path) -> list[Cell]:
    """Those whose libraries are here. The files of the others say so, unless they were measured where there is one."""
    found = []
    for cell in cells:
        lacking = cell.row.lacking()
        if not lacking:
            found.append(cell)
        elif _outcome(cell, out) is None:
            path = cell_file(out, cell.row.name, cell.column)
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, cell, {"outcome": "not installed", "why": ", ".join(lacking)})
    return found


def _outcome(cell: Cell, out: Path) -> str | None:
    path = cell_file(out, cell.row.name, cell.column)
    return str(json.loads(path.read_text())["outcome"]) if path.is_file() else None


def _say(known: dict[str, Any], took: float) -> None:
    said = str(known["outcome"])
    if "timed" in known:
        ratio = known["beside"]["median_step_ms"] / known["timed"]["median_step_ms"]
        said += f", {ratio:.2f}x, {'identical' if known['agreement']['identical'] else 'other bits'}"
    if "program" in known and known["program"]["later_s"]:
        plain, grape = known["program"]["later_s"]
        said += f", {plain / grape:.2f}x, {'; '.join(known['program']['differences']) or 'identical'}"
    if known.get("why"):
        said += f": {known['why'][:160]}"
    print(f"{took:6.1f} s  {known['row']:28} {known['column']:16} {said}", flush=True)
