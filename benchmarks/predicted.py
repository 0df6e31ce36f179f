"""Predicted against measured: what the advisor foretells of a region from eager calls alone, and what its replays take.

    python benchmarks/predicted.py [--device cuda|cpu] [--size small|tiny] [--only NAME ...] [--out FILE]

Every model of the zoo runs once plainly, once under `grape.session(profile=True)`, which applies nothing: that report
holds the prediction. Then Grape forgets everything, and the model runs under sessions until nothing new is captured:
the last report holds the measured time of the same region. Writes a JSON file with machine, constants and every row,
and prints a table with the median absolute error. On the CPU there is no device work, so nothing is predicted.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from _machine import machine, result_path, write
from _measure import Workload, of_regions, passes, timed
from _models import MODELS, Scale

import grape
from grape.model import RegionEvidence

SESSIONS = 5


def reported(workload: Workload, **settings: Any) -> dict[str, Any]:
    """The report of one run under a session with these settings."""
    with grape.session(**settings) as current:
        timed(workload)
    assert current.report is not None
    return current.report.to_dict()


def measure(workload: Workload) -> list[dict[str, Any]]:
    """One row for each region that was profiled: predicted, and measured where it was replayed later."""
    from grape.sessions import engine

    passes(workload, 2)
    foretold = {region["name"]: region for region in reported(workload, profile=True)["regions"]}
    known_of = {region.name: region.evidence() for region in engine().context.regions}
    engine().reset()
    replays = -1
    for _ in range(SESSIONS):
        regions = reported(workload)["regions"]
        before, replays = replays, sum(region["replays"] for region in regions)
        if replays == before and replays > 0:
            break
    engine().reset()
    rows = []
    for region in regions:
        known = foretold.get(region["name"])
        if known is None or region["outcome"] != "replayed":
            continue
        predicted = known["predicted_ms"]
        after = region["after_ms"]["median"] if region["after_ms"] else None
        error = abs(predicted - after) / after if predicted is not None and after else None
        rows.append(
            {
                "what": workload.what,
                "region": region["name"],
                "eager_ms": known["before_ms"],
                "predicted_ms": predicted,
                "after_ms": region["after_ms"],
                "kernels_per_call": known["kernels_per_call"],
                "shapes": known["shapes"],
                "calls": known["calls"],
                **inputs(known_of.get(region["name"])),
                "error": error,
            }
        )
    return rows


def inputs(evidence: RegionEvidence | None) -> dict[str, Any]:
    """What else the prediction was made from."""
    if evidence is None or evidence.before is None:
        return {}
    last = evidence.traces[-1] if evidence.traces else None
    return {
        "device_ms": evidence.before.gpu_busy_ns / 1e6 / max(1, evidence.before.calls),
        "guards_ms": evidence.guards_ms,
        "arguments": len(last.argument_storages) if last is not None else None,
        "outside": len(last.external_storages) if last is not None else None,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown, one row a region; the median of the absolute errors below."""
    lines = [
        "| cell | region | eager ms | kernels | predicted ms | measured ms | error |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        numbers = [
            row["eager_ms"]["median"] if row["eager_ms"] else None,
            row["kernels_per_call"],
            row["predicted_ms"],
            row["after_ms"]["median"] if row["after_ms"] else None,
        ]
        shown = [f"{number:.3f}" if number is not None else "-" for number in numbers]
        error = f"{row['error']:.0%}" if row["error"] is not None else "-"
        lines.append("| " + " | ".join([row["what"], row["region"], *shown, error]) + " |")
    errors = [row["error"] for row in rows if row["error"] is not None]
    summary = f"median absolute error {statistics.median(errors):.0%} over {len(errors)} regions" if errors else "none"
    return "\n".join([*lines, "", summary])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", choices=("small", "tiny"), default="small")
    parser.add_argument("--only", nargs="*", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--out", type=Path, default=result_path("predicted"))
    arguments = parser.parse_args()
    of_regions()
    transformers.logging.set_verbosity_error()
    warnings.filterwarnings("ignore")
    device = torch.device(arguments.device)
    from grape.profiling import machine_costs

    scale = Scale.named(arguments.size, device, torch.float16 if device.type == "cuda" else torch.float32)
    rows = []
    for name in arguments.only:
        torch.manual_seed(0)
        found = measure(MODELS[name](scale))
        rows += found
        print(name, [(row["region"], row["predicted_ms"], row["error"]) for row in found], flush=True)
        costs = dataclasses.asdict(machine_costs(device))
        write(arguments.out, {"machine": machine(), "costs": costs, "rows": rows})
    print(table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
