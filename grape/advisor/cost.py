"""The cost of a finding: measured times first, machine constants only where a constant is all that is needed.

Every function returns milliseconds per call, or None where nothing was measured. Nothing is guessed: a cell that ran
on the tape has no device events, so it has no predicted gain.
"""

from __future__ import annotations

from itertools import pairwise

from ..model import RegionEvidence, Timeline
from ..model.times.machine import H200, MachineCosts

_NS_PER_MS = 1e6

HINT_BELOW = 0.01
"""A finding that costs less than this share of a call, or outside of regions of the cell, is a hint."""


def idle_share(timeline: Timeline | None) -> float | None:
    """The share of the time, in [0, 1], in which no device activity ran; None without device events."""
    if timeline is None or not timeline.device_events():
        return None
    return 1.0 - timeline.gpu_busy_share


def idle_ms(timeline: Timeline | None) -> float | None:
    """Device idle time per call; None without device events."""
    share = idle_share(timeline)
    if share is None or timeline is None:
        return None
    return share * timeline.wall_ns / max(1, timeline.calls) / _NS_PER_MS


def sync_gap_ms(timeline: Timeline | None) -> float | None:
    """Device idle time per call that follows copies to the host: the launches that had to wait for the value."""
    if timeline is None:
        return None
    events = sorted(timeline.device_events(), key=lambda e: e.start_ns)
    if not events:
        return None
    gap, reach = 0, events[0].end_ns
    for event, following in pairwise(events):
        reach = max(reach, event.end_ns)
        if event.category == "memcpy" and "DtoH" in event.name:
            gap += max(0, following.start_ns - reach)
    return gap / max(1, timeline.calls) / _NS_PER_MS


def transfer_ms(
    timeline: Timeline | None, nbytes: int, times_per_call: float, costs: MachineCosts = H200
) -> float | None:
    """Cost per call of `times_per_call` copies of `nbytes` bytes from the CPU to the device.

    A copy costs what its launch held the CPU for, or its time on the device where that is longer. Taken from the copies
    of that size in `timeline`; else from a calibrated rate; else None.
    """
    launches = {e.correlation: e.duration_ns for e in timeline.events if e.lane == "launch"} if timeline else {}
    spans = [
        max(event.duration_ns, launches.get(event.correlation, 0) if event.correlation else 0)
        for event in (timeline.device_events() if timeline else ())
        if event.category == "memcpy" and "HtoD" in event.name and event.bytes in (0, nbytes)
    ]
    if spans:
        return sum(spans) / len(spans) * times_per_call / _NS_PER_MS
    if costs.host_copy_gb_per_s is not None:
        return nbytes * times_per_call / costs.host_copy_gb_per_s / 1e6
    return None


def copy_ms(nbytes: int, costs: MachineCosts = H200) -> float:
    """Time of one fused copy of `nbytes` bytes within the device."""
    return nbytes / costs.device_copy_gb_per_s / 1e6


def capture_ms(timeline: Timeline | None, costs: MachineCosts = H200) -> float | None:
    """Time to capture one graph with the device work of one call; None without device events."""
    if timeline is None or not timeline.device_events():
        return None
    return timeline.kernels_per_call * costs.capture_ms_per_node


def call_ms(region: RegionEvidence) -> float | None:
    """Milliseconds of one call as the region runs now: replayed where it is replayed, else eager."""
    measured = (region.after_ms or region.before_ms) if region.outcome == "replayed" else region.before_ms
    return measured.median_ms if measured else None
