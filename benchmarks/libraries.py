"""Cells over installed libraries, as people write them, plain and under `%%grape`: the same results, and how fast?

    python benchmarks/libraries.py [--only NAME ...] [--device cpu|cuda] [--engines auto streams regions] [--missing]
                                   [--reference] [--pairs 2] [--seconds N] [--out FILE]

The cells are the files of `library_cells`, in the form and with the means of `programs.py`: processes of their own,
three passes, pairs of a plain pass and one under Grape. Each runs plainly twice and once under each engine. Compared
are the parts of RESULT, output and random states; of a part that differs between the plain runs it is told how far
they are apart, and Grape's from the nearer of them. Rows whose libraries are not installed are skipped.

Rows that are not run stay in the file as they are: `--only` runs some, `--missing` those that it has not.
`--reference` has the CPU reference serve: what Grape does, not how fast it is.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from programs import PASSES, fewest, measured, row_of

CELLS = Path(__file__).parent / "library_cells"
ENGINES = ("auto", "streams", "regions")
NEEDS = "# needs: "
SUMMED = ("operators", "matched", "issued", "recorded", "segments", "partial", "diverged", "copies", "kept", "lost")


def about(program: Path) -> dict[str, Any]:
    """What the cells do, and the modules without which they cannot, from the first lines of the file."""
    first, second = program.read_text().splitlines()[:2]
    needs = second.removeprefix(NEEDS).split(", ") if second.startswith(NEEDS) else []
    return {"what": first.removeprefix("# %% "), "needs": needs}


def lacking(needs: list[str]) -> list[str]:
    return [name for name in needs if importlib.util.find_spec(name) is None]


def version_of(module: str) -> str:
    """Of the distribution that installs it: `pyro` is of `pyro-ppl`."""
    return importlib.metadata.version(importlib.metadata.packages_distributions().get(module, [module])[0])


# -- one row ----------------------------------------------------------------------------------------------------------


def measure(program: Path, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Plainly, again, and under each engine."""
    plain, again = (measured(program, kind, arguments, folder) for kind in ("plain", "again"))
    failure = plain.get("failed") or again.get("failed") or first_error(plain)
    found: dict[str, Any] = {**about(program), "engines": {}}
    found["versions"] = {name: version_of(name) for name in found["needs"]}
    if failure is not None:
        return {**found, "failed": failure}
    for engine in arguments.engines:
        os.environ["GRAPE_ENGINE"] = engine
        grape = measured(program, "grape", arguments, folder)
        found["machine"] = found.get("machine") or grape.get("machine")
        found["engines"][engine] = compared({"plain": plain, "again": again, "grape": grape})
    return found


def first_error(run: dict[str, Any]) -> str | None:
    """These cells are not meant to raise."""
    return next((error for one in run["passes"] for _, error in one["cells"] if error is not None), None)


def compared(runs: dict[str, Any]) -> dict[str, Any]:
    row = row_of("", runs)
    passes = runs["grape"]["passes"]
    return {
        **{key: row[key] for key in ("plain_s", "grape_s", "pairs_s", "later_s", "estimate_s", "failed")},
        "differences": [one for one in row["differences"] if not one.endswith(": result")] + differing_parts(runs),
        "apart": apart(runs),
        "streams": [streams_of(one["reports"]) for one in passes[:PASSES]],
        "verdicts": [[report["verdict"] for report in one["reports"] if report] for one in passes[:PASSES]],
        "notes": sorted({note for one in passes for report in one["reports"] if report for note in notes_of(report)}),
    }


def notes_of(report: dict[str, Any]) -> list[str]:
    notes: list[str] = report["cell"]["notes"]
    return notes


def differing_parts(runs: dict[str, Any]) -> list[str]:
    """What of RESULT differs under Grape and does not between the plain runs, in whichever pass."""
    found = []
    for number in range(fewest(runs)):
        plain, again, grape = (runs[kind]["passes"][number]["parts"] for kind in ("plain", "again", "grape"))
        found += [
            f"pass {number + 1}: {name}"
            for name, (bits, _) in plain.items()
            if bits == again[name][0] != grape.get(name, [None])[0]
        ]
    return found


def apart(runs: dict[str, Any]) -> dict[str, list[float]]:
    """By part that differs between the plain runs: the largest distance of these, and of Grape's from the nearer one,
    in the first pass, relative to the largest number.
    """
    if not fewest(runs):
        return {}
    plain, again, grape = (runs[kind]["passes"][0]["parts"] for kind in ("plain", "again", "grape"))
    return {
        name: [
            distance(numbers, again[name][1]),
            min(distance(numbers, grape[name][1]), distance(again[name][1], grape[name][1])),
        ]
        for name, (bits, numbers) in plain.items()
        if bits != again[name][0]
    }


def distance(one: list[float], other: list[float]) -> float:
    if len(one) != len(other):
        return math.inf
    largest = max(map(abs, one), default=0.0)
    return max((abs(a - b) for a, b in zip(one, other, strict=True)), default=0.0) / (largest or 1.0)


def streams_of(reports: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    """What operator streams did in the cells of a pass; None where they served none."""
    served = [stream for report in reports if report is not None for stream in report["streams"]]
    if not served:
        return None
    reasons: Counter[str] = Counter()
    for stream in served:
        reasons.update(stream["as_written"])
    sums = {name: sum(stream[name] for stream in served) for name in SUMMED}
    return {**sums, "as_written": dict(reasons.most_common())}


# -- all of them ------------------------------------------------------------------------------------------------------


def summary(name: str, row: dict[str, Any]) -> str:
    if "failed" in row or "skipped" in row:
        return f"{name:22s} {row.get('skipped') or 'failed plainly: ' + row['failed']}"
    lines = []
    for engine, found in row["engines"].items():
        said = [*found["differences"], *(f"{kind} {why}" for kind, why in found["failed"].items())]
        said += [f"{part}: plain runs {a:.1e} apart, Grape's {b:.1e}" for part, (a, b) in found["apart"].items()]
        if found["later_s"] is not None:
            plain, grape = found["later_s"]
            said.append(f"later {plain:.2f} -> {grape:.2f} s ({grape / plain:.2f}x)")
        last = found["streams"][-1] if found["streams"] else None
        if last is not None:
            rest = ", ".join(f"{why} {count}" for why, count in list(last["as_written"].items())[:4])
            said.append(f"{last['matched']} of {last['operators']} operators matched; {rest}")
        same = "identical" if not (found["differences"] or found["failed"] or found["apart"]) else "NOT identical"
        lines.append(f"{name:22s} {engine:8s} {same}; {'; '.join(said)}")
    return "\n".join(lines)


def is_sound(row: dict[str, Any]) -> bool:
    """A row that fails without Grape tells nothing of it."""
    return not any(found["differences"] or found["failed"] for found in row.get("engines", {}).values())


def main() -> int:
    names = sorted(program.stem for program in CELLS.glob("*.py"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--missing", action="store_true", help="leave out the rows that the file has")
    parser.add_argument("--reference", action="store_true", help="the reference serves: GRAPE_REFERENCE=1")
    parser.add_argument("--pairs", type=int, default=2, help="of a plain pass and one under Grape, in one process")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for each process")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no row begins later")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    fixed = {"PYTHONHASHSEED": "0", "MPLBACKEND": "Agg", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TQDM_DISABLE": "1"}
    fixed["GRAPE_REFERENCE"] = str(int(arguments.reference))
    if arguments.device == "cpu":
        fixed |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    if any(os.environ.get(name) != value for name, value in fixed.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **fixed})
    if {"auto", "streams"} & set(arguments.engines):  # else cells run as written until the C++ is built
        subprocess.run([sys.executable, "-m", "grape.native"], check=False)
    import torch  # noqa: F401  once, before the forks
    from _machine import result_path, write

    out = arguments.out or result_path(f"libraries_{'reference' if arguments.reference else arguments.device}")
    rows: dict[str, Any] = json.loads(out.read_text())["rows"] if out.is_file() else {}
    ends = time.monotonic() + arguments.seconds
    ran = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.only:
            if time.monotonic() > ends or (arguments.missing and "engines" in rows.get(name, {})):
                continue
            program = CELLS / f"{name}.py"
            told = about(program)
            absent = lacking(told["needs"])
            if absent:
                rows[name] = {**told, "skipped": f"not installed: {', '.join(absent)}"}
            else:
                rows[name] = measure(program, arguments, Path(folder))
            ran.append(rows[name])
            print(summary(name, rows[name]), flush=True)
            machine = next((row["machine"] for row in rows.values() if row.get("machine")), None)
            about_all = {"device": arguments.device, "reference": arguments.reference, "passes": PASSES}
            write(out, {**about_all, "machine": machine, "rows": dict(sorted(rows.items()))})
    return 0 if all(is_sound(row) for row in ran) else 1


if __name__ == "__main__":
    raise SystemExit(main())
