"""GR501 launch-bound: the GPU waits for launches.

Sees: the timeline of the eager calls: the share of time in which no device activity ran, device activities per call,
their mean time. Costs: the idle time. Fix: let a graph issue the work; merge small operators. Wrong when: the idle
time is the CPU's own work in the region (tokenizing, file reads): a graph cannot replay that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...model import CellEvidence, Finding, RegionEvidence
from ..cost import H200, MachineCosts, idle_ms, idle_share
from ..prediction import saving_ms
from ..words import milliseconds

CODE = "GR501"

LEAST_IDLE_SHARE = 0.3


def check(evidence: CellEvidence, costs: MachineCosts = H200) -> Iterable[Finding]:
    if not evidence.cuda:
        return
    for region in evidence.regions:
        yield from _finding(region, costs)


def _finding(region: RegionEvidence, costs: MachineCosts) -> Iterator[Finding]:
    before, idle = region.before, _idle(region)
    if before is None or idle is None or idle[0] < LEAST_IDLE_SHARE:
        return
    share, lost = idle
    events = before.device_events()
    mean_us = sum(event.duration_ns for event in events) / len(events) / 1e3
    replayed = region.outcome == "replayed"
    left = idle_share(region.after) if replayed else None
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
        advice=None
        if replayed
        else "a graph issues these launches at once; what keeps the region from being captured stands in the blockers",
    )


def _idle(region: RegionEvidence) -> tuple[float, float] | None:
    """Share and milliseconds of a call in which the device does nothing: within the time that eager calls take when
    nobody profiles them, where they were timed.
    """
    before = region.before
    share, idle = idle_share(before), idle_ms(before)
    if before is None or share is None or idle is None or region.before_ms is None:
        return None if share is None or idle is None else (share, idle)
    whole = region.before_ms.median_ms
    idle = max(0.0, whole - before.gpu_busy_ns / 1e6 / max(1, before.calls))
    return (idle / whole if whole else 0.0), idle
