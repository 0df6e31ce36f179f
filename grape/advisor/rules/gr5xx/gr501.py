"""GR501 launch-bound: the GPU waits for launches.

Sees: the timeline of the eager calls: the share of time in which no device activity ran, device activities per call,
their mean time. Costs: the idle time. Fix: let a graph issue the work; merge small operators. Wrong when: the idle
time is the CPU's own work in the region (tokenizing, file reads): a graph cannot replay that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ....model import CellEvidence, Finding, Measured, RegionEvidence, Timeline
from ....model.times.machine import H200, MachineCosts
from ...cost import idle_ms, idle_share
from ...prediction import saving_ms
from ...words import milliseconds

CODE = "GR501"

LEAST_IDLE_SHARE = 0.3


def check(evidence: CellEvidence, costs: MachineCosts = H200) -> Iterable[Finding]:
    if not evidence.cuda:
        return
    for region in evidence.regions:
        yield from _finding(region, costs)


def _finding(region: RegionEvidence, costs: MachineCosts) -> Iterator[Finding]:
    before, idle = region.before, _idle(region.before, region.before_ms)
    if before is None or idle is None or idle[0] < LEAST_IDLE_SHARE:
        return
    share, lost = idle
    events = before.device_events()
    mean_us = sum(event.duration_ns for event in events) / len(events) / 1e3
    replayed = region.outcome == "replayed"
    after = _idle(region.after, region.after_ms) if replayed else None
    left = after[0] if after else None
    now = f"; with the graph {left:.0%}" if left is not None else ""
    verb = "was" if replayed else "is"
    yield Finding(
        code=CODE,
        severity="hint" if replayed else "costly",
        message=f"the GPU {verb} idle {share:.0%} of each eager call of `{region.name}` ({milliseconds(lost)}): "
        f"{before.kernels_per_call:.0f} kernels of {mean_us:.3g} us each wait for their launches{now}",
        at=region.at,
        end_line=region.end_line,
        region=region.name,
        evidence=(
            ("idle_share", share),
            ("idle_ms_per_call", lost),
            ("kernels_per_call", before.kernels_per_call),
            ("mean_kernel_us", mean_us),
            ("idle_share_after", left),
            ("predicted_with", costs.source),
        ),
        predicted_ms_per_call=None if replayed else saving_ms(region, costs),
        advice=None if replayed else _advice(region),
    )


def _advice(region: RegionEvidence) -> str:
    graph = "a CUDA graph would issue these launches at once"
    return f"{graph}; why there is none: {region.refused.why}" if region.refused is not None else graph


def _idle(timeline: Timeline | None, timed: Measured | None) -> tuple[float, float] | None:
    """Share and milliseconds of a call in which the device does nothing: within the time that calls take when nobody
    profiles them, where they were timed.
    """
    share, idle = idle_share(timeline), idle_ms(timeline)
    if timeline is None or share is None or idle is None:
        return None
    if timed is None:
        return share, idle
    idle = max(0.0, timed.median_ms - timeline.gpu_busy_ns / 1e6 / max(1, timeline.calls))
    return (idle / timed.median_ms if timed.median_ms else 0.0), idle
