"""Whole programs, plain and under `%%grape`: are the results the same, and what does the person wait?

    python benchmarks/programs.py FOLDER [NAME ...] [--device cpu|cuda] [--passes 3] [--timeout 300] [--out FILE]

A program is a Python file whose cells are separated by lines that begin with `# %%`; those that somebody would speed up
begin with `# %%grape`, and the last cell binds RESULT. Each runs three times, in processes of their own: plain, plain
again, and under Grape. The first pass runs all cells, later ones the marked cells and the last. Compared are RESULT and
the random states after each pass, and output and exception of each marked cell; what differs between the two plain
runs is not judged. Times are those of the marked cells with their reports. The estimate of the plain time that the
reports give is set against the plain run's. Let nothing else run on the machine.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

MARK = "# %%"
KINDS = ("plain", "again", "grape")


def cells_of(text: str) -> list[tuple[bool, str]]:
    """(marked, source) of each cell that is not blank."""
    parts = re.split(rf"^(?={MARK})", text, flags=re.MULTILINE)
    found = []
    for part in parts:
        head, _, body = part.partition("\n") if part.startswith(MARK) else ("", "", part)
        if body.strip():
            found.append((head.startswith(f"{MARK}grape"), body))
    return found


# -- one process ------------------------------------------------------------------------------------------------------


def digest(value: Any, depth: int = 0) -> Any:
    """What a value holds, in a form that JSON takes: bytes of tensors and arrays, items of containers, state."""
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return [str(value.dtype), list(value.shape), value.requires_grad, hashlib.sha256(data).hexdigest()[:16]]
    if isinstance(value, np.ndarray):
        return [str(value.dtype), list(value.shape), hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]
    if isinstance(value, (torch.nn.Module, torch.optim.Optimizer)):
        return digest(value.state_dict(), depth + 1)
    if isinstance(value, dict) and depth < 8:
        return {str(key): digest(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and depth < 8:
        return [digest(item, depth + 1) for item in value]
    return (
        repr(value) if isinstance(value, (bool, int, float, complex, str, bytes, type(None))) else type(value).__name__
    )


def random_states() -> list[str]:
    import random

    import numpy as np
    import torch

    states = [torch.get_rng_state().numpy().tobytes(), repr(random.getstate()).encode()]
    states.append(repr(np.random.get_state()).encode())
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state().numpy().tobytes())
    return [hashlib.sha256(state).hexdigest()[:16] for state in states]


def run(program: Path, *, under_grape: bool, passes: int) -> Iterator[dict[str, Any]]:
    """What each pass gave, as it ends."""
    import torch
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    config = Config()
    config.HistoryManager.hist_file = ":memory:"
    shell = InteractiveShell.instance(config=config)
    if under_grape:
        from grape.magics import load

        load(shell)
    cells = cells_of(program.read_text())
    for number in range(passes):
        seconds, estimate_ms, ran = 0.0, 0.0, []
        for index, (marked, source) in enumerate(cells):
            if number and not marked and index != len(cells) - 1:
                continue
            observed = marked and under_grape
            took, output, error = run_cell(shell, f"%%grape --no-widget\n{source}" if observed else source)
            if marked:
                seconds += took
                ran.append([output, error])
            if observed:
                import grape

                plain_ms = grape.last.to_dict()["cell"]["plain_ms"] if grape.last is not None else None
                estimate_ms = float("nan") if plain_ms is None else estimate_ms + plain_ms
        result = digest(shell.user_ns.get("RESULT"))
        yield {
            "seconds": seconds,
            "estimate_s": estimate_ms / 1e3 if under_grape else None,
            "result": hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()[:16],
            "cells": ran,
            "random": random_states(),
        }


def run_cell(shell: Any, source: str) -> tuple[float, str, str | None]:
    """Seconds, standard output without the report, and the exception of one cell."""
    import torch
    from IPython.utils.capture import capture_output

    start = time.perf_counter()
    with capture_output() as captured:
        result = shell.run_cell(source, store_history=True)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    took = time.perf_counter() - start
    error = result.error_in_exec or result.error_before_exec
    return took, captured.stdout, f"{type(error).__name__}: {error}"[:300] if error is not None else None


def child(program: Path, kind: str, passes: int, out: Path) -> None:
    found: dict[str, Any] = {"passes": []}
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        for one in run(program, under_grape=kind == "grape", passes=passes):
            found["passes"].append(one)
    found["machine"] = machine_of()
    out.write_text(json.dumps(found))


def machine_of() -> dict[str, Any]:
    from _machine import machine

    return machine()


# -- all of them ------------------------------------------------------------------------------------------------------


def measure(program: Path, arguments: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """One row, and the machine that it was measured on."""
    runs: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            out = Path(folder) / f"{kind}.json"
            command = [sys.executable, __file__, str(program.parent), program.stem, "--child", kind]
            command += ["--passes", str(arguments.passes), "--out", str(out)]
            hidden = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"} if arguments.device == "cpu" else {}
            environment = {**os.environ, "PYTHONHASHSEED": "0", "MPLBACKEND": "Agg", **hidden}
            try:
                said = subprocess.run(
                    command, env=environment, cwd=folder, timeout=arguments.timeout, capture_output=True, text=True
                )
                why = None if said.returncode == 0 else f"exit {said.returncode}: {said.stderr[-300:]}"
            except subprocess.TimeoutExpired:
                why = f"longer than {arguments.timeout:g} s"
            runs[kind] = json.loads(out.read_text()) if why is None else {"passes": [], "failed": why}
    row = {
        "name": program.stem,
        **{f"{kind}_s": [one["seconds"] for one in runs[kind]["passes"]] for kind in KINDS},
        "estimate_s": [one["estimate_s"] for one in runs["grape"]["passes"]],
        "failed": {kind: run["failed"] for kind, run in runs.items() if "failed" in run},
        "differences": differences(runs),
    }
    return row, runs["grape"].get("machine")


def differences(runs: dict[str, Any]) -> list[str]:
    """What differs under Grape, and does not between the two plain runs."""
    found = []
    for number, (plain, again, grape) in enumerate(
        zip(*(runs[kind]["passes"] for kind in KINDS), strict=False), start=1
    ):
        for part in ("result", "cells", "random"):
            if plain[part] == again[part] != grape[part]:
                found.append(f"pass {number}: {part}")
    return found


def summary(row: dict[str, Any]) -> str:
    plain, grape = row["plain_s"], row["grape_s"]
    verdict = "; ".join([*row["differences"], *(f"{kind} {why}" for kind, why in row["failed"].items())]) or "identical"
    if not plain or not grape:
        return f"{row['name']:26s} {verdict}"
    base = statistics.median([plain[-1], row["again_s"][-1]])
    estimate = row["estimate_s"][-1]
    return (
        f"{row['name']:26s} first {plain[0]:7.2f} -> {grape[0]:7.2f} s, last {base:7.2f} -> {grape[-1]:7.2f} s "
        f"({grape[-1] / base:.2f}x), estimate {estimate:7.2f} s  {verdict}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for each of the three processes")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", choices=KINDS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    programs = [folder / f"{name}.py" for name in arguments.names] or sorted(folder.glob("*.py"))
    missing = [str(program) for program in programs if not program.is_file()]
    if missing or not programs:
        parser.error(f"no program: {', '.join(missing) or folder}")
    if arguments.child:
        child(programs[0], arguments.child, arguments.passes, arguments.out)
        os._exit(0)  # threads and workers of programs are nobody's concern
    from _machine import result_path, write

    out = arguments.out or result_path(f"programs_{arguments.device}")
    rows, machine = [], None
    for program in programs:
        row, found = measure(program, arguments)
        machine = machine or found
        rows.append(row)
        print(summary(row), flush=True)
        write(out, {"device": arguments.device, "machine": machine, "passes": arguments.passes, "programs": rows})


if __name__ == "__main__":
    main()
