"""What follows from the files of an evaluation: ratios, means with their spread, who fails and who is slower."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

__all__ = [
    "AS_WRITTEN",
    "FASTER",
    "NOISE",
    "ONE_RUN",
    "SLOWER",
    "SLOWER_BY_RANGE",
    "Costs",
    "Found",
    "Noise",
    "Spread",
    "call",
    "costs",
    "first_ratio",
    "is_behind",
    "is_broken",
    "is_left_as_written",
    "is_replaying",
    "noise",
    "pair_range",
    "ratio",
    "spread",
    "timed_runs",
    "whole_ratio",
    "worst_later_ratio",
]

SLOWER = 0.97
"""Below, a first run or a pair of whole programs, which have no range, counts as slower."""
FASTER, SLOWER_BY_RANGE, NOISE = "faster", "slower", "within noise"
ONE_RUN, AS_WRITTEN = "one run", "left as written"
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
    """The same of the first run, preparation included, over the median of all eager runs."""
    if found is None or found["outcome"] != "measured":
        return None
    if "program" in found:
        return float(found["program"]["plain_s"][0] / found["program"]["grape_s"][0])
    return float(_eager_run_s(found) / (found["warm"]["run_s"][0] + found.get("prepare_s", 0.0)))


def worst_later_ratio(found: Found) -> float | None:
    """The same of the slowest run after the first."""
    if found["outcome"] != "measured" or "program" in found:
        return None
    return float(_eager_run_s(found) / max(*found["warm"]["run_s"][1:], *found["timed"]["run_s"], 0.0))


def _eager_run_s(found: Found) -> float:
    return statistics.median([*found["plain"]["run_s"], *found["beside"]["run_s"]])


def timed_runs(found: Found) -> int:
    return len(found["timed"]["run_s"])


def pair_range(found: Found, samples: str = "step_ms") -> tuple[float, float]:
    """Least and greatest ratio of an eager run and the run that came after it."""
    pairs = zip(found["beside"][samples], found["timed"][samples], strict=True)
    ratios = [eager / mine for eager, mine in pairs]
    return min(ratios), max(ratios)


def is_behind(mine: Found, theirs: Found) -> bool:
    """Each ratio of a step over eager is below each of the other's; both have more than one run."""
    return min(timed_runs(mine), timed_runs(theirs)) > 1 and pair_range(mine)[1] < pair_range(theirs)[0]


def is_left_as_written(found: Found) -> bool:
    """Grape's last report says that it runs the cell as eager does: its ratio is eager's over eager's."""
    return AS_WRITTEN in found.get("more", {}).get("verdict", "")


def is_replaying(found: Found) -> bool:
    """Grape's last report tells of operators or calls that graphs served."""
    more = found.get("more", {})
    served = [stream.get("matched") for stream in more.get("streams", [])]
    return any([*served, *(region.get("replays") for region in more.get("regions", []))])


def call(found: Found, samples: str = "step_ms") -> str:
    """Faster or slower only where no run of one side reaches into the range of the other; eager's range has the runs
    before the column was prepared, too. A single run has no range."""
    mine = found["timed"][samples]
    eager = [*found["plain"][samples], *found["beside"][samples]]
    if len(mine) < 2 or len(eager) < 2:
        return ONE_RUN
    if max(mine) < min(eager):
        return FASTER
    return SLOWER_BY_RANGE if min(mine) > max(eager) else NOISE


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
class Noise:
    """What eager does against itself."""

    within: Spread
    """Greatest over least of the eager steps of a row, in the runs beside the column."""
    before: Spread
    """Eager before the column was prepared over eager beside it, a step."""
    as_written: Spread | None
    """Ratios of rows that were left as written, a step."""


def noise(found: Iterable[Found]) -> Noise | None:
    steps = [one for one in found if one["outcome"] == "measured" and "program" not in one]
    many = [one["beside"]["step_ms"] for one in steps if len(one["beside"]["step_ms"]) > 1]
    within = spread(max(runs) / min(runs) for runs in many)
    before = spread(one["plain"]["median_step_ms"] / one["beside"]["median_step_ms"] for one in steps)
    if within is None or before is None:
        return None
    return Noise(within=within, before=before, as_written=spread(map(ratio, filter(is_left_as_written, steps))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds from the first run on; None where that never comes, or is not known."""

    first_run_s: float
    eager_run_s: float
    to_first_gain_s: float | None
    to_break_even_s: float | None
    is_extrapolated: bool
    """It breaks even after the runs that were measured."""
    settled: str
    """What `call` says of settled runs, or that the row was left as written."""


def costs(found: Found) -> Costs | None:
    """The first gain is the beginning of the first run that took less than each eager run. It breaks even where all
    runs together have taken as long as eager's would have, for the last time; beyond the measured ones by the median
    of settled runs. Neither comes where settled runs are not faster than eager's by their ranges."""
    if found["outcome"] != "measured" or "warm" not in found:
        return None
    eager, fastest = _eager_run_s(found), min(*found["plain"]["run_s"], *found["beside"]["run_s"])
    runs: list[float] = [*found["warm"]["run_s"], *found["timed"]["run_s"]]
    runs[0] += found.get("prepare_s", 0.0)
    settled = AS_WRITTEN if is_left_as_written(found) else call(found, "run_s")
    known = Costs(
        first_run_s=runs[0],
        eager_run_s=eager,
        to_first_gain_s=None,
        to_break_even_s=None,
        is_extrapolated=False,
        settled=settled,
    )
    if settled != FASTER:
        return known
    passed = behind = 0.0
    first: float | None = None
    even: float | None = None
    for run in runs:
        first = passed if first is None and run < fastest else first
        passed += run
        behind += run - eager
        even = None if behind > 0 else passed if even is None else even
    beyond = even is None
    if even is None:
        later = found["timed"]["median_run_s"]
        even = passed + behind / (eager - later) * later
    return replace(known, to_first_gain_s=first, to_break_even_s=even, is_extrapolated=beyond)
