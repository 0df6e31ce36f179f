"""Training loops written in notebook cells: as they are, under `%%grape`, and under `torch.compile`.

    python benchmarks/training.py [--small] [--only speech gpt2 cnn mlp graph policy] [--variants written fused compile]
                                  [--runs 3] [--learn 4] [--budget SECONDS]

Each part and variant has a process of its own, and what it found is written after each step of it, tracebacks included.

`written`: the cell runs plainly, again and again, so that training goes on; then everything is made anew and the same
runs are done under `%%grape`, until nothing new is captured, and then without it while the graphs stay applied. After
each run parameters, buffers, states of optimizer and scaler, losses and random states are compared with those of the
plain run, bit for bit. `fused`: the same with `fused=True` at the optimizer, on both sides: what GR403 advises where
the optimizer's step is left out of the graph. `compile`: the modules of the cell are compiled with
`mode="reduce-overhead"`; no Grape.

`--small` takes seconds on the CPU, where nothing is gained. Writes `results/training.json`, with machine, versions and
the milliseconds of every step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _machine import machine, result_path, write
from _training_cells import PARTS

VARIANTS = ("written", "fused", "compile")
INTERRUPTED = "interrupted"
GRACE_S = 60.0
"""So much longer than its share a part may take before its process is ended."""


def one(key: str, variant: str, arguments: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """A part in a process of its own: what it has found, at the latest after its time."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        command = [sys.executable, str(Path(__file__).with_name("_training_part.py")), key, variant, str(path)]
        command += ["--runs", str(arguments.runs), "--learn", str(arguments.learn), "--seconds", str(seconds)]
        command += ["--small"] if arguments.small else []
        environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        ended: str | None = None
        child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            told, errors = child.communicate(timeout=seconds + GRACE_S)
            if child.returncode:
                ended = f"exit code {child.returncode}\n{told[-2000:]}\n{errors[-4000:]}"
        except subprocess.TimeoutExpired:
            ended = f"took longer than {seconds + GRACE_S:.0f} s"
        except KeyboardInterrupt:
            ended = INTERRUPTED
        finally:
            child.kill()
            child.wait()
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return {**found, "ended": ended} if ended else found


def shown(row: dict[str, Any]) -> str:
    """The gist of a part, on one line."""
    told = {name: row[name] for name in ("repeatable", "identical", "speedup", "slowest", "busy") if name in row}
    if row.get("errors") or row.get("ended"):
        told["stopped"] = (row.get("errors") or [row["ended"]])[-1].strip().splitlines()[-1]
    return json.dumps(told)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--runs", type=int, default=3, help="timed runs on each side")
    parser.add_argument("--learn", type=int, default=4, help="runs under %%%%grape before them, at most")
    parser.add_argument("--budget", type=float, default=1500.0, help="seconds for everything")
    parser.add_argument("--out", type=Path, default=result_path("training"))
    arguments = parser.parse_args()
    ends = time.monotonic() + arguments.budget
    where = machine()
    work = [(key, variant) for variant in arguments.variants for key in arguments.only]
    parts: dict[str, dict[str, Any]] = {key: {} for key in arguments.only}
    for at, (key, variant) in enumerate(work):
        left = ends - time.monotonic()
        seconds = max(left / (len(work) - at), min(left, 2 * arguments.budget / len(work)))
        parts[key][variant] = one(key, variant, arguments, seconds) if left > 0 else {"ended": "no time was left"}
        write(arguments.out, {"machine": where, "small": arguments.small, "parts": parts})
        print(f"{key}, {variant}: {shown(parts[key][variant])}", flush=True)
        if parts[key][variant].get("ended") == INTERRUPTED:
            break
    rows = [row for found in parts.values() for row in found.values()]
    return int(any(row.get("identical") is False for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
