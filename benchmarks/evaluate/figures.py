"""What follows from the files of an evaluation: ratios, means with their spread, who fails and who is slower."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["SLOWER", "Costs", "Found", "Spread", "costs", "is_broken", "ratio", "spread", "whole_ratio"]

SLOWER = 0.97
"""Below, a way to run a row counts as slower than eager."""
Found = dict[str, Any]
"""A file of a row and a column."""


def ratio(found: Found | None) -> float | None:
    """How many times faster than eager a step is, both timed in one process; None where it was not measured."""
    if found is None or found["outcome"] != "measured":
        return None
    if "program" in found:
        return whole_ratio(found)
    return float(found["beside"]["median_step_ms"] / found["timed"]["median_step_ms"])


def whole_ratio(found: Found | None) -> float | None:
    """The same of whole runs, with the reports of Grape."""
    if found is None or found["outcome"] != "measured":
        return None
    if "program" in found:
        later = found["program"]["later_s"]
        return float(later[0] / later[1]) if later else None
    return float(found["beside"]["median_run_s"] / found["timed"]["median_run_s"])


def first_ratio(found: Found | None) -> float | None:
    """The same of the first run."""
    if found is None or found["outcome"] != "measured":
        return None
    if "program" in found:
        return float(found["program"]["plain_s"][0] / found["program"]["grape_s"][0])
    return float(found["plain"]["median_run_s"] / found["warm"]["run_s"][0])


def is_broken(found: Found) -> bool:
    """The tool did not run what eager runs."""
    return found["outcome"] in ("failed", "time-out", "crash", "not possible")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """`middle` is the geometric mean, `low` and `high` are quartiles."""

    middle: float
    low: float
    high: float
    least: float
    most: float
    n: int

    def __str__(self) -> str:
        return f"{self.middle:.2f}x ({self.low:.2f} to {self.high:.2f}, {self.least:.2f} to {self.most:.2f})"


def spread(ratios: Iterable[float | None]) -> Spread | None:
    known = sorted(one for one in ratios if one is not None)
    if not known:
        return None
    quartiles = statistics.quantiles(known, n=4, method="inclusive") if len(known) > 1 else [known[0]] * 3
    middle = math.exp(statistics.fmean(math.log(one) for one in known))
    return Spread(middle=middle, low=quartiles[0], high=quartiles[2], least=known[0], most=known[-1], n=len(known))


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds from the first run on; None where that never comes."""

    first_run_s: float
    eager_run_s: float
    to_first_gain_s: float | None
    to_break_even_s: float | None


def costs(found: Found) -> Costs | None:
    """The first gain is the beginning of the first run that is faster than eager's. It breaks even where all runs
    together have taken as long as eager's would have; beyond the measured ones by the median of later runs."""
    if found["outcome"] != "measured" or "warm" not in found:
        return None
    eager = found["beside"]["median_run_s"]
    runs: list[float] = [*found["warm"]["run_s"], *found["timed"]["run_s"]]
    runs[0] += found.get("prepare_s", 0.0)
    later = found["timed"]["median_run_s"]
    passed = gained = behind = 0.0
    first: float | None = None
    even: float | None = None
    for run in runs:
        first = passed if first is None and run < eager else first
        passed += run
        behind += run - eager
        if even is None and behind <= 0:
            even = passed
        gained = behind
    if even is None and later < eager:
        even = passed + gained / (eager - later) * later
    return Costs(first_run_s=runs[0], eager_run_s=eager, to_first_gain_s=first, to_break_even_s=even)
