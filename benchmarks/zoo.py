"""Models that people run, as plain code and under `grape.session()`, in one process: same bits? how fast? if not, why?

    python benchmarks/zoo.py [--device cuda|cpu] [--size small|tiny] [--only NAME ...] [--out FILE]

Weights are random and nothing is downloaded. Each workload runs plainly, then under sessions until nothing new is
captured, then once more without a session while its graphs are applied. Writes a JSON file with machine, versions and
every sample, and prints a table. On the CPU graphs are tapes: results are compared, times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from _machine import machine, result_path, write
from _measure import Workload, main_region, numbers, observed, of_regions, passes, same
from _models import MODELS, Scale

SESSIONS = 5
"""At most so many runs under Grape; fewer where a run brings nothing new."""


def measure(workload: Workload, runs: int) -> dict[str, Any]:
    """Plainly, under sessions until nothing new is captured, then in place."""
    passes(workload, 1)
    expected, eager, repeatable = passes(workload, runs)
    sessions, identical, replays = [], True, -1
    for _ in range(SESSIONS):
        result, ms, report = observed(workload)
        identical = identical and same(expected, result)
        sessions.append(ms)
        before, replays = replays, sum(region["replays"] for region in report["regions"])
        if replays == before and replays > 0:
            break
    _, after, unchanged = passes(workload, runs, expected)
    main = main_region(report)
    eager_ms, after_ms = numbers(eager), numbers(after)
    assert eager_ms is not None and after_ms is not None
    return {
        "what": workload.what,
        "calls": workload.calls,
        "eager_repeatable": repeatable,
        "identical": identical and unchanged if repeatable else None,
        "outcome": main["outcome"] if main else None,
        "replayed_calls": [sum(r[key] for r in report["regions"]) for key in ("replays", "calls")],
        "verified": main["verified"] if main else None,
        "codes": sorted({region["reason"] for region in report["regions"] if region["reason"]}),
        "findings": sorted({finding["code"] for finding in report["findings"]}),
        "eager_ms": eager_ms,
        "after_ms": after_ms,
        "speedup": eager_ms["median"] / after_ms["median"],
        "session_ms": sessions,
        "verdict": report["verdict"],
        "regions": report["regions"],
    }


def run_model(name: str, scale: Scale, runs: int) -> dict[str, Any]:
    torch.manual_seed(0)
    workload = MODELS[name](scale)
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(name == "gnn", warn_only=True)
    try:
        row = measure(workload, runs)
    finally:
        torch.use_deterministic_algorithms(deterministic)
    return {**row, "dtype": str(scale.dtype).removeprefix("torch.")}


def rows_of(name: str, scales: Sequence[Scale], runs: int) -> dict[str, Any]:
    """The first scale at which eager gives the same bits twice, else the last."""
    from grape.sessions import engine

    for scale in scales:
        row = run_model(name, scale, runs)
        engine().reset()
        if row["eager_repeatable"]:
            break
    return row


def table(results: dict[str, Any]) -> str:
    """Markdown, one row a model. Milliseconds are per call of the whole loop."""
    head = "| model | dtype | eager ms | after ms | speedup | outcome | replays | refused | same bits |"
    lines = [head, "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for name, row in results.items():
        same_bits = {True: "yes", False: "NO", None: "eager differs from itself"}[row["identical"]]
        cells = (
            f"{name}: {row['what']}",
            row["dtype"],
            f"{row['eager_ms']['median']:.3f}",
            f"{row['after_ms']['median']:.3f}",
            f"{row['speedup']:.2f}x",
            str(row["outcome"]),
            "{} of {}".format(*row["replayed_calls"]),
            " ".join(row["codes"]) or "-",
            same_bits,
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", choices=("small", "tiny"), default="small")
    parser.add_argument("--only", nargs="*", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--runs", type=int, default=20, help="timed runs on each side")
    parser.add_argument("--out", type=Path, default=result_path("zoo"))
    arguments = parser.parse_args()
    of_regions()
    transformers.logging.set_verbosity_error()
    warnings.filterwarnings("ignore")
    device = torch.device(arguments.device)
    dtypes = (torch.float16, torch.float32) if device.type == "cuda" else (torch.float32,)
    scales = [Scale.named(arguments.size, device, dtype) for dtype in dtypes]
    results = {}
    for name in arguments.only:
        results[name] = rows_of(name, scales, arguments.runs)
        print(name, json.dumps({k: v for k, v in results[name].items() if k != "regions"})[:400], flush=True)
        write(arguments.out, {"machine": machine(), "models": results})
    print(table(results))
    return int(any(row["identical"] is False for row in results.values()))


if __name__ == "__main__":
    raise SystemExit(main())
