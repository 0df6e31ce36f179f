"""Runs a workload plainly and under Grape, compares results bit for bit, and times both.

Functions of this file are no candidates for regions: they belong to no `__main__`. So what becomes a region is what
the workload itself calls.
"""

from __future__ import annotations

import gc
import itertools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import grape
from grape.model import Measured
from grape.options import ENGINE

__all__ = [
    "StepClock",
    "Workload",
    "main_region",
    "numbers",
    "observed",
    "of_regions",
    "passes",
    "same",
    "synchronize",
    "timed",
]

Result = Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Plain code: `run` does `calls` calls and gives tensors that tell whether they were right."""

    name: str
    what: str
    calls: int
    run: Callable[[], Result]


def of_regions() -> None:
    """Have regions serve what names no engine: cells of benchmarks run too seldom for regions to take over from
    operator streams by themselves.
    """
    os.environ.setdefault(ENGINE, "regions")


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def timed(workload: Workload) -> tuple[Result, float]:
    """One run as it stands; its result and its milliseconds per call, from an idle device to an idle device."""
    synchronize()
    began = time.perf_counter()
    result = workload.run()
    synchronize()
    return result, (time.perf_counter() - began) * 1e3 / workload.calls


def passes(workload: Workload, count: int, expected: Result | None = None) -> tuple[Result, list[float], bool]:
    """`count` timed runs: the last result, the samples, and whether each run gave the bits of `expected`.

    Without `expected` the runs are compared with the first of them.
    """
    samples, identical = [], True
    for _ in range(count):
        result, ms = timed(workload)
        samples.append(ms)
        expected = result if expected is None else expected
        identical = identical and same(expected, result)
    return result, samples, identical


def observed(workload: Workload) -> tuple[Result, float, dict[str, Any]]:
    """One run under a session: its result, its milliseconds per call (everything included), and the report."""
    gc.collect()
    with grape.session() as current:
        result, ms = timed(workload)
    report = current.report
    assert report is not None
    return result, ms, report.to_dict()


def main_region(report: dict[str, Any]) -> dict[str, Any] | None:
    """The region that took most of the time, one that replays first."""
    cost = {id(r): (r["before_ms"] or {"median": 0.0})["median"] * r["calls"] for r in report["regions"]}
    return max(report["regions"], key=lambda r: (r["outcome"] == "replayed", cost[id(r)]), default=None)


def same(one: Result, other: Result) -> bool:
    """Equal bits: NaN equals the same NaN, 0.0 is not -0.0."""
    return len(one) == len(other) and all(_same_bits(a, b) for a, b in zip(one, other, strict=True))


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    left, right = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
    return bool(torch.equal(left, right))


def numbers(samples_ms: Sequence[float]) -> dict[str, Any] | None:
    """Median, quartile range and the samples themselves."""
    measured = Measured.of(samples_ms)
    return {**measured.to_dict(), "samples": list(samples_ms)} if measured else None


class StepClock:
    """When each step of a loop ended, without waiting: on the device where there is one, else by the host's clock."""

    def __init__(self, steps: int, *, cuda: bool) -> None:
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)] if cuda else None
        self._stamps = [0.0] * (steps + 1)
        self._at = 0

    def start(self) -> None:
        self._at = -1
        self.mark()

    def mark(self) -> None:
        self._at += 1
        if self._events is not None:
            self._events[self._at].record()
        else:
            self._stamps[self._at] = time.perf_counter()

    def steps_ms(self) -> list[float]:
        """Milliseconds of each step since `start`; to be called after the device is idle."""
        if self._events is not None:
            return [a.elapsed_time(b) for a, b in itertools.pairwise(self._events[: self._at + 1])]
        return [(b - a) * 1e3 for a, b in itertools.pairwise(self._stamps[: self._at + 1])]
