"""The contents of the interactive view: plain values for its tables, binary columns for its timelines and curves.

Every figure is a string that `grape.render.summary` made, the same that text and static HTML show.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...model import Finding, Fix, RegionEvidence, ReportData, Spent, Timeline
from ...rewrite.likely import has_likely_fix
from ..html.html_lines import SPENT
from ..jsontext import plain
from ..lines import cell_lines, lines_title
from ..memory_rows import memory_bars, memory_title
from ..spent import KINDS, in_words, legend, spent
from ..streams import stream_lines
from ..summary import Row, cost, headline, place, region_bars, rows, runs_of, shared_file, timeline_strips
from ..units import changed_lines, clean, count, duration, nbytes, shown_diff, three, waited
from ..verdict.next_step import next_step
from .columns import BYTES_PER_EVENT, Columns, Strings, pack, text_tables

VERSION = 1

SHOWN_EVENTS = 50_000
"""Of one timeline. A trace for Perfetto holds all."""

_LONGEST_SOURCE = 200_000
_MOST_TIMELINES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """`data` is plain (JSON takes it) and names places in `blob`, the columns of all timelines and curves."""

    data: dict[str, Any]
    blob: bytes


class _Blob:
    """Columns one after the other."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.size = 0

    def add(self, part: bytes) -> int:
        """Append `part`, and where it begins."""
        offset, self.size = self.size, self.size + len(part)
        self._parts.append(part)
        return offset

    def bytes(self) -> bytes:
        return b"".join(self._parts)


def events_of(report: ReportData) -> int:
    """How many events the view would have to lay out, which is what making it takes time for."""
    known = [timeline for one in report.evidence.regions for timeline in (one.before, one.after)]
    return sum(len(timeline.events) for timeline in (*known, report.evidence.timeline) if timeline is not None)


def build_view(report: ReportData, *, limit: int = SHOWN_EVENTS) -> View:
    """The view of one report, with at most `limit` events of each timeline.

    With a limit of 0 it has no timelines, and says whether there will be any.
    """
    blob, strings = _Blob(), Strings()
    timelines: list[dict[str, object]] = []
    shown_rows = rows(report)
    regions = [_region(report, index, row, timelines, blob, strings, limit) for index, row in enumerate(shown_rows)]
    cell = report.evidence.timeline
    if cell is not None and cell.events:
        label = f"the cell, {place(report.evidence.file, None)}"
        shown = {"before_timeline": _timeline("before", cell, timelines, blob, strings, limit), "after_timeline": None}
        regions.append({"name": label, "where": "", "bars": [], "strips": _strips(cell, None), **shown})
    kinds, places = text_tables(strings)
    main = report.main_region
    data = {
        "version": VERSION,
        "verdict": clean(report.verdict),
        "headline": headline(report),
        "error": clean(report.evidence.error or ""),
        "notes": [clean(note) for note in report.evidence.notes],
        "streams": [clean(line).strip() for line in stream_lines(report)],
        "spent": _spent(spent(report)),
        "legend": [{"words": words, "colour": SPENT[kind]} for kind, words in legend(spent(report))],
        "lines": _lines(report),
        "next": next_step(report),
        "regions": regions,
        "main": report.regions.index(main) if main else 0,
        "timelines": timelines,
        "kinds": kinds,
        "places": places,
        "memory": _memory(report, blob),
        "coming": not limit and events_of(report) > 0,
        "findings": [_finding(report, finding) for finding in report.findings],
        "sources": _sources(report, events=bool(limit)),
    }
    return View(data=plain(data), blob=blob.bytes())


def _spent(shown: Sequence[Spent]) -> list[dict[str, object]]:
    """Shares of the longer of both."""
    longest = max((one.total_ms for one in shown), default=1.0)
    return [
        {
            "label": one.when,
            "total": waited(one.total_ms),
            "value": in_words(one),
            "share": one.total_ms / longest,
            "parts": [
                {"words": KINDS[part.kind], "colour": SPENT[part.kind], "share": part.ms / one.total_ms}
                for part in one.parts
            ],
        }
        for one in shown
    ]


def _lines(report: ReportData) -> dict[str, object]:
    """All lines, and the numbers of those to show where others are folded; None of these is a gap. `found`: numbers of
    the findings that stand below a line.
    """
    lines = cell_lines(report)
    shown = [line.number if line is not None else None for line in lines.shown]
    rows = [{**asdict(line), "found": lines.found.get(line.number, ())} for line in lines.all] if shown else []
    return {"title": lines_title(report), "rows": rows, "shown": shown}


def _region(
    report: ReportData,
    index: int,
    row: Row,
    timelines: list[dict[str, object]],
    blob: _Blob,
    strings: Strings,
    limit: int,
) -> dict[str, object]:
    region = report.regions[index]
    known = _evidence(report.evidence.regions, index)
    before, after = (known.before, known.after) if known else (None, None)
    return {
        **asdict(row),
        "line": region.line,
        "undoable": region.outcome == "replayed",
        "runs": runs_of(region) if region.calls else "",
        "bars": [asdict(bar) for bar in region_bars(region)],
        "strips": _strips(before, after),
        "before_timeline": _timeline("before", before, timelines, blob, strings, limit),
        "after_timeline": _timeline("after", after, timelines, blob, strings, limit),
    }


def _evidence(known: Sequence[RegionEvidence], index: int) -> RegionEvidence | None:
    """Rows of a report stand in the order of the evidence they were made from."""
    return known[index] if index < len(known) else None


def _strips(before: Timeline | None, after: Timeline | None) -> list[dict[str, str]]:
    return [{"label": strip.label, "value": strip.value} for strip in timeline_strips(before, after)]


def _timeline(
    label: str,
    timeline: Timeline | None,
    timelines: list[dict[str, object]],
    blob: _Blob,
    strings: Strings,
    limit: int,
) -> int | None:
    """Add a timeline; its number, or None where there is nothing to draw or the view is full."""
    if timeline is None or not timeline.events or len(timelines) >= _MOST_TIMELINES or not limit:
        return None
    columns = pack(timeline, strings, limit=limit)
    timelines.append(
        {
            "label": label,
            "calls": timeline.calls,
            "wall_ns": columns.end_ns,
            "tick_ns": columns.tick_ns,
            "offset": blob.add(columns.blob),
            "events": len(columns.blob) // BYTES_PER_EVENT,
            "left_out": _left_out(columns, timeline.dropped),
            "rows": [asdict(row) for row in columns.rows],
        }
    )
    return len(timelines) - 1


def _left_out(columns: Columns, dropped: int) -> str:
    if columns.count >= columns.total:
        return ""
    rest = "; the trace holds all" if not dropped else f"; {count(dropped)} were not recorded"
    return f"{count(columns.count)} of {count(columns.total)} events shown{rest}"


def _memory(report: ReportData, blob: _Blob) -> dict[str, object]:
    memory = report.memory
    tape = report.evidence.backend == "tape"
    curves = [
        ("resident" if tape else "allocated", memory.allocated_bytes),
        ("reserved", () if tape else memory.reserved_bytes),
        ("device, all in use", memory.device_used_bytes),
    ]
    return {
        "title": memory_title(report),
        "bars": [asdict(bar) for bar in memory_bars(report)],
        "samples": len(memory.at_ns),
        "at": blob.add(_floats(at / 1e6 for at in memory.at_ns)),
        "wall": duration(report.evidence.wall_ms),
        "wall_ms": report.evidence.wall_ms,
        "captured_ms": list(report.evidence.captured_at_ms),
        "curves": [
            {
                "label": label,
                "offset": blob.add(_floats(values)),
                "peak": max(values),
                "shown": nbytes(max(values)),
                "before": _peak_before(report, values),
            }
            for label, values in curves
            if len(values) == len(memory.at_ns) and values
        ],
    }


def _peak_before(report: ReportData, values: Sequence[int]) -> str:
    """The peak until the first graph was captured; empty where none was, or nothing was sampled until then."""
    captured = min(report.evidence.captured_at_ms, default=0.0)
    earlier = [value for at, value in zip(report.memory.at_ns, values, strict=True) if at / 1e6 < captured]
    return nbytes(max(earlier)) if earlier else ""


def _floats(values: Iterable[float]) -> bytes:
    column = array("f", values)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def findings_view(report: ReportData, why_not: Callable[[Finding], str | None]) -> list[dict[str, object]]:
    """The findings of a view anew, once their fixes are known; `why_not` says of a finding why it has none."""
    shown = []
    for finding in report.findings:
        why = why_not(finding) if finding.fix is None else None
        shown.append({**_finding(report, finding), "refused": clean(why) if why else None})
    return shown


def _finding(report: ReportData, finding: Finding) -> dict[str, object]:
    at = finding.at
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity,
        "message": clean(finding.message),
        "where": place(at.file, at.line) if at else clean(finding.region or ""),
        "file": shared_file(at.file) if at else None,
        "line": at.line if at else None,
        "end_line": finding.end_line or (at.line if at else None),
        "region": clean(finding.region) if finding.region else None,
        "cost": cost(finding),
        "advice": clean(finding.advice or ""),
        "evidence": [[clean(str(key)), _value(value)] for key, value in finding.evidence],
        "offered": report.make_fixes is not None and has_likely_fix(report.evidence, finding),
        "refused": None,
        "fix": _fix(finding.fix) if finding.fix else None,
    }


def _fix(fix: Fix) -> dict[str, object]:
    """`changes`: for where the lines around them are shown."""
    return {"id": fix.id, "diff": clean(shown_diff(fix.diff)), "changes": "\n".join(changed_lines(fix.diff))}


def _value(value: object) -> str:
    if isinstance(value, float):
        return three(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value))
    return clean(str(value))


def _sources(report: ReportData, *, events: bool) -> dict[str, str]:
    """The person's own code that findings and events can name, by file."""
    cell = report.evidence
    known = {**dict(cell.sources), cell.file: cell.source}
    return {
        shared_file(file): clean(known[file])
        for file in _named(report, events=events)
        if len(known.get(file, "")) <= _LONGEST_SOURCE and file in known
    }


def _named(report: ReportData, *, events: bool) -> Iterator[str]:
    seen = dict.fromkeys([report.evidence.file, *(f.at.file for f in report.findings if f.at)])
    for region in report.evidence.regions:
        seen[region.at.file] = None
        for timeline in (region.before, region.after) if events else ():
            for event in timeline.events if timeline else ():
                if event.position is not None:
                    seen[event.position.file] = None
    yield from seen
