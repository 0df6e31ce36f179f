"""How fast an executable runs after updates: GPT-2's decode steps of many lengths, which take turns on it.

    python benchmarks/updates.py [--lengths 64] [--updates 2048] [--out FILE]

An executable is updated from length to length and launched each time, as a cache that grows has it done. After 1, 8,
64, ... updates it is given the work of the first length, and launched again and again: the time above that of a fresh
executable of the same graph, measured beside it, is what the updates have left. By whole graphs, by all nodes, and by
the nodes that differ; each with an executable that was uploaded before its first update, as Grape makes them, and with
one that was not. Then what takes it away: an update from the same graph while the device is idle, an upload, a new
executable.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from _handwritten import cache_of
from _machine import machine, result_path, write

from grape.runtime import make_backend
from grape.runtime.backends.cuda.executables.executable import CudaExecutable
from grape.runtime.backends.cuda.executables.instantiate import Instantiation
from grape.runtime.backends.executables import Executable, UpdatableGraph
from grape.runtime.backends.protocol import Backend, Prepared

FIRST = 100
"""The first length of the cache."""
LAUNCHES = 40
"""Timed together, issued while the device waits, so that the host's time is not in it."""
SLEEP = 20_000_000
"""Cycles of the device, about 10 ms."""

Update = Callable[[int], None]
"""Give the executable the work of the graph of this number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A captured decode step; `keep` lives for its addresses."""

    graph: UpdatableGraph
    keep: Any


def steps(backend: Backend, size: str, device: torch.device, lengths: Sequence[int]) -> list[Step]:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 64} if size == "tiny" else {}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).to(device).eval().requires_grad_(False)
    model = model.half() if device.type == "cuda" else model
    heads, dim = config.n_head, config.n_embd // config.n_head
    ids = torch.zeros(5, 1, dtype=torch.long, device=device)
    rows = 5 * heads * max(lengths) * dim
    places = [torch.randn(rows, device=device).to(model.dtype) for _ in range(2 * config.n_layer)]
    found = []
    for length in lengths:
        shape = (5, heads, length, dim)
        inputs = [place[: 5 * heads * length * dim].view(shape) for place in places]

        def body(inputs: list[torch.Tensor] = inputs) -> torch.Tensor:
            logits: torch.Tensor = model(ids, past_key_values=cache_of(model, list(inputs)), use_cache=True).logits
            return logits

        body()
        graph, out = backend.capture(body)
        found.append(Step(graph=graph, keep=(model, ids, inputs, out)))
    return found


def launched_us(executable: Executable, cuda: bool) -> float:
    """Of one launch among `LAUNCHES` without an update between."""
    for _ in range(3):
        executable.replay()
    if not cuda:
        start = time.perf_counter()
        for _ in range(LAUNCHES):
            executable.replay()
        return (time.perf_counter() - start) / LAUNCHES * 1e6
    torch.cuda.synchronize()
    start_, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(SLEEP)
    start_.record()
    for _ in range(LAUNCHES):
        executable.replay()
    stop.record()
    torch.cuda.synchronize()
    return float(start_.elapsed_time(stop)) / LAUNCHES * 1e3


def by_whole_graphs(executable: Executable, graphs: Sequence[UpdatableGraph]) -> Update:
    def update(number: int) -> None:
        assert executable.update_from(graphs[number])

    return update


def by_all_nodes(executable: Executable, graphs: Sequence[UpdatableGraph]) -> Update:
    prepared = [executable.prepare(list(enumerate(graph.parameters()))) for graph in graphs]

    def update(number: int) -> None:
        assert executable.update_prepared([prepared[number]], graphs[number].attachment)

    return update


def by_nodes_that_differ(executable: Executable, graphs: Sequence[UpdatableGraph]) -> Update:
    """Between each pair that follows one another; others are put together from the executable's content."""
    parameters = [graph.parameters() for graph in graphs]
    known: dict[tuple[int, int], Prepared] = {}
    holds = [0]

    def update(number: int) -> None:
        pair = (holds[0], number)
        if pair not in known:
            before, after = (parameters[one] for one in pair)
            changes = [(node, new) for node, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
            known[pair] = executable.prepare(changes)
        assert executable.update_prepared([known[pair]], graphs[number].attachment)
        holds[0] = number

    return update


WAYS: dict[str, Callable[[Executable, Sequence[UpdatableGraph]], Update]] = {
    "whole graphs": by_whole_graphs,
    "all nodes": by_all_nodes,
    "nodes that differ": by_nodes_that_differ,
}


def checkpoints(most: int) -> Iterator[int]:
    count = 1
    while count <= most:
        yield count
        count *= 8


def as_driver_makes(_made: Instantiation, handle: Any) -> Any:
    """In place of the upload that follows each instantiation."""
    return handle


def measure(graphs: Sequence[UpdatableGraph], way: str, uploaded: bool, most: int, cuda: bool) -> dict[str, Any]:
    """After each of `checkpoints`: what an update has taken on the host so far, on average; what a launch takes, and of
    a fresh executable beside it. All in microseconds."""
    with nullcontext() if uploaded else patch.object(Instantiation, "_uploaded", as_driver_makes):
        executable = graphs[0].instantiate()
    update = WAYS[way](executable, graphs)
    done, rows, spent = 0, [], 0.0
    for checkpoint in checkpoints(most):
        while done < checkpoint:
            start = time.perf_counter()
            update(1 + done % (len(graphs) - 1))
            spent += time.perf_counter() - start
            executable.replay()
            done += 1
        fresh = graphs[0].instantiate()
        update(0)
        row = {"us": launched_us(executable, cuda), "fresh_us": launched_us(fresh, cuda)}
        fresh.release()
        rows.append({"updates": checkpoint, "host_us": spent / done * 1e6, **row})
    found = {"rows": rows, "remedies": remedies(executable, graphs[0], cuda)}
    executable.release()
    return found


def remedies(executable: Executable, graph: UpdatableGraph, cuda: bool) -> dict[str, float]:
    """Microseconds a launch after each, one after the other."""
    found = {"none": launched_us(executable, cuda)}
    assert executable.update_from(graph)
    found["an update while the device is idle"] = launched_us(executable, cuda)
    if isinstance(executable, CudaExecutable):
        upload = executable._driver.function("cuGraphUpload")
        (error,) = upload(executable._handle, torch.cuda.current_stream().cuda_stream)
        assert not int(error)
        torch.cuda.synchronize()
        found["an upload"] = launched_us(executable, cuda)
    start = time.perf_counter()
    new = graph.instantiate()
    found["seconds for a new one"] = time.perf_counter() - start
    found["a new one"] = launched_us(new, cuda)
    new.release()
    return found


def alike(captured: Sequence[Step]) -> list[Step]:
    """Those of the most common topology."""
    of = [step.graph.topology for step in captured]
    return [step for step in captured if step.graph.topology == statistics.mode(of)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, default=64)
    parser.add_argument("--stride", type=int, default=3, help="between two lengths")
    parser.add_argument("--updates", type=int, default=2048)
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=result_path("updates"))
    arguments = parser.parse_args()
    if arguments.lengths < 2:
        parser.error("--lengths: at least 2, which take turns")
    device = torch.device(arguments.device)
    cuda = device.type == "cuda"
    torch.manual_seed(0)
    backend = make_backend(device)
    lengths = [FIRST + arguments.stride * index for index in range(arguments.lengths)]
    results: dict[str, Any] = {"machine": machine(), "what": f"a decode step of GPT-2, batch 5 ({arguments.size})"}
    with torch.inference_mode():
        captured = alike(steps(backend, arguments.size, device, lengths))
        graphs = [step.graph for step in captured]
        results |= {"lengths": lengths, "alike": len(graphs), "nodes": graphs[0].nodes, "ways": {}}
        for name, uploaded in product(WAYS, (False, True)):
            label = f"{name}, {'uploaded' if uploaded else 'updated'} first"
            results["ways"][label] = found = measure(graphs, name, uploaded, arguments.updates, cuda)
            for row in found["rows"]:
                told = f"{row['us']:.1f} ({row['us'] - row['fresh_us']:+.1f}) us, {row['host_us']:.0f} an update"
                print(f"{label}: after {row['updates']} updates {told}", flush=True)
            print(f"{label}: {found['remedies']}", flush=True)
            write(arguments.out, results)
    for step in captured:
        step.graph.release()
    backend.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
