"""Molecular dynamics whose forces are `torch.autograd.grad` of a network's energy: plainly and under `%%grape`.

    python benchmarks/simulation.py [--device cpu] [--small] [--steps 1000] [--runs 3] [--learn 4] [--deterministic]
                                    [--molecules 22 166] [--forms dense list padded] [--engines auto streams regions]

Cells of `_simulation_cells.py`, in one process: a cell runs `steps` steps of velocity Verlet, each time from the same
start. It runs plainly, then under `%%grape` until that is learned, then under `%%grape` timed, then plainly again.
Written down are milliseconds per step (of the whole cell, its report included), whether plain runs repeat their bits
and whether those under Grape are the same, the largest difference of energies, and by how much the energy drifted. Sums
over neighbours (`index_add`) are atomic on a GPU and do not repeat their bits; with `--deterministic` torch's
deterministic algorithms take their place, on both sides. The padded form is compared with the list as it is, too. On
the CPU the reference serves, and nothing is gained.

Writes `results/simulation.json`, with machine, versions and every sample, after each row.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # optimizers import it, and it wraps functions of torch for good
from _machine import machine, result_path, write
from _measure import numbers, same, synchronize
from _simulation_cells import FORMS, MOLECULES, SMALL
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from grape.options import ENGINE, ENGINES, REFERENCE

STREAMED = ("operators", "matched", "segments", "reads", "captured", "copied_in", "as_written")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One run of a cell. `tensors` are the last positions, velocities and forces."""

    ms_per_step: float
    tensors: list[torch.Tensor]
    energies: list[float]

    @property
    def drift(self) -> float:
        return self.energies[-1] - self.energies[0]

    def is_as(self, other: Ran) -> bool:
        return self.energies == other.energies and same(self.tensors, other.tensors)


def ran(shell: Any, cell: str, steps: int) -> Ran:
    """Run the cell, from an idle device to an idle device."""
    gc.collect()
    synchronize()
    began = time.perf_counter()
    with capture_output():
        result = shell.run_cell(cell, store_history=True)
    synchronize()
    took = (time.perf_counter() - began) * 1e3 / steps
    result.raise_error()
    names = shell.user_ns
    return Ran(ms_per_step=took, tensors=[one.clone() for one in names["result"]], energies=list(names["energies"]))


def apart(runs: list[Ran], others: list[Ran]) -> dict[str, float]:
    """The largest differences of energies, of last positions and of drifts, between any of `runs` and of `others`."""
    pairs = [(one, other) for one in runs for other in others]
    return {
        "energy": max(abs(a - b) for one, other in pairs for a, b in zip(one.energies, other.energies, strict=True)),
        "position": max(float((one.tensors[0] - other.tensors[0]).abs().max()) for one, other in pairs),
        "drift": max(abs(one.drift - other.drift) for one, other in pairs),
    }


def told(report: dict[str, Any]) -> dict[str, Any]:
    """What a report says of the cell."""
    streams = [{name: stream[name] for name in STREAMED if name in stream} for stream in report["streams"]]
    parts = ("name", "outcome", "reason", "calls", "replays", "verified", "shapes")
    regions = [{name: region[name] for name in parts} for region in report["regions"]]
    findings = [f"{one['code']} {one['severity']} line {one['line']}: {one['message']}" for one in report["findings"]]
    cell = {name: report["cell"].get(name) for name in ("plain_ms", "wall_ms", "own_ms", "served", "engine", "notes")}
    return {"verdict": report["verdict"], "cell": cell, "streams": streams, "regions": regions, "findings": findings}


def begun(shell: Any, form: str, sizes: dict[str, object], arguments: argparse.Namespace) -> None:
    """The shell has what the form's cell needs, and Grape nothing of it."""
    with capture_output():
        shell.run_cell("%grape reset").raise_error()
    settings = {"device": arguments.device, "steps": arguments.steps, **sizes}
    shell.run_cell("\n".join(f"{name} = {value!r}" for name, value in settings.items())).raise_error()
    shell.run_cell(FORMS[form].define).raise_error()


def measure(shell: Any, form: str, sizes: dict[str, object], arguments: argparse.Namespace) -> dict[str, Any]:
    """Each engine between plain runs; for the padded form, what plain runs differ by from the list as it is."""
    row: dict[str, Any] = {"what": FORMS[form].what, "sizes": sizes, "steps": arguments.steps, "engines": {}}
    for engine in arguments.engines:
        os.environ[ENGINE] = engine
        try:
            row["engines"][engine] = under_grape(shell, form, sizes, arguments)
        except Exception:
            row["engines"][engine] = {"error": traceback.format_exc()}
    if form == "padded":
        begun(shell, form, sizes, arguments)
        padded = ran(shell, FORMS[form].use, arguments.steps)
        listed = [ran(shell, FORMS["list"].use, arguments.steps) for _ in range(2)]
        row["apart_from_list"] = apart([padded], listed)
        row["list_apart_from_itself"] = apart(listed[:1], listed[1:])
    return row


def under_grape(shell: Any, form: str, sizes: dict[str, object], arguments: argparse.Namespace) -> dict[str, Any]:
    begun(shell, form, sizes, arguments)
    cell, steps = FORMS[form].use, arguments.steps
    ours = f"%%grape --no-widget\n{cell}"
    first = ran(shell, cell, steps)  # kernels are loaded, the allocator gets its memory
    plain = [ran(shell, cell, steps) for _ in range(arguments.runs)]
    learning, reports = [], []
    for _ in range(arguments.learn):
        learning.append(ran(shell, ours, steps))
        reports.append(told(shell.user_ns["grape"].last.to_dict()))
    later = [ran(shell, ours, steps) for _ in range(arguments.runs)]
    reports.append(told(shell.user_ns["grape"].last.to_dict()))
    rewrite = offered(shell.user_ns["grape"].last) if form == "list" else None
    with capture_output():
        shell.run_cell("%grape reset").raise_error()
    plain += [ran(shell, cell, steps) for _ in range(arguments.runs)]
    eager_ms, grape_ms = (numbers([one.ms_per_step for one in runs]) for runs in (plain, later))
    assert eager_ms is not None and grape_ms is not None
    return {
        "speedup": eager_ms["median"] / grape_ms["median"],
        "plain_repeats": all(one.is_as(first) for one in plain),
        "identical": all(one.is_as(first) for one in (*learning, *later)),
        "eager_ms": eager_ms,
        "grape_ms": grape_ms,
        "learning_ms": [one.ms_per_step for one in learning],
        "energy": first.energies[0],
        "drift": {"eager": [one.drift for one in plain], "grape": [one.drift for one in later]},
        "apart": apart(plain, later),
        "plain_apart": apart([first], plain),
        "rewrite": rewrite,
        "reports": reports,
    }


def offered(report: Any) -> list[dict[str, Any]]:
    """What became of the rewrite that pads the list: both forms run on copies."""
    found = [one for one in report.with_fixes().findings if one.code == "GR103"]
    return [
        {"verified": one.fix.verified, "why": one.fix.why, "diff": one.fix.diff}
        if one.fix is not None
        else {"not_offered": dict(one.evidence).get("not_offered")}
        for one in found
    ]


def shown(row: dict[str, Any]) -> str:
    """The gist of a row, a line for each engine."""
    lines = []
    for engine, found in row["engines"].items():
        if "error" in found:
            lines.append(f"  {engine}: {found['error'].strip().splitlines()[-1]}")
            continue
        eager, ours = found["eager_ms"]["median"], found["grape_ms"]["median"]
        same = (
            "identical" if found["identical"] else "other bits" if found["plain_repeats"] else "plain runs differ, too"
        )
        lines.append(
            f"  {engine}: {eager:.3f} -> {ours:.3f} ms a step ({found['speedup']:.2f}x), {same}; drift "
            f"{found['drift']['eager'][0]:.2e} and {found['drift']['grape'][0]:.2e} of {found['energy']:.4g}; "
            f"energies {found['apart']['energy']:.1e} apart, plain ones {found['plain_apart']['energy']:.1e}"
        )
        for fix in found["rewrite"] or ():
            outcome = "gives the same bits" if fix.get("verified") else fix.get("why") or fix.get("not_offered")
            lines.append(f"  the rewrite that pads the list: {outcome}")
    if "apart_from_list" in row:
        energy = row["apart_from_list"]["energy"]
        lines.append(f"  energies {energy:.1e} apart from those of the list as it is, plain runs of which are")
        lines[-1] += f" {row['list_apart_from_itself']['energy']:.1e} apart"
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="fewer atoms, a smaller network")
    parser.add_argument("--molecules", nargs="+", choices=tuple(MOLECULES), default=list(MOLECULES))
    parser.add_argument("--forms", nargs="+", choices=tuple(FORMS), default=list(FORMS))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=["auto"])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--learn", type=int, default=4, help="runs under %%%%grape before them")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--out", type=Path, default=result_path("simulation"))
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        os.environ.setdefault(REFERENCE, "1")
    if arguments.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    if {"auto", "streams"} & set(arguments.engines):  # else cells run as written until the C++ is built
        subprocess.run([sys.executable, "-m", "grape.native"], check=False)
    shell = InteractiveShell.instance(colors="nocolor")
    shell.run_cell("%load_ext grape\nimport grape").raise_error()
    molecules = SMALL if arguments.small else MOLECULES
    about = {"device": arguments.device, "small": arguments.small, "deterministic": arguments.deterministic}
    rows: dict[str, Any] = {}
    for molecule in arguments.molecules:
        for form in arguments.forms:
            name = f"{form} {molecule}"
            rows[name] = measure(shell, form, molecules[molecule], arguments)
            print(f"{name}: {rows[name]['what']}\n{shown(rows[name])}", flush=True)
            write(arguments.out, {"machine": machine(), **about, "rows": rows})
    engines = [found for row in rows.values() for found in row["engines"].values()]
    return int(any("error" in one or (one["plain_repeats"] and not one["identical"]) for one in engines))


if __name__ == "__main__":
    raise SystemExit(main())
