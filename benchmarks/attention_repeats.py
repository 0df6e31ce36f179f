"""Does scaled-dot-product attention repeat itself? Equal inputs, many runs, bits compared.

    python benchmarks/attention_repeats.py [--runs 2000] [--out FILE]

For one query position over a cache of several lengths (half precision, as in a decode loop): how often a run differs
from the first, by backend of the operator, with fresh scratch memory between runs, and as a replayed CUDA graph; and
which kernels ran. Verification of captures depends on the answer (docs/decisions/010-bits-decide.md).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _machine import machine, result_path, write
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attention
from torch.profiler import ProfilerActivity, profile

SHAPES = ((5, 12, 128), (5, 12, 255), (5, 12, 256), (5, 12, 512), (5, 12, 1020), (4, 8, 1792))
BACKENDS = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH")
JUNK = (256, 1024, 4096, 16384, 65536, 1 << 18)
"""Floats per block of scratch that is filled and given back between two runs."""


def differing(run: Callable[[], torch.Tensor], first: torch.Tensor, runs: int) -> int:
    """How many of `runs` results have other bits than `first`."""
    count = torch.zeros((), device=first.device, dtype=torch.int64)
    for _ in range(runs):
        count += (run().view(torch.int16) != first.view(torch.int16)).any()
    return int(count)


def kernels(run: Callable[[], torch.Tensor]) -> list[str]:
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        run()
        torch.cuda.synchronize()
    return [event.key for event in recorded.key_averages()]


def measure(batch: int, heads: int, length: int, runs: int) -> dict[str, Any]:
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (
        torch.randn(batch, heads, size, 64, device="cuda", generator=generator).half() for size in (1, length, length)
    )

    def run() -> torch.Tensor:
        return attention(q, k, v)

    def with_junk() -> torch.Tensor:
        for size in JUNK:
            torch.full((size,), float("inf"), device="cuda")
        return attention(q, k, v)

    first = run()
    by_backend: dict[str, int | str] = {}
    for name in BACKENDS:
        try:
            with sdpa_kernel(getattr(SDPBackend, name)):
                by_backend[name] = differing(run, run(), runs)
        except RuntimeError as error:
            by_backend[name] = str(error).partition("\n")[0][:80]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = run()

    def replay() -> torch.Tensor:
        graph.replay()
        return replayed

    return {
        "batch": batch,
        "heads": heads,
        "length": length,
        "runs": runs,
        "differing": differing(run, first, runs),
        "differing_with_junk": differing(with_junk, first, runs // 4),
        "differing_replays": differing(replay, first, runs),
        "differing_by_backend": by_backend,
        "kernels": kernels(run),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="How often attention gives other bits from equal inputs.")
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=result_path("attention_repeats"))
    options = parser.parse_args()
    with torch.inference_mode():
        rows = [measure(*shape, options.runs) for shape in SHAPES]
    for row in rows:
        print({name: value for name, value in row.items() if name != "kernels"}, *row["kernels"], sep="\n  ")
    write(options.out, {"machine": machine(), "shapes": rows})


if __name__ == "__main__":
    main()
