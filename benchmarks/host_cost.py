"""What the host spends on one replayed call, and where.

    python benchmarks/host_cost.py [--device cuda|cpu] [--calls 1000] [--only NAME ...] [--out FILE]

Each call starts on an idle device and is timed by the host's clock, in steady state and outside any session: until
the launch starts (`before_launch_us`), within the launch (`launch_us`), after it (`after_launch_us`), and in all. The
launch is found by a wrapper around each graph's replay, which is itself counted. A second run under cProfile, with the
launches left out, says in which functions the time goes; its sum is larger than the plain run's. On the CPU a launch
executes a tape, so only the time outside of it means anything. Guards are compared by the extension, which is built
first where there is a compiler.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers
from _machine import machine, result_path, write
from _measure import Workload, observed, of_regions, synchronize
from torch import nn

import grape
from grape import native
from grape.model.times.measured import quartiles

_PACKAGE = Path(grape.__file__).parent
PROFILED_CALLS = 300
SHOWN = 18


class Chain(nn.Module):
    """75 linear layers: 150 parameters. Takes four tensors `[rows, width]`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(75)])

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        x = a * b + c * d
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


Pairs = tuple[tuple[torch.Tensor, torch.Tensor], ...]


class Window(nn.Module):
    """Twelve layers, each with keys and values of a sliding window; all 24 come in and go out, in nested tuples."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(12)])

    def forward(self, x: torch.Tensor, past: Pairs) -> tuple[torch.Tensor, Pairs]:
        kept = []
        for layer, (keys, values) in zip(self.layers, past, strict=True):
            x = torch.relu(layer(x))
            keys, values = (torch.cat([t[:, 1:], x[:, None]], 1) for t in (keys, values))
            x = x + torch.softmax(torch.einsum("bw,blw->bl", x, keys), -1)[:, None].bmm(values)[:, 0]
            kept.append((keys, values))
        return x, tuple(kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`call` does one call and nothing else that costs; `prepare` comes before each call and is not timed."""

    what: str
    call: Callable[[], Any]
    prepare: Callable[[], None] = lambda: None


def arguments(device: torch.device, *, moving: bool, decorated: bool = False) -> Case:
    """Four tensor arguments; `moving` ones lie somewhere else at each call, so that they must be copied."""
    width = 64 if device.type == "cuda" else 8
    module: Any = Chain(width).to(device).eval().requires_grad_(False)
    sets = [[torch.randn(4, width, device=device) for _ in range(4)] for _ in range(5 if moving else 1)]
    target = grape.graph(module) if decorated else module
    turn = count()
    chosen: list[list[torch.Tensor]] = [sets[0]]

    def prepare() -> None:
        chosen[0] = sets[next(turn) % len(sets)]

    where = "other addresses each call" if moving else "the same addresses"
    return Case(
        what=f"150 parameters, 4 tensor arguments at {where}" + (", grape.graph" if decorated else ""),
        call=lambda: target(*chosen[0]),
        prepare=prepare,
    )


def nested(device: torch.device) -> Case:
    width = 64 if device.type == "cuda" else 8
    module = Window(width).to(device).eval().requires_grad_(False)
    x = torch.randn(4, width, device=device)
    state: list[Pairs] = [tuple((torch.randn(4, 16, width, device=device),) * 2 for _ in range(12))]
    state[0] = tuple((keys.clone(), values.clone()) for keys, values in state[0])

    def call() -> None:
        _, state[0] = module(x, state[0])

    return Case(what="24 cache tensors in nested tuples, fed back", call=call)


def cached(device: torch.device) -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {} if device.type == "cuda" else {"n_embd": 24, "n_head": 2, "vocab_size": 64}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).to(device).eval().requires_grad_(False)
    model = model.half() if device.type == "cuda" else model
    ids = torch.randint(0, config.vocab_size, (5, 1)).to(device)
    with torch.inference_mode():
        cache = model(ids.expand(5, 32), use_cache=True).past_key_values

    def prepare() -> None:
        if cache.get_seq_length() > 32:
            cache.crop(-1)

    return Case(
        what="GPT-2, DynamicCache of 24 tensors, one token more and cropped again",
        call=lambda: model(ids, past_key_values=cache, use_cache=True),
        prepare=prepare,
    )


CASES: dict[str, Callable[[torch.device], Case]] = {
    "arguments": partial(arguments, moving=True),
    "arguments-in-place": partial(arguments, moving=False),
    "arguments-graph": partial(arguments, moving=True, decorated=True),
    "nested-cache": nested,
    "dynamic-cache": cached,
}


class Stamps:
    """When the last launch began and ended, in nanoseconds, and how many there were. `dry` ones do nothing."""

    def __init__(self) -> None:
        self.began_ns = self.ended_ns = self.launches = 0
        self.dry = False

    def wrap(self, replay: Callable[[], None]) -> Callable[[], None]:
        clock = time.perf_counter_ns

        def launch() -> None:
            self.began_ns = clock()
            if not self.dry:
                replay()
            self.ended_ns = clock()
            self.launches += 1

        return launch


@contextmanager
def stamped(stamps: Stamps, backend: type[Any]) -> Iterator[None]:
    """Graphs captured in this block tell `stamps` of each replay."""
    original = backend.capture

    def capture(self: Any, *args: Any, **kwargs: Any) -> Any:
        graph, result = original(self, *args, **kwargs)
        instantiate = getattr(graph, "instantiate", None)
        if instantiate is None:  # it has an executable of its own
            return told(graph), result
        graph.instantiate = lambda: told(instantiate())
        return graph, result

    def told(launched: Any) -> Any:
        launched.replay = stamps.wrap(launched.replay)
        return launched

    with patch.object(backend, "capture", capture):
        yield


def repeated(case: Case, calls: int) -> list[torch.Tensor]:
    with torch.inference_mode():
        for _ in range(calls):
            case.prepare()
            case.call()
    return []


def steady(case: Case, stamps: Stamps, calls: int) -> dict[str, Any]:
    """Microseconds of each part of `calls` calls, and how many of them replayed."""
    clock, rows, launches = time.perf_counter_ns, [], stamps.launches
    with torch.inference_mode():
        for _ in range(calls):
            case.prepare()
            synchronize()
            stamps.began_ns = 0
            start = clock()
            case.call()
            end = clock()
            if stamps.began_ns:
                rows.append((start, stamps.began_ns, stamps.ended_ns, end))
    parts = {
        "before_launch_us": [(began - start) / 1e3 for start, began, _, _ in rows],
        "launch_us": [(ended - began) / 1e3 for _, began, ended, _ in rows],
        "after_launch_us": [(end - ended) / 1e3 for _, _, ended, end in rows],
        "until_launched_us": [(ended - start) / 1e3 for start, _, ended, _ in rows],
        "whole_call_us": [(end - start) / 1e3 for start, _, _, end in rows],
        "whole_call_without_launch_us": [(end - start - ended + began) / 1e3 for start, began, ended, end in rows],
    }
    found: dict[str, Any] = {"calls": calls, "replays": stamps.launches - launches}
    for name, samples in parts.items():
        if samples:
            first, median, third = quartiles(samples)
            found[name] = {"median": median, "iqr": third - first, "n": len(samples), "samples": samples}
    return found


@contextmanager
def unwatched() -> Iterator[None]:
    """Calls are served beside the profiler, for which they run as written otherwise."""
    from grape.runtime.dispatch import afterwards, intercept

    with ExitStack() as held:
        for module in (intercept, afterwards):
            held.enter_context(patch.object(module, "is_watched", lambda: False))
        yield


def profile(case: Case, stamps: Stamps, calls: int) -> list[dict[str, Any]]:
    """The functions with most time of their own, in microseconds per call, under cProfile."""
    profiler = cProfile.Profile()
    stamps.dry = True
    with torch.inference_mode(), unwatched():
        for _ in range(calls):
            case.prepare()
            synchronize()
            profiler.enable()
            case.call()
            profiler.disable()
    stats: dict[tuple[str, int, str], tuple[int, int, float, float, Any]] = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    rows = [
        {
            "function": _place(*where),
            "times": times / calls,
            "own_us": own * 1e6 / calls,
            "with_callees_us": below * 1e6 / calls,
        }
        for where, (_, times, own, below, _) in stats.items()
    ]
    return sorted(rows, key=lambda row: -row["own_us"])[:SHOWN]


def _place(file: str, line: int, name: str) -> str:
    if line == 0:
        return name  # built in
    path = Path(file)
    shown = path.relative_to(_PACKAGE) if path.is_relative_to(_PACKAGE) else Path(*path.parts[-3:])
    return f"{shown}:{line} {name}"


def measure(name: str, device: torch.device, calls: int, learning_calls: int, backend: type[Any]) -> dict[str, Any]:
    from grape.sessions import engine

    torch.manual_seed(0)
    case, stamps = CASES[name](device), Stamps()
    learning = Workload(name=name, what=case.what, calls=learning_calls, run=lambda: repeated(case, learning_calls))
    with stamped(stamps, backend):
        verdicts = []
        for _ in range(3):
            _, _, report = observed(learning)
            verdicts.append(report["verdict"])
        steady(case, stamps, 50)
        found = steady(case, stamps, calls)
        functions = profile(case, stamps, min(calls, PROFILED_CALLS))
    engine().reset()
    return {"what": case.what, **found, "profile": functions, "verdicts": verdicts}


def summary(name: str, found: dict[str, Any]) -> str:
    lines = [f"{name}: {found['what']}; {found['replays']} of {found['calls']} calls replayed"]
    keys = ("until_launched_us", "before_launch_us", "launch_us", "after_launch_us", "whole_call_us")
    lines += [f"  {key:18} {found[key]['median']:9.1f} +- {found[key]['iqr']:.1f}" for key in keys if key in found]
    lines += [f"    {row['own_us']:8.2f} us  {row['times']:6.1f}x  {row['function']}" for row in found["profile"][:10]]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--learning", type=int, default=150, help="calls in each of the three sessions before")
    parser.add_argument("--only", nargs="*", choices=tuple(CASES), default=list(CASES))
    parser.add_argument("--out", type=Path, default=result_path("host_cost"))
    options = parser.parse_args()
    of_regions()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    device = torch.device(options.device)
    from grape.runtime.backends.cuda.backend import CudaBackend
    from grape.runtime.backends.reference.backend import ReferenceBackend

    backend = CudaBackend if device.type == "cuda" else ReferenceBackend
    native.load()
    results = {}
    for name in options.only:
        results[name] = measure(name, device, options.calls, options.learning, backend)
        print(summary(name, results[name]), flush=True)
        write(options.out, {"machine": machine(), "extension": native.built() is not None, "cases": results})
    return int(any(found["replays"] < 0.9 * found["calls"] for found in results.values()))


if __name__ == "__main__":
    raise SystemExit(main())
