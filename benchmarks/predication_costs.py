"""What control flow costs on the device: predicted against measured, as conditional node and as select.

    python benchmarks/predication_costs.py [--kernels 1 2 4 ...] [--elements 1000 ...] [--out FILE]

An `if` without `else` around 1 to 64 kernels that write one tensor, or each one of its own, and an `if` with `else`,
each captured both ways and replayed with the condition true and false. The predictions come from costs that `grape
doctor` measures and the choice between the two is made by them; it should be within 10% of the better one. Also for
bodies that move many bytes, where bytes and not launches decide.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from _machine import machine, result_path, write

import grape
from grape.runtime import make_backend
from grape.runtime.backends.cuda.backend import CudaBackend
from grape.runtime.backends.protocol import Backend
from grape.runtime.predication import NodeLowering
from grape.runtime.predication.costs.calibration import node_costs
from grape.runtime.predication.costs.costs import BodyWork, NodeCosts, choose, crossover, node_ns, select_ns

KERNELS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
ELEMENTS = (1_000, 1_000_000)
"""Of the tensor that a body writes, in float32."""
KINDS = ("if", "if, apart", "if/else")
CALLS = 32
"""Decisions in a row in one graph, so that what a launch costs is shared by many."""
TOLERANCE = 0.10


def program(kind: str, kernels: int, tensors: list[torch.Tensor], condition: torch.Tensor) -> Callable[[], Any]:
    x, y, out, *others = tensors

    def work(target: torch.Tensor, step: float) -> torch.Tensor:
        for _ in range(kernels):
            target.add_(step)
        return target

    def predicate() -> None:
        with grape.Predicate(condition):
            work(x, 1.0)

    def separate() -> None:
        with grape.Predicate(condition):
            for target in others:
                target.add_(1.0)

    def branches() -> None:
        def true_fn(y: torch.Tensor) -> torch.Tensor:
            return work(y * 2.0, 1.0)

        def false_fn(y: torch.Tensor) -> torch.Tensor:
            return work(y * 3.0, 2.0)

        out.copy_(grape.cond(condition, true_fn, false_fn, (y,)))

    one = {"if": predicate, "if, apart": separate, "if/else": branches}[kind]

    def run() -> None:
        for _ in range(CALLS):
            one()

    return run


def captured(backend: Backend, run: Callable[[], Any], way: str) -> tuple[Any, NodeLowering]:
    """The graph, and what holds the memory that it writes besides."""
    choices: dict[Any, Any] = {(number,): way for number in range(CALLS)}
    lowering = NodeLowering(backend, choices, nullcontext)

    def body() -> None:
        with lowering.active():
            run()

    graph, _ = backend.capture(body)
    return graph, lowering


def replay_ns(backend: Backend, graph: Any, repeats: int = 15) -> float:
    samples = []
    for _ in range(repeats + 3):
        timer = backend.timer()
        timer.start()
        graph.replay()
        timer.stop()
        backend.synchronize()
        samples.append(timer.elapsed_ms() * 1e6 / CALLS)
    return statistics.median(samples[3:])


def measure(backend: Backend, costs: NodeCosts, kind: str, kernels: int, elements: int) -> dict[str, Any]:
    apart = kernels if kind == "if, apart" else 0
    tensors = [torch.zeros(elements, device=backend.device) for _ in range(3 + apart)]
    condition = torch.zeros((), dtype=torch.bool, device=backend.device)
    run = program(kind, kernels, tensors, condition)
    measured: dict[str, float] = {}
    by_way: dict[str, dict[str, float]] = {}
    bodies: tuple[BodyWork, ...] = ()
    for way in ("node", "select"):
        graph, lowering = captured(backend, run, way)
        bodies = tuple(next(iter(lowering.works.values())))
        by_way[way] = {}
        for name, value in (("true", True), ("false", False)):
            condition.fill_(value)
            by_way[way][name] = replay_ns(backend, graph)
        # As predicted: both ways equally often.
        measured[way] = sum(by_way[way].values()) / 2
        graph.release()
    # What both ways do alike (the opposite of the condition, a mark, the merge) is not predicted.
    predicted = {"node": node_ns(costs, bodies), "select": select_ns(costs, bodies)}
    choice = choose(costs, bodies)
    best = min(measured.values())
    return {
        "kind": kind,
        "kernels": kernels,
        "elements": elements,
        "bodies": [asdict(body) for body in bodies],
        "measured_ns": measured,
        "measured_by_condition_ns": by_way,
        "predicted_ns": predicted,
        "choice": choice,
        "over_best": measured[choice] / best - 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, nargs="+", default=KERNELS)
    parser.add_argument("--elements", type=int, nargs="+", default=ELEMENTS)
    parser.add_argument("--out", type=Path, default=result_path("predication_costs"))
    arguments = parser.parse_args()
    gpu = torch.cuda.is_available()
    backend: Backend
    if gpu:
        backend = CudaBackend(torch.device("cuda", torch.cuda.current_device()), conditional_bodies=True)
        backend.prepare_bodies()
        if not backend.conditional_bodies:
            raise SystemExit("this machine has no conditional bodies; see `grape doctor`")
    else:
        backend = make_backend()
    began = time.perf_counter()
    costs = node_costs(backend)
    print(f"calibrated in {(time.perf_counter() - began) * 1e3:.0f} ms")
    print(asdict(costs), f"a node pays from {crossover(costs)} kernels per body on")
    rows = []
    with torch.no_grad():
        for kind in KINDS:
            for elements in arguments.elements:
                for kernels in arguments.kernels:
                    row = measure(backend, costs, kind, kernels, elements)
                    rows.append(row)
                    node, select = (row["measured_ns"][way] / 1e3 for way in ("node", "select"))
                    wanted_node, wanted_select = (row["predicted_ns"][way] / 1e3 for way in ("node", "select"))
                    print(
                        f"{kind:10}{elements:>10,} x {kernels:>2} kernels   node {node:7.1f} ({wanted_node:7.1f}) us   "
                        f"select {select:7.1f} ({wanted_select:7.1f}) us   {row['choice']:6} +{row['over_best']:.0%}"
                    )
    worst = max(row["over_best"] for row in rows)
    late = sum(row["over_best"] > TOLERANCE for row in rows)
    print(f"{len(rows) - late} of {len(rows)} choices within {TOLERANCE:.0%} of the better way; the worst {worst:+.0%}")
    if not gpu:
        print("the tape's times say nothing of a GPU; nothing is written")
        return
    results = {"machine": machine(), "costs": asdict(costs), "rows": rows, "worst_over_best": worst, "late": late}
    write(arguments.out, results)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
