"""`grape.pipeline` against the same stages one after the other, eagerly and as graphs, in one process.

    python benchmarks/pipeline.py [--only one_device two_devices learning] [--frames 500] [--rounds 10] [--small]
                                  [--out FILE]

* `one_device`: four stages of a small network over frames, each of which leaves most of the device idle.
* `two_devices`: two stages that keep a device busy, one on each of two GPUs; skipped where there are fewer.
* `learning`: three stages that each take a step of their own optimizer for every sample.

Variants take turns, round by round, each round all frames: `eager`, `graphs` (each stage by `grape.graph`, one after
the other), `whole` (all stages in one `grape.graph`, on one device), `pipeline` (depth: the number of stages) and
`deeper` (two samples more). Times are milliseconds per frame, from an idle device to an idle device; `read` has each
result read on the host before the next is asked for, `latency` is then the time from a frame to its result. Results
of every round must have the bits of the eager ones. `allocated_bytes` is what a variant holds beside models and
frames once it is warm, `peak_bytes` the most that its rounds need beyond what was held before them.

Writes `results/pipeline.json`. On the CPU nothing overlaps: `--small` checks that the variants run and agree.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # optimizers import it, and it wraps functions of torch for good
from _machine import machine, result_path, write
from _measure import numbers, same
from torch import Tensor, nn

import grape

Run = Callable[[Sequence[Tensor]], Iterator[Tensor]]


class Block(nn.Module):
    """A residual block of a small picture [1, channels, height, width]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.norm = nn.GroupNorm(4, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.relu(self.norm(self.first(x))))


class Wide(nn.Module):
    """Products that keep a device busy."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class Learner(nn.Module):
    """Foretells its input, and takes a step of its own optimizer for each sample."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, width))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.9, foreach=True)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            made = self.net(x)
            (made - x).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=False)
        return made.detach()


def one_device(devices: Sequence[str], small: bool) -> tuple[list[nn.Module], Callable[[], Tensor]]:
    channels, side, blocks = (8, 8, 2) if small else (32, 32, 8)
    stages = [nn.Sequential(*(Block(channels) for _ in range(blocks))).to(devices[0]) for _ in range(4)]
    return stages, lambda: torch.randn(1, channels, side, side, device=devices[0])


def two_devices(devices: Sequence[str], small: bool) -> tuple[list[nn.Module], Callable[[], Tensor]]:
    width, rows, layers = (16, 4, 3) if small else (4096, 1024, 8)
    stages: list[nn.Module] = [Wide(width, layers).to(device) for device in devices[:2]]
    return stages, lambda: torch.randn(rows, width, device=devices[0])


def learning(devices: Sequence[str], small: bool) -> tuple[list[nn.Module], Callable[[], Tensor]]:
    width = 8 if small else 128
    stages: list[nn.Module] = [Learner(width).to(devices[0]) for _ in range(3)]
    return stages, lambda: torch.randn(16, width, device=devices[0])


PARTS = {"one_device": one_device, "two_devices": two_devices, "learning": learning}


class Variant:
    """One way to run the stages over frames, and what its rounds gave."""

    def __init__(self, run: Run, stages: Sequence[nn.Module], lag: int = 0, said: Callable[[], str] = str) -> None:
        self.run, self.stages, self.lag, self.said = run, stages, lag, said
        self.samples: dict[str, list[float]] = {"streamed": [], "read": [], "latency": []}
        self.held = self.peak = 0
        self.identical = True

    def streamed(self, frames: Sequence[Tensor], *, timed: bool = True) -> list[Tensor]:
        """All results, from an idle device to an idle device."""
        synchronize_all()
        began = time.perf_counter()
        results = list(self.run(frames))
        synchronize_all()
        if timed:
            self.samples["streamed"].append((time.perf_counter() - began) * 1e3 / len(frames))
        return results

    def read(self, frames: Sequence[Tensor]) -> None:
        """Each result is read on the host."""
        taken: list[float] = []

        def source() -> Iterator[Tensor]:
            for frame in frames:
                taken.append(time.perf_counter())
                yield frame

        synchronize_all()
        began = time.perf_counter()
        waits = []
        for number, result in enumerate(self.run(source())):  # type: ignore[arg-type]
            result.sum().item()
            waits.append((time.perf_counter() - taken[number]) * 1e3)
        self.samples["read"].append((time.perf_counter() - began) * 1e3 / len(frames))
        self.samples["latency"].append(sorted(waits)[len(waits) // 2])


def synchronize_all() -> None:
    for number in range(torch.cuda.device_count()):
        torch.cuda.synchronize(number)


def allocated(*, peak: bool = False) -> int:
    count = torch.cuda.max_memory_allocated if peak else torch.cuda.memory_allocated
    return sum(count(number) for number in range(torch.cuda.device_count()))


def chained(calls: Sequence[Callable[[Any], Any]], devices: Sequence[str]) -> Run:
    """One stage after the other for each frame."""

    def run(frames: Sequence[Tensor]) -> Iterator[Tensor]:
        for frame in frames:
            for call, device in zip(calls, devices, strict=True):
                with torch.cuda.device(device) if device != "cpu" else contextlib.nullcontext():
                    frame = call(frame if frame.device == torch.device(device) else frame.to(device))
            yield frame.clone()

    return run


def again(stages: Sequence[nn.Module]) -> list[nn.Module]:
    """Copies of the stages, with optimizers of their own."""
    made = []
    for stage in stages:
        one = copy.deepcopy(stage)
        if isinstance(one, Learner):
            one.optimizer = torch.optim.SGD(one.net.parameters(), lr=0.01, momentum=0.9, foreach=True)
        made.append(one)
    return made


def variants(name: str, stages: Sequence[nn.Module], where: Sequence[str]) -> dict[str, Callable[[], Variant]]:
    def eager() -> Variant:
        own = again(stages)
        return Variant(chained(own, where), own)

    def graphs() -> Variant:
        own = again(stages)
        calls = [grape.graph(one, device=device) for one, device in zip(own, where, strict=True)]
        return Variant(chained(calls, where), own, said=lambda: "\n".join(map(repr, calls)))

    def whole() -> Variant:
        own = again(stages)
        call = grape.graph(nn.Sequential(*own), device=where[0])
        return Variant(chained([call], where[:1]), own, said=lambda: repr(call))

    def piped(extra: int) -> Callable[[], Variant]:
        def make() -> Variant:
            own = again(stages)
            p = grape.pipeline(own, depth=len(own) + extra, devices=where)
            return Variant(p, own, p.lag, said=lambda: repr(p))

        return make

    made: dict[str, Callable[[], Variant]] = {"eager": eager, "graphs": graphs}
    if len(set(where)) == 1:
        made["whole"] = whole
    return made | {"pipeline": piped(0), "deeper": piped(2)}


def measure(name: str, devices: Sequence[str], small: bool, count: int, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    stages, frame = PARTS[name](devices, small)
    where = list(devices[:2]) if name == "two_devices" else [devices[0]] * len(stages)
    frames = [frame() for _ in range(count)]
    made: dict[str, Variant] = {}
    for key, make in variants(name, stages, where).items():
        gc.collect()
        synchronize_all()
        one = made[key] = make()
        models = allocated()
        for _ in range(2 if not small else 3):  # observed, captured, verified
            one.streamed(frames, timed=False)
        synchronize_all()
        gc.collect()
        one.held = allocated() - models
    for _ in range(rounds):
        expected: list[Tensor] = []
        for one in made.values():
            if torch.cuda.is_available():
                for number in range(torch.cuda.device_count()):
                    torch.cuda.reset_peak_memory_stats(number)
            before = allocated()
            found = one.streamed(frames)
            one.peak = max(one.peak, allocated(peak=True) - before) if torch.cuda.is_available() else 0
            expected = expected or found
            one.identical = one.identical and same(expected, found)
            del found
        for one in made.values():
            one.read(frames)
    state = [list(stage.state_dict().values()) for stage in made["eager"].stages]
    rows: dict[str, Any] = {}
    for key, one in made.items():
        ends = [list(stage.state_dict().values()) for stage in one.stages]
        rows[key] = {
            "identical": one.identical and all(map(same, state, ends)),
            **{f"{kind}_ms": numbers(samples) for kind, samples in one.samples.items()},
            "lag": one.lag,
            "allocated_bytes": one.held,
            "peak_bytes": one.peak,
            "said": one.said(),
        }
    return {
        "devices": where,
        "stages": len(stages),
        "frames": count,
        "rounds": rounds,
        "variants": rows,
        "speedups": {
            kind: {
                key: {
                    other: rows[other][f"{kind}_ms"]["median"] / rows[key][f"{kind}_ms"]["median"]
                    for other in rows
                    if other not in ("pipeline", "deeper")
                }
                for key in ("pipeline", "deeper")
            }
            for kind in ("streamed", "read")
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    parser.add_argument("--frames", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--small", action="store_true", help="tiny sizes, few frames")
    parser.add_argument("--out", type=Path, default=result_path("pipeline"))
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.backends.cudnn.deterministic = True
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    devices = gpus or ["cpu", "cpu"]
    parts: dict[str, Any] = {}
    for name in arguments.only:
        if name == "two_devices" and len(devices) < 2:
            parts[name] = {"skipped": "there is one GPU"}
        else:
            frames, rounds = (40, 2) if arguments.small else (arguments.frames, arguments.rounds)
            try:
                with torch.no_grad():
                    parts[name] = measure(name, devices, arguments.small, frames, rounds)
            except Exception as error:
                parts[name] = {"error": f"{type(error).__name__}: {error}"}
        row = parts[name]
        print(name, json.dumps({key: row[key] for key in ("speedups", "error", "skipped") if key in row}), flush=True)
        for key, one in row.get("variants", {}).items():
            times = {kind: round(one[f"{kind}_ms"]["median"], 4) for kind in ("streamed", "read", "latency")}
            gist = {kind: one[kind] for kind in ("identical", "lag", "allocated_bytes", "peak_bytes")}
            print(f"  {key}", json.dumps(times | gist), one["said"], flush=True)
        write(arguments.out, {"machine": machine(), "parts": parts})
    fine = (row.get("variants", {}).values() for row in parts.values())
    failed = any("error" in row for row in parts.values())
    return 0 if not failed and all(one["identical"] for rows in fine for one in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
