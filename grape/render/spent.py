"""What a cell's time was spent on, before and after: parts of the host's time, which add up to the cell."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..model import CellEvidence, LineTimes, RegionEvidence, ReportData, Timeline
from ..model.timeline import covered_ns
from ..quiet import without_warnings
from .units import duration, percent
from .verdict import gpu_measured

__all__ = ["KINDS", "Kind", "Part", "Spent", "data_ms", "shares_of", "spent"]

Kind = Literal["python", "gpu", "waiting", "data", "grape"]

KINDS: dict[Kind, str] = {
    "python": "Python, GPU idle",
    "gpu": "GPU busy",
    "waiting": "waiting for the GPU",
    "data": "data",
    "grape": "Grape",
}
"""The words for each part, in the order in which parts are drawn."""

_BLOCKS = ("Synchronize", "cudaMemcpy ", "cuMemcpyDtoH")
_COUNTERS = ("range", "enumerate", "zip", "tqdm", "trange", "count")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    kind: Kind
    ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """`label` is ``before`` (the plain cell) or ``after`` (this run). `share` is `total_ms` of the longer of both."""

    label: str
    total_ms: float
    parts: tuple[Part, ...]
    share: float

    @property
    def value(self) -> str:
        """``0.86 s: Python, GPU idle 72%, GPU busy 28%``."""
        named = [f"{KINDS[part.kind]} {percent(part.ms / self.total_ms)}" for part in self.parts]
        return f"{duration(self.total_ms)}: {', '.join(named)}"


class _Shares(NamedTuple):
    """Of a profiled call: the host waits; the GPU works while the host does not wait."""

    waiting: float
    gpu: float


def spent(report: ReportData) -> tuple[Spent, ...]:
    """The plain cell and this run; empty without a GPU, where nothing was timed that counts, and where nothing tells
    what a cell's work was spent on. What was not profiled counts as Python.
    """
    cell, time = report.evidence, report.evidence.time
    if not gpu_measured(cell) or time is None or not _is_known(cell):
        return ()
    data = min(data_ms(cell), time.wall_ms)
    found = []
    if time.plain_ms:
        found.append(("before", time.plain_ms, _plain_parts(cell, time.plain_ms, data)))
    grape_ms = min(time.wall_ms, time.own.total_ms + sum(stream.own_ms for stream in cell.streams))
    now = {**_parts_now(cell), "data": data}
    found.append(("after", time.wall_ms, _fitted(now, time.wall_ms, grape_ms)))
    longest = max(total for _, total, _ in found)
    return tuple(
        Spent(label=label, total_ms=total, parts=parts, share=total / longest) for label, total, parts in found
    )


def _is_known(cell: CellEvidence) -> bool:
    return any(stream.matched for stream in cell.streams) or any(_profiled(region) for region in cell.regions)


def _profiled(region: RegionEvidence) -> bool:
    return region.before_ms is not None and _has_work(region.before)


def _has_work(timeline: Timeline | None) -> bool:
    return timeline is not None and timeline.wall_ns > 0 and bool(timeline.device_events())


def shares_of(timeline: Timeline) -> tuple[float, float]:
    """Of its time: the host waits for the GPU; the GPU works and the host does not wait."""
    blocked = [
        (event.start_ns, event.end_ns)
        for event in timeline.events
        if event.lane == "launch" and any(word in f"{event.name} " for word in _BLOCKS)
    ]
    busy = [(event.start_ns, event.end_ns) for event in timeline.device_events()]
    waiting = covered_ns(blocked)
    wall = max(1, timeline.wall_ns)
    return min(1.0, waiting / wall), min(1.0, (covered_ns([*blocked, *busy]) - waiting) / wall)


def _plain_parts(cell: CellEvidence, total_ms: float, data: float) -> tuple[Part, ...]:
    parts: dict[Kind, float] = {"data": data, "waiting": 0.0, "gpu": 0.0}
    for region in _outermost(cell):
        _add(parts, region.before, _median(region.before_ms) * region.calls)
    if not any(map(_profiled, cell.regions)):
        parts["waiting"] = _read_ms(cell)
    return _fitted(parts, total_ms, 0.0)


def _parts_now(cell: CellEvidence) -> dict[Kind, float]:
    parts: dict[Kind, float] = {"waiting": 0.0, "gpu": 0.0}
    if any(stream.matched for stream in cell.streams):
        parts["waiting"] = _read_ms(cell)
        return parts
    for region in _outermost(cell):
        _add(parts, region.before, _median(region.before_ms) * (region.calls - region.replays))
        _add(parts, region.after, _median(region.after_ms) * region.replays)
    return parts


def _read_ms(cell: CellEvidence) -> float:
    """In which the host read values inside of what streams served, and so waited."""
    return sum(stop.total_ns for stream in cell.streams for stop in stream.reads) / 1e6


def _median(measured: object) -> float:
    return float(getattr(measured, "median_ms", 0.0))


def _add(parts: dict[Kind, float], timeline: Timeline | None, ms: float) -> None:
    if timeline is not None and _has_work(timeline) and ms > 0:
        waiting, gpu = shares_of(timeline)
        parts["waiting"] += waiting * ms
        parts["gpu"] += gpu * ms


def _outermost(cell: CellEvidence) -> Iterator[RegionEvidence]:
    """Regions whose calls lie in no other region's that is timed."""
    timed = {region.name for region in cell.regions if region.before_ms is not None}
    return (region for region in cell.regions if region.parent not in timed)


def _fitted(parts: dict[Kind, float], total_ms: float, grape_ms: float) -> tuple[Part, ...]:
    """All that is named, brought into `total_ms` where medians of calls say more; Python is the rest."""
    room = max(0.0, total_ms - grape_ms)
    named = sum(parts.values())
    scale = room / named if named > room else 1.0
    fitted: dict[Kind, float] = {kind: ms * scale for kind, ms in parts.items()}
    fitted["python"] = max(0.0, room - sum(fitted.values()))
    fitted["grape"] = min(grape_ms, total_ms)
    return tuple(Part(kind=kind, ms=fitted[kind]) for kind in KINDS if fitted.get(kind, 0.0) > 0)


def data_ms(cell: CellEvidence) -> float:
    """Milliseconds in which loops of the cell waited for their next item, from the looks at its lines."""
    if cell.lines is None:
        return 0.0
    return sum(cell.lines.took_ms(line.ms) for line in cell.lines.lines if line.line in _loops(cell, cell.lines))


def _loops(cell: CellEvidence, lines: LineTimes) -> frozenset[int]:
    """Lines of ``for ... in ...`` over what is no counter."""
    try:
        with without_warnings():
            tree = ast.parse(cell.source)
    except (SyntaxError, ValueError):
        return frozenset()
    loops = (node for node in ast.walk(tree) if isinstance(node, (ast.For, ast.AsyncFor)))
    return frozenset(loop.lineno for loop in loops if not _is_counter(loop.iter))


def _is_counter(items: ast.expr) -> bool:
    """``range(n)``; of what is wrapped, what is inside."""
    if not isinstance(items, ast.Call):
        return isinstance(items, (ast.Tuple, ast.List))
    name = items.func.attr if isinstance(items.func, ast.Attribute) else getattr(items.func, "id", "")
    if name not in _COUNTERS:
        return False
    return all(isinstance(item, ast.Constant) or _is_counter(item) for item in items.args) or name in ("range", "trange")
