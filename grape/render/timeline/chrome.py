"""The timelines as a Chrome trace: opens in Perfetto and in ``chrome://tracing``.

Each timeline is a process, each lane a thread. Times are microseconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import count as numbers
from typing import Any

from ...model import Event, MemoryCurve, ReportData, Timeline
from ..files import write_text
from ..summary import place
from ..units import clean, count
from .timelines import named_timelines

_LANES = ("host", "launch", "device")
_LANE_NAMES = {"host": "host thread", "launch": "launches of thread", "device": "GPU stream"}


def write_chrome_trace(report: ReportData, path: str | os.PathLike[str]) -> None:
    """Write `chrome_trace(report)` to `path`, whole or not at all. Raises `UsageError` where that is impossible."""
    write_text(path, trace_text(report), "the trace")


def trace_text(report: ReportData) -> str:
    """`chrome_trace(report)` as JSON text."""
    return json.dumps(chrome_trace(report), separators=(",", ":"))


def chrome_trace(report: ReportData) -> dict[str, object]:
    """Before and after of each region, the main one first, then the cell and its memory curve."""
    events: list[dict[str, object]] = []
    arrows = numbers(1)
    for pid, (name, timeline) in enumerate(named_timelines(report), start=1):
        events += _process(pid, name, timeline, arrows)
    events += _memory(report.memory, tape=report.evidence.backend == "tape")
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"verdict": clean(report.verdict), "device": clean(report.device)},
    }


def _metadata(kind: str, pid: int, tid: int, **args: object) -> dict[str, object]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}


def _process(pid: int, name: str, timeline: Timeline, arrows: Iterator[int]) -> Iterator[dict[str, object]]:
    yield _metadata("process_name", pid, 0, name=name)
    yield _metadata("process_sort_index", pid, 0, sort_index=pid)
    if timeline.dropped:
        yield _metadata("process_labels", pid, 0, labels=f"{count(timeline.dropped)} events dropped")
    launches: dict[int, dict[str, object]] = {}
    landings: dict[int, dict[str, object]] = {}
    for tid, (lane, events) in enumerate(_tracks(timeline), start=1):
        yield _metadata("thread_name", pid, tid, name=lane)
        yield _metadata("thread_sort_index", pid, tid, sort_index=tid)
        for event in events:
            span = _span(event, pid, tid)
            yield span
            ends = landings if event.lane == "device" else launches if event.lane == "launch" else None
            if event.correlation and ends is not None:
                first = ends.setdefault(event.correlation, span)
                if span["ts"] < first["ts"]:
                    ends[event.correlation] = span
    yield from _flows(pid, launches, landings, arrows)


def _tracks(timeline: Timeline) -> list[tuple[str, list[Event]]]:
    """The events by lane, host threads first, streams last. Events of one track nest; what overlaps gets its own."""
    lanes: dict[tuple[int, int], list[Event]] = {}
    for event in timeline.events:
        key = (_LANES.index(event.lane), event.stream if event.lane == "device" else event.thread)
        lanes.setdefault(key, []).append(event)
    tracks: list[tuple[str, list[Event]]] = []
    for (lane, number), events in sorted(lanes.items()):
        name = f"{_LANE_NAMES[_LANES[lane]]} {number}"
        for ordinal, track in enumerate(_nested(events), start=1):
            tracks.append((name if ordinal == 1 else f"{name} ({ordinal})", track))
    return tracks


def _nested(events: list[Event]) -> list[list[Event]]:
    tracks: list[list[Event]] = []
    open_ends: list[list[int]] = []
    for event in sorted(events, key=lambda e: (e.start_ns, -e.end_ns)):
        for track, ends in zip(tracks, open_ends, strict=True):
            while ends and ends[-1] <= event.start_ns:
                ends.pop()
            if not ends or event.end_ns <= ends[-1]:
                track.append(event)
                ends.append(event.end_ns)
                break
        else:
            tracks.append([event])
            open_ends.append([event.end_ns])
    return tracks


def _span(event: Event, pid: int, tid: int) -> dict[str, Any]:
    args: dict[str, object] = {}
    if event.position:
        args["position"] = place(event.position.file, event.position.line)
        args["function"] = clean(event.position.function)
    if event.bytes:
        args["bytes"] = event.bytes
    if event.correlation:
        args["correlation"] = event.correlation
    if event.lane == "device":
        args["stream"] = event.stream
    return {
        "ph": "X",
        "name": clean(event.name),
        "cat": event.category,
        "pid": pid,
        "tid": tid,
        "ts": event.start_ns / 1000,
        "dur": max(0, event.duration_ns) / 1000,
        "args": args,
    }


def _flows(
    pid: int,
    launches: dict[int, dict[str, object]],
    landings: dict[int, dict[str, object]],
    arrows: Iterator[int],
) -> Iterator[dict[str, object]]:
    """An arrow from a launch to the first device activity that it caused (a graph launch causes many).

    Its id is a number of its own in the whole trace: Perfetto reads no other text, and knows no ids per process.
    """
    for correlation, launch in launches.items():
        landing = landings.get(correlation)
        if landing is None:
            continue
        arrow = {"name": "launch", "cat": "launch", "id": next(arrows), "pid": pid}
        yield {**arrow, "ph": "s", "tid": launch["tid"], "ts": launch["ts"]}
        yield {**arrow, "ph": "f", "bp": "e", "tid": landing["tid"], "ts": landing["ts"]}


def _memory(memory: MemoryCurve, *, tape: bool) -> Iterator[dict[str, object]]:
    """Counters in a process of their own: their clock starts with the cell, that of a timeline with its first call."""
    if not memory.at_ns:
        return
    yield _metadata("process_name", 0, 0, name="memory of the cell (time since the cell began)")
    yield _metadata("process_sort_index", 0, 0, sort_index=1_000_000)
    curves: dict[str, dict[str, tuple[int, ...]]] = {
        "allocator bytes": {"allocated": memory.allocated_bytes, "reserved": memory.reserved_bytes},
        "device bytes in use": {"used": memory.device_used_bytes},
    }
    if tape:
        curves = {"process bytes": {"resident": memory.allocated_bytes}}
    for name, series in curves.items():
        for index, at_ns in enumerate(memory.at_ns):
            values = {key: samples[index] for key, samples in series.items() if index < len(samples)}
            if values:
                yield {"ph": "C", "name": name, "pid": 0, "tid": 0, "ts": at_ns / 1000, "args": values}
