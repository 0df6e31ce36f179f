"""What a cell's time was spent on, before and after: parts of the host's time, which add up to the cell."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ..advisor.code.parsed import Parsed
from ..model import CellEvidence, Kind, Measured, Part, RegionEvidence, ReportData, Spent, Timeline
from ..model.times.timeline import covered_ns
from .units import percent, waited, waited_pair
from .verdict.verdict import gpu_measured

KINDS: dict[Kind, str] = {
    "python": "Python, GPU idle",
    "gpu": "GPU busy",
    "waiting": "waiting for the GPU",
    "data": "data",
    "grape": "Grape",
    "unprofiled": "not profiled",
}
"""The words for each part, in the order in which parts are drawn."""

_BLOCKS = ("Synchronize", "cudaMemcpy ", "cuMemcpyDtoH")
_COUNTERS = ("range", "enumerate", "zip", "tqdm", "trange", "count")


def spent(report: ReportData) -> tuple[Spent, ...]:
    """The plain cell and this run; empty without a GPU, where nothing was timed that counts, and where nothing tells
    what a cell's work was spent on.
    """
    cell, time = report.evidence, report.evidence.time
    if cell.spent is not None:
        return cell.spent
    if not gpu_measured(cell) or time is None or not _is_known(cell):
        return ()
    found = []
    data = min(data_ms(cell), time.wall_ms)
    if time.plain_ms:
        found.append(Spent(when="before", total_ms=time.plain_ms, parts=_plain_parts(cell, time.plain_ms, data)))
    grape_ms = min(time.wall_ms, time.own.total_ms + sum(stream.own_ms for stream in cell.streams))
    now: dict[Kind, float] = {**_parts_now(cell), "data": data}
    found.append(Spent(when="after", total_ms=time.wall_ms, parts=_fitted(now, time.wall_ms, grape_ms)))
    return tuple(found)


def in_words(one: Spent) -> str:
    """``0.86 s: Python, GPU idle 72%, GPU busy 28%``."""
    named = [f"{KINDS[part.kind]} {percent(part.ms / one.total_ms)}" for part in one.parts]
    return f"{waited(one.total_ms)}: {', '.join(named)}"


def legend(shown: Sequence[Spent]) -> tuple[tuple[Kind, str], ...]:
    """Each part, before and after: ``Python, GPU idle 0.62 -> 0.04 s``; ``data 0.30 s`` where it is the same, or of one
    alone.
    """
    found: list[tuple[Kind, str]] = []
    for kind in KINDS:
        each = [sum(part.ms for part in one.parts if part.kind == kind) for one in shown]
        if any(each):
            same = len({waited(ms) for ms in each if ms}) == 1  # 0: Grape before, or what is not known of one
            times = waited(max(each)) if same else waited_pair(each[0], each[1])
            found.append((kind, f"{KINDS[kind]} {times}"))
    return tuple(found)


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
    parts: dict[Kind, float] = {"data": data}
    for region in _outermost(cell):
        _add(parts, region.before, _median(region.before_ms) * region.calls)
    return _fitted(parts, total_ms, 0.0)


def _parts_now(cell: CellEvidence) -> dict[Kind, float]:
    if any(stream.matched for stream in cell.streams):
        return {"waiting": _read_ms(cell)}
    parts: dict[Kind, float] = {}
    for region in _outermost(cell):
        _add(parts, region.before, _median(region.before_ms) * (region.calls - region.replays))
        _add(parts, region.after, _median(region.after_ms) * region.replays)
    return parts


def _read_ms(cell: CellEvidence) -> float:
    """In which the host read values inside of what streams served, and so waited."""
    return sum(stop.total_ns for stream in cell.streams for stop in stream.reads) / 1e6


def _median(measured: Measured | None) -> float:
    return measured.median_ms if measured is not None else 0.0


def _add(parts: dict[Kind, float], timeline: Timeline | None, ms: float) -> None:
    """Divide `ms` in calls as the profiled ones were."""
    if timeline is not None and _has_work(timeline) and ms > 0:
        waiting, gpu = shares_of(timeline)
        shares: dict[Kind, float] = {"waiting": waiting, "gpu": gpu, "python": max(0.0, 1.0 - waiting - gpu)}
        for kind, share in shares.items():
            parts[kind] = parts.get(kind, 0.0) + share * ms


def _outermost(cell: CellEvidence) -> Iterator[RegionEvidence]:
    """Regions whose calls lie in no other region's that is timed."""
    timed = {region.name for region in cell.regions if region.before_ms is not None}
    return (region for region in cell.regions if region.parent not in timed)


def _fitted(parts: dict[Kind, float], total_ms: float, grape_ms: float) -> tuple[Part, ...]:
    """All that is known, brought into `total_ms` where medians of calls say more, and the rest."""
    room = max(0.0, total_ms - grape_ms)
    named = sum(parts.values())
    scale = room / named if named > room else 1.0
    fitted: dict[Kind, float] = {kind: ms * scale for kind, ms in parts.items()}
    fitted["unprofiled"] = room - sum(fitted.values()) if named <= room else 0.0
    fitted["grape"] = min(grape_ms, total_ms)
    return tuple(Part(kind=kind, ms=fitted[kind]) for kind in KINDS if fitted.get(kind, 0.0) > 0)


def data_ms(cell: CellEvidence) -> float:
    """Milliseconds in which the cell waited for its loaders, which were timed, and loops for their next item, from the
    times of its lines.
    """
    loaders_ms = sum(wait.host_ms for wait in cell.loaders)
    if cell.lines is None:
        return loaders_ms
    loops = _loops(cell) - {wait.at.line for wait in cell.loaders if wait.at is not None and wait.at.file == cell.file}
    return loaders_ms + sum(line.ms for line in cell.lines.lines if line.line in loops)


def _loops(cell: CellEvidence) -> frozenset[int]:
    """Lines of ``for ... in ...`` over what is no counter."""
    loops = (node for node in Parsed(cell.source).nodes if isinstance(node, (ast.For, ast.AsyncFor)))
    return frozenset(loop.lineno for loop in loops if not _is_counter(loop.iter))


def _is_counter(items: ast.expr) -> bool:
    """``range(n)``; of what is wrapped, what is inside."""
    if not isinstance(items, ast.Call):
        return isinstance(items, (ast.Tuple, ast.List))
    name = items.func.attr if isinstance(items.func, ast.Attribute) else getattr(items.func, "id", "")
    if name not in _COUNTERS:
        return False
    return all(isinstance(item, ast.Constant) or _is_counter(item) for item in items.args) or name in (
        "range",
        "trange",
    )
