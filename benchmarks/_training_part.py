"""One part of `training.py` in one variant, in this process. Run by it."""

from __future__ import annotations

import argparse
import gc
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from _machine import write
from _measure import StepClock, numbers, of_regions, same, synchronize
from _training_cells import PARTS, USE, Part
from torch.utils._pytree import tree_leaves

from grape.model import Measured

STEADY = 1.1
"""A step is accelerated that takes at most so many times the median of its shape at the end."""


class Clocked:
    """The loader of a cell, which marks the time at each item that it hands out."""

    def __init__(self, items: Sequence[Any], *, cuda: bool) -> None:
        self.items = items
        self.shapes = [_shape(item) for item in items]
        self._cuda = cuda
        self._clock = StepClock(len(items), cuda=cuda)

    def __iter__(self) -> Iterator[Any]:
        self._clock = StepClock(len(self.items), cuda=self._cuda)
        self._clock.start()
        for item in self.items:
            yield item
            self._clock.mark()

    def steps_ms(self) -> list[float]:
        """Of the last run; to be called when the device is idle."""
        return self._clock.steps_ms()


def _shape(item: Any) -> str:
    return " ".join(str(tuple(leaf.shape)) for leaf in tree_leaves(item) if isinstance(leaf, torch.Tensor))


def gist(report: dict[str, Any]) -> dict[str, Any]:
    """What a run under Grape came to, without its times."""
    kept = ("name", "line", "outcome", "reason", "calls", "replays")
    return {
        "verdict": report["verdict"],
        "regions": [{key: region[key] for key in kept} for region in report["regions"]],
        "findings": [f"{f['code']} {f['severity']} line {f['line']}: {f['message']}" for f in report["findings"]],
        "decisions": report["cell"]["decisions"],
    }


class Bench:
    """The shell that the cells run in, and what was found so far."""

    def __init__(self, part: Part, arguments: argparse.Namespace) -> None:
        from IPython.core.interactiveshell import InteractiveShell

        self.part = part
        self.variant: str = arguments.variant
        self.learn, self.runs = max(1, arguments.learn), max(1, arguments.runs)
        self.path: Path = arguments.out
        self.ends = time.monotonic() + arguments.seconds
        self.cuda = torch.cuda.is_available() and not arguments.small
        self.sizes = {"device": "cuda" if self.cuda else "cpu", **(part.small if arguments.small else part.sizes)}
        self.shell = InteractiveShell.instance(colors="nocolor")
        self.found: dict[str, Any] = {"name": part.name, "what": part.what, "sizes": self.sizes, "errors": []}

    # -- cells -------------------------------------------------------------------------------------------------------

    def cell(self, code: str) -> float:
        """Run a cell as a person would; milliseconds from an idle device to an idle device."""
        synchronize()
        began = time.perf_counter()
        result = self.shell.run_cell(code, store_history=True)
        synchronize()
        took = (time.perf_counter() - began) * 1e3
        result.raise_error()
        return took

    def define(self) -> None:
        """Make model, data and optimizer, always with the same numbers."""
        for name in ("model", "optimizer", "scaler", "losses"):
            self.shell.user_ns.pop(name, None)
        self.shell.displayhook.flush()
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        line = self.part.fused if self.variant == "fused" else self.part.optimizer
        self.cell("\n".join(f"{name} = {value!r}" for name, value in self.sizes.items()))
        self.cell(self.part.define.replace("{optimizer}", line))
        self.shell.user_ns["loader"] = Clocked(self.shell.user_ns["loader"], cuda=self.cuda)

    def run(self, code: str = USE) -> dict[str, Any]:
        """Go on training: milliseconds of the run and of each step."""
        took = self.cell(code)
        loader = self.shell.user_ns["loader"]
        return {"run_ms": took, "steps_ms": [round(ms, 4) for ms in loader.steps_ms()]}

    def state(self) -> list[torch.Tensor]:
        """All that training has changed, on the host."""
        names = self.shell.user_ns
        held = [names["model"].state_dict(), names["optimizer"].state_dict(), names["losses"], torch.get_rng_state()]
        if "scaler" in names:
            held.append(names["scaler"].state_dict())
        if self.cuda:
            held.append(torch.cuda.get_rng_state())
        leaves = [leaf for leaf in tree_leaves(held) if isinstance(leaf, (torch.Tensor, float, int))]
        return [torch.as_tensor(leaf).detach().to("cpu", copy=True) for leaf in leaves]

    def memory(self) -> dict[str, Any] | None:
        """Bytes on the device: torch's allocator at its highest, and all that is in use now, graphs included."""
        if not self.cuda:
            return None
        free, total = torch.cuda.mem_get_info()
        return {
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
            "device_used_bytes": total - free,
        }

    def in_time(self) -> bool:
        return time.monotonic() < self.ends

    # -- steps of the measurement ------------------------------------------------------------------------------------

    def attempt(self, step: Callable[[], None]) -> bool:
        """Do a step, keep its traceback if it fails, and write what is known."""
        try:
            step()
            return True
        except Exception:
            self.found["errors"].append(traceback.format_exc())
            return False
        finally:
            write(self.path, self.found)

    def plain(self) -> None:
        """The runs without Grape, and whether they can be repeated."""
        self.define()
        self.expected, samples = [], []
        for index in range(self.learn + self.runs):
            samples.append(self.run())
            self.expected.append(self.state())
            if not self.in_time() and index:
                break
        self.found["plain"] = self.summary(samples, self.timed(samples))
        self.found["plain"]["memory"] = self.memory()
        self.define()
        self.run()
        self.found["repeatable"] = same(self.expected[0], self.state())

    def timed(self, samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The last of them: the first run of all is slower."""
        return samples[-min(self.runs, max(1, len(samples) - 1)) :]

    def summary(self, samples: list[dict[str, Any]], timed: list[dict[str, Any]]) -> dict[str, Any]:
        shapes = self.shell.user_ns["loader"].shapes
        by_shape: dict[str, list[float]] = {}
        for sample in timed:
            for shape, ms in zip(shapes, sample["steps_ms"], strict=True):
                by_shape.setdefault(shape, []).append(ms)
        steady = {shape: numbers(ms) or {"median": 0.0} for shape, ms in by_shape.items()}
        step = Measured.of([ms for sample in timed for ms in sample["steps_ms"]])
        return {
            "run_ms": numbers([sample["run_ms"] for sample in timed]),
            "step_ms": step.to_dict() if step else None,
            "by_shape_ms": {shape: found["median"] for shape, found in steady.items()},
            "first_accelerated": self.first(samples, shapes, {s: found["median"] for s, found in steady.items()}),
            "samples": samples,
        }

    def first(
        self, samples: list[dict[str, Any]], shapes: list[str], steady: dict[str, float]
    ) -> dict[str, Any] | None:
        """When, counted from the start of the first run, a step first took about as long as at the end."""
        before_ms, steps = 0.0, 0
        for sample in samples:
            spent = 0.0
            for shape, ms in zip(shapes, sample["steps_ms"], strict=True):
                if ms <= STEADY * steady.get(shape, 0.0):
                    return {"seconds": (before_ms + spent) / 1e3, "steps": steps}
                spent, steps = spent + ms, steps + 1
            before_ms += sample["run_ms"]
        return None

    def grape(self) -> None:
        """The same runs under Grape, then with its graphs applied."""
        self.cell("%load_ext grape\nimport grape")
        self.define()
        identical, learning, timed, reports = True, [], [], []
        for index, expected in enumerate(self.expected):
            if index < self.learn and (not reports or self.learns(reports[-1])):
                learning.append(self.run(f"%%grape --no-widget\n{USE}"))
                reports.append(self.shell.user_ns["grape"].last.to_dict())
            elif len(timed) < self.runs:
                timed.append(self.run())
            else:
                break
            identical = identical and same(expected, self.state())
            self.found["identical"] = identical if self.found.get("repeatable") else None
            self.found["grape"] = self.summary([*learning, *timed], timed or learning[-1:])
            write(self.path, self.found)  # what follows may be cut short
            if not self.in_time() and timed:
                break
        self.found["learning"] = [gist(report) for report in reports]
        self.report(reports[-1])
        self.found["grape"] = self.summary([*learning, *timed], timed or learning[-1:])
        self.found["grape"]["memory"] = self.memory()
        self.compare()

    def learns(self, report: dict[str, Any]) -> bool:
        """Whether the last run captured something, or has not got to it yet."""
        captured = any(decision["action"] == "capture" for decision in report["cell"]["decisions"])
        return captured or not any(region["replays"] for region in report["regions"])

    def report(self, report: dict[str, Any]) -> None:
        from grape.runtime import account
        from grape.sessions import engine

        held = account(engine().context)
        self.found |= {
            "verdict": report["verdict"],
            "regions": report["regions"],
            "findings": [f"{f['code']} {f['severity']} line {f['line']}: {f['message']}" for f in report["findings"]],
            "account": held.to_dict() if held else None,
        }

    def compare(self) -> None:
        plain, after = self.found["plain"], self.found["grape"]
        self.found["speedup"] = plain["run_ms"]["median"] / after["run_ms"]["median"]
        ratios = {s: plain["by_shape_ms"][s] / ms for s, ms in after["by_shape_ms"].items() if ms}
        if len(ratios) > 1:
            shape = min(ratios, key=lambda s: ratios[s])
            self.found["slowest"] = {"shape": shape, "speedup": ratios[shape]}

    def busy(self) -> None:
        """The share of a run in which the device works, under Grape and plainly. Last, since a profile has a cost."""
        after = self.busy_share()
        self.cell("%grape reset")
        self.found["busy"] = {"before": self.busy_share(), "after": after}

    def busy_share(self) -> float | None:
        if not self.cuda:
            return None
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            took = self.run()["run_ms"]
        spans = [
            (event.time_range.start, event.time_range.end)
            for event in profiler.events()
            if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation
        ]
        worked, until = 0.0, float("-inf")
        for start, end in sorted(spans):
            worked += max(0.0, end - max(start, until))
            until = max(until, end)
        return worked / 1e3 / took

    def compiled(self) -> None:
        """The same cell with its modules compiled."""
        self.define()
        for name in self.part.modules:
            self.cell(f'{name} = torch.compile({name}, mode="reduce-overhead")')
        samples = []
        while len(samples) < self.learn + self.runs:
            samples.append(self.run())
            if not self.in_time():
                break
        self.found["compiled"] = self.summary(samples, self.timed(samples))
        self.found["compiled"]["memory"] = self.memory()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=tuple(PARTS))
    parser.add_argument("variant", choices=("written", "fused", "compile"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--learn", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=600.0)
    arguments = parser.parse_args()
    of_regions()
    bench = Bench(PARTS[arguments.part], arguments)
    if arguments.variant == "compile":
        bench.attempt(bench.compiled)
        return
    if bench.attempt(bench.plain) and bench.attempt(bench.grape):
        bench.attempt(bench.busy)


if __name__ == "__main__":
    main()
