"""Five notebook cells whose control flow follows the data: as they are, and with the rewrites that Grape shows.

    python benchmarks/control_flow.py [--small] [--only a b c d e] [--runs 20]

Each cell runs plainly, then under `%%grape` until nothing more is offered: the fixes of `%grape diff` are taken with
`%grape apply`, and the source that it hands over is run. Three states are timed, in one process: Grape absent; graphs
applied but the source as it was ("unchanged": the forward is a graph, its control flow eager); the source rewritten.
Every result is compared with the plain one, bit for bit. `--small` takes seconds on the CPU; there nothing is gained.
Writes `results/control_flow.json`, with machine, versions and every sample.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from _control_flow_cells import PARTS, Part
from _machine import machine, result_path, write
from _measure import numbers, of_regions, same, synchronize
from torch.utils._pytree import tree_leaves

ROUNDS = 4
"""A rewrite can bring decisions to light that an earlier run did not reach."""


def run(shell: Any, code: str) -> float:
    """Run a cell as a person would; milliseconds from an idle device to an idle device."""
    synchronize()
    began = time.perf_counter()
    result = shell.run_cell(code, store_history=True)
    synchronize()
    took = (time.perf_counter() - began) * 1e3
    result.raise_error()
    return took


def results(shell: Any) -> list[torch.Tensor]:
    return [leaf.clone() for leaf in tree_leaves(shell.user_ns["result"]) if isinstance(leaf, torch.Tensor)]


def timed(shell: Any, part: Part, runs: int, expected: list[torch.Tensor]) -> tuple[dict[str, Any] | None, bool]:
    """Milliseconds per call over `runs` runs of the cell, and whether each gave the expected bits."""
    samples, identical = [], True
    for _ in range(runs):
        samples.append(run(shell, part.use) / shell.user_ns["calls"])
        identical = identical and same(expected, results(shell))
    return numbers(samples), identical


def syncs_per_call(shell: Any, part: Part) -> float | None:
    """How often a call makes the host wait for the device, as torch tells; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run(shell, part.use)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(item.message) for item in seen) / shell.user_ns["calls"]


def apply_fixes(report: Any, shell: Any) -> str | None:
    """Take every fix of control flow that the report offers; the source that is handed over, or None."""
    from grape.magics.commands import rewrites

    offered = {f.fix.id for f in report.findings if f.code == "GR102" and f.fix is not None}
    for number in sorted(offered):
        shell.run_line_magic("grape", f"apply {number}")
    return rewrites.last().new if offered else None


def told(report: Any) -> dict[str, Any]:
    """What a report says of its regions, and why each capture was made, put off or dropped."""
    whole = report.to_dict()
    return {
        "regions": whole["regions"],
        "decisions": whole["cell"]["decisions"],
        "findings": [f"{f.code} {f.severity} {f.message}" for f in report.findings],
    }


def measure(shell: Any, part: Part, runs: int, *, small: bool, device: str) -> dict[str, Any]:
    sizes = {"device": device, **(part.small if small else part.sizes)}
    kept = "\n".join(f"{name} = {value!r}" for name, value in sizes.items())
    dtype = "torch.float16" if device == "cuda" else "torch.float32"
    run(shell, "%grape reset")
    run(shell, f"import torch\n{kept}\ndtype = {dtype}\n")
    run(shell, part.define)
    run(shell, part.use)
    expected = results(shell)
    plain, repeatable = timed(shell, part, runs, expected)
    plain_syncs = syncs_per_call(shell, part)
    diffs, identical = [], True
    unchanged: dict[str, Any] | None = None
    as_it_was: Any = None
    for _ in range(ROUNDS):
        run(shell, f"%%grape --no-widget\n{part.use}")
        identical = identical and same(expected, results(shell))
        report = shell.user_ns["grape"].last.with_fixes()
        if as_it_was is None:
            as_it_was = report
            unchanged, well = timed(shell, part, runs, expected)
            identical = identical and well
        handed = apply_fixes(report, shell)
        if handed is None:
            break
        diffs += [f.fix.diff for f in report.findings if f.code == "GR102" and f.fix is not None]
        run(shell, handed)
    run(shell, f"%%grape --no-widget\n{part.use}")  # once more: ways that were not compared yet
    identical = identical and same(expected, results(shell))
    report = shell.user_ns["grape"].last
    after, well = timed(shell, part, runs, expected)
    return {
        "what": part.what,
        "sizes": sizes,
        "repeatable": repeatable,
        "identical": identical and well,
        "eager_ms": plain,
        "unchanged_ms": unchanged,
        "after_ms": after,
        "speedup": plain["median"] / after["median"] if plain and after else None,
        "speedup_over_unchanged": unchanged["median"] / after["median"] if unchanged and after else None,
        "syncs_per_call": {"eager": plain_syncs, "after": syncs_per_call(shell, part)},
        "verdict": report.verdict,
        **told(report),
        "unchanged": told(as_it_was),
        "diffs": diffs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=result_path("control_flow"))
    arguments = parser.parse_args()
    of_regions()
    from IPython.core.interactiveshell import InteractiveShell

    device = "cuda" if torch.cuda.is_available() and not arguments.small else "cpu"
    shell = InteractiveShell.instance()
    run(shell, "%load_ext grape\nimport grape")
    found: dict[str, Any] = {}
    for key in arguments.only:
        found[key] = measure(shell, PARTS[key], arguments.runs, small=arguments.small, device=device)
        shown = {name: found[key][name] for name in ("identical", "speedup", "speedup_over_unchanged", "verdict")}
        print(f"({key}) {PARTS[key].name}: {shown}", flush=True)
        write(arguments.out, {"machine": machine(), "small": arguments.small, "parts": found})


if __name__ == "__main__":
    main()
