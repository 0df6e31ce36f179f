"""The contents of a summary, before anybody decides how they look: rows, bars, strips, findings, the next step.

Text and HTML are made from these values alone, so that they cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..model import Finding, Measured, RegionReport, ReportData, Timeline
from ..model.kept import Kept
from .spent import spent
from .units import clean, count, duration, one_line, percent, plural, ratio
from .verdict.said import LOOP, calls_text, looked_at
from .verdict.verdict import gpu_measured

if TYPE_CHECKING:
    from ..model.times.timeline import Spans

_MOST_FINDINGS = 3
_WORTH_SHOWING = 0.01
"""Of the cell's time; a hint that could save less is folded."""
_BUCKETS = 60
_CALLS_SHOWN = 4

Tone = Literal["before", "after", "memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One region, as text. `reason` is empty where the region was not refused."""

    name: str
    where: str
    outcome: str
    reason: str
    calls: str
    replays: str
    before: str
    after: str
    speedup: str
    verified: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """`share` in [0, 1] of the longest bar of its group."""

    label: str
    value: str
    share: float
    tone: Tone


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """The device over time. Each bucket is a busy share in [0, 1]; in all strips of a report it spans the same time."""

    label: str
    value: str
    buckets: tuple[float, ...]
    tone: Tone


def place(file: str | None, line: int | None) -> str:
    """``In[4], line 7``; a path keeps its last two parts."""
    if file is None:
        return "-"
    parts = clean(file).replace("\\", "/").split("/")
    shown = "/".join(parts[-2:]) if len(parts) > 2 else "/".join(parts)
    return shown if line is None else f"{shown}, line {line}"


def shared_file(file: str) -> str:
    """A file as a view that is handed on names it: of a library, what follows the folder of installed packages."""
    shown = clean(file)
    for folder in ("site-packages", "dist-packages"):
        for slash in "/\\":
            _, found, rest = shown.rpartition(f"{slash}{folder}{slash}")
            if found:
                return rest
    return shown


def headline(report: ReportData) -> str:
    """Which cell, how long it took, on what it ran, and how often its main region."""
    cell = report.evidence
    took = cell.time.wall_ms if cell.time else cell.wall_ms
    device = "CPU (rehearsal)" if cell.backend == "tape" else clean(cell.device)
    served = "operator streams" if cell.engine == "streams" and cell.streams else ""
    main = report.main_region
    calls = ""
    if main is not None and main.calls:
        seen = looked_at(cell, main)
        told = f"looked at {seen}" if seen != calls_text(main) else seen
        calls = runs_of(main) if main.replays or main.name.startswith(LOOP) else told
    parts = [f"{place(cell.file, None)} took {duration(took)}", device, served, calls]
    return "; ".join(part for part in parts if part)


def runs_of(region: RegionReport) -> str:
    """``64 calls of decode: 6 as written, 58 replayed``. Of a loop the first iterations are nobody's, and not counted:
    ``173 iterations of the loop at line 4 replayed, the others as written``.
    """
    name, written = one_line(region.name.partition(" #")[0], 48), region.calls - region.replays
    if region.name.startswith(LOOP):
        others = ", the others as written" if written else ""
        return f"{plural(region.replays, 'iteration')} of the {name} replayed{others}" if region.replays else ""
    if not region.replays:
        return plural(region.calls, "call") + f" of {name}"
    return f"{plural(region.calls, 'call')} of {name}: {count(written)} as written, {count(region.replays)} replayed"


def plain_basis(report: ReportData) -> str:
    """What the plain cell takes, and how that is known; empty where it is not."""
    time = report.evidence.time
    if time is None or time.plain_ms is None:
        return ""
    return f"the plain cell takes {duration(time.plain_ms)}: {time.basis}"


def cell_bars(report: ReportData) -> tuple[Bar, ...]:
    """The cell plain and now, and what of it was Grape's own; empty where the plain time is not known, where a picture
    says more, and without a GPU.
    """
    time = report.evidence.time
    if time is None or time.plain_ms is None or not gpu_measured(report.evidence) or spent(report):
        return ()
    longest = max(time.plain_ms, time.wall_ms)
    purpose, most_ms = max(time.own.to_dict().items(), key=lambda part: part[1])
    most = f", {duration(most_ms)} to {purpose}" if most_ms > 0.5 * time.own.total_ms else ""
    shown: tuple[tuple[str, float, str, Tone], ...] = (
        ("plain", time.plain_ms, "", "before"),
        ("now", time.wall_ms, "", "after"),
        ("Grape itself", time.own.total_ms, most, "memory"),
    )
    return tuple(
        Bar(label=label, value=duration(ms) + more, share=ms / longest if longest else 0.0, tone=tone)
        for label, ms, more, tone in shown
    )


def rows(report: ReportData) -> tuple[Row, ...]:
    """One row per region, in the order of the report."""
    measured = gpu_measured(report.evidence)
    return tuple(_row(region, measured=measured) for region in report.regions)


def _row(region: RegionReport, *, measured: bool) -> Row:
    """Without a GPU a replay is a rehearsal: what counts is that its results were checked."""
    return Row(
        name=clean(region.name),
        where=place(region.file, region.line),
        outcome="checked" if region.outcome == "replayed" and not measured else region.outcome,
        reason=region.reason or "",
        calls=count(region.calls),
        replays=count(region.replays),
        before=duration(region.before_ms.median_ms if region.before_ms else None),
        after=duration(region.after_ms.median_ms if region.after_ms else None),
        speedup=ratio(region.speedup),
        verified=clean(region.verified or "-"),
    )


def time_title(report: ReportData) -> str:
    main = report.main_region
    of = f" of {one_line(main.name, 48)}" if main and len(report.regions) > 1 else ""
    return f"time per call{of}"


def time_bars(report: ReportData) -> tuple[Bar, ...]:
    """Median time per call of the main region, before and after; none without a GPU, where they tell nothing."""
    main = report.main_region
    return region_bars(main) if main is not None and gpu_measured(report.evidence) else ()


def region_bars(region: RegionReport) -> tuple[Bar, ...]:
    """Median time per call of one region, before and after, and what was predicted for after."""
    timed: tuple[tuple[Tone, Measured | None], ...] = (("before", region.before_ms), ("after", region.after_ms))
    longest = max([*(m.median_ms for _, m in timed if m), region.predicted_ms or 0.0])
    bars = [
        Bar(
            label=tone,
            value=f"{duration(m.median_ms)} (n={count(m.n)}, IQR {duration(m.iqr_ms)})",
            share=m.median_ms / longest if longest > 0 else 0.0,
            tone=tone,
        )
        for tone, m in timed
        if m
    ]
    if region.predicted_ms is not None and bars:
        value = f"{duration(region.predicted_ms)} after (from eager calls)"
        bars.append(Bar(label="predicted", value=value, share=region.predicted_ms / longest, tone="after"))
    return tuple(bars)


def busy_buckets(spans: Spans, window_ns: int, buckets: int) -> tuple[float, ...]:
    """Share of each of `buckets` equal parts of [0, `window_ns`) that `spans`, which do not overlap, cover."""
    if window_ns <= 0 or buckets <= 0:
        return ()
    import numpy as np  # see `disjoint`

    starts, ends = (np.clip(times, 0, window_ns) for times in spans)
    # Time covered before each border of a bucket; between the ends of a span it grows with time.
    before = np.concatenate(([0], np.cumsum(ends - starts)))
    at, covered = np.stack((starts, ends), axis=1).ravel(), np.stack((before[:-1], before[1:]), axis=1).ravel()
    borders = np.linspace(0, window_ns, buckets + 1)
    busy = np.diff(np.interp(borders, at, covered)) if len(at) else np.zeros(buckets)
    return tuple(np.minimum(1.0, busy * buckets / window_ns).tolist())


_KEPT_BUCKETS = Kept[Timeline, dict[tuple[int, int], tuple[float, ...]]](lambda _: {})
"""Of timelines that live: the summary and the view show the same strips."""


def _buckets_of(timeline: Timeline, window_ns: int, buckets: int) -> tuple[float, ...]:
    known = _KEPT_BUCKETS(timeline)
    if (window_ns, buckets) not in known:
        known[window_ns, buckets] = busy_buckets(timeline.busy_spans(), window_ns, buckets)
    return known[window_ns, buckets]


def strips(report: ReportData) -> tuple[Strip, ...]:
    """Busy and idle device, before and after, over the same number of calls and on the same time scale."""
    return timeline_strips(*report.timelines())


def timeline_strips(before: Timeline | None, after: Timeline | None) -> tuple[Strip, ...]:
    """The strips of one region's timelines; see `strips`."""
    named: list[tuple[Tone, Timeline]] = []
    if before and before.wall_ns > 0 and before.device_events():
        named.append(("before", before))
    if after and after.wall_ns > 0 and after.device_events():
        named.append(("after", after))
    if not named:
        return ()
    calls = min(_CALLS_SHOWN, *(max(1, timeline.calls) for _, timeline in named))
    windows = [timeline.wall_ns * calls // max(1, timeline.calls) for _, timeline in named]
    longest = max(*windows, 1)
    return tuple(
        Strip(
            label=tone,
            value=f"{_profiled(timeline, calls)} in {duration(window / 1e6)}, "
            f"GPU busy {percent(timeline.gpu_busy_share)}, "
            f"{plural(timeline.kernels_per_call, 'GPU operation')} a call",
            buckets=_buckets_of(timeline, window, max(1, round(_BUCKETS * window / longest))),
            tone=tone,
        )
        for (tone, timeline), window in zip(named, windows, strict=True)
    )


def _profiled(timeline: Timeline, calls: int) -> str:
    """Which of the profiled calls it is."""
    if timeline.chosen_of > 1:
        return f"the nearest to the median of {plural(timeline.chosen_of, 'profiled call')}"
    return plural(calls, "profiled call")


def cost(finding: Finding) -> str:
    """The saving that removing it should bring; empty where that was not measured."""
    saved = finding.predicted_ms_per_call
    return "" if saved is None else f"about {duration(saved)} {'per call' if finding.region else 'each time'}"


def shown_findings(report: ReportData) -> int:
    """How many findings stand unfolded, from the first: at most three, and no hint that would hardly be noticed."""
    first = report.findings[:_MOST_FINDINGS]
    return next((index for index, finding in enumerate(first) if _negligible(report, finding)), len(first))


def _negligible(report: ReportData, finding: Finding) -> bool:
    share = share_of(report, finding)
    return finding.severity == "hint" and share is not None and share < _WORTH_SHOWING


def share_of(report: ReportData, finding: Finding) -> float | None:
    """Of the cell's time that removing it should save, where that is known."""
    facts = dict(finding.evidence)
    calls = next((region.calls for region in report.regions if region.name == finding.region), None)
    calls = calls or facts.get("executions") or facts.get("executions_at_least")
    time, saved_ms = report.evidence.time, finding.predicted_ms_per_call
    if calls is None or saved_ms is None or time is None or not time.wall_ms:
        return None
    return saved_ms * calls / time.wall_ms


def level(share: float) -> int:
    """A busy share as one of five steps; 0 only where the device did nothing."""
    return 0 if share <= 0 else min(4, 1 + int(share * 4))


def source_at(finding: Finding) -> str:
    return place(finding.at.file, finding.at.line) if finding.at else clean(finding.region or "the cell")
