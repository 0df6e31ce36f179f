"""Events of the host and the device, on one time axis; and the memory curves on the same axis."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Literal

from ..kept import Kept
from ..location import Position

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Spans = tuple[NDArray[np.int64], NDArray[np.int64]]
    """Starts and ends."""

Lane = Literal["host", "launch", "device"]
Category = Literal["operator", "python", "runtime", "kernel", "memcpy", "memset", "graph", "annotation"]

DEVICE_WORK: frozenset[str] = frozenset({"kernel", "memcpy", "memset"})
"""Categories in which the GPU counts as busy. CUPTI also reports annotations as device events; those do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One span. Times are nanoseconds since the start of the timeline. `stream` is -1 for host events.

    `position` is the line of the person's own code, `inner` the line (often a library's) that issued the operator.
    """

    name: str
    lane: Lane
    category: Category
    start_ns: int
    end_ns: int
    stream: int = -1
    thread: int = 0
    correlation: int = 0
    bytes: int = 0
    position: Position | None = None
    inner: Position | None = None

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Timeline:
    """The events of `calls` calls of a region (or of a stretch of a cell), ordered by start."""

    events: tuple[Event, ...]
    wall_ns: int
    calls: int = 1
    dropped: int = 0
    chosen_of: int = 1
    """So many calls were profiled, of which this is the one nearest the median."""

    def device_events(self) -> tuple[Event, ...]:
        """Kernels, copies and memsets."""
        return _device_events(self)

    @property
    def gpu_busy_ns(self) -> int:
        """Time in which at least one device activity ran: the union of their spans over all streams."""
        return _length(self.busy_spans())

    def busy_spans(self) -> Spans:
        """When at least one device activity ran; see `disjoint`."""
        return _busy_spans(self)

    @property
    def gpu_busy_share(self) -> float:
        """`gpu_busy_ns` over `wall_ns`, in [0, 1]."""
        return min(1.0, self.gpu_busy_ns / self.wall_ns) if self.wall_ns else 0.0

    @property
    def kernels_per_call(self) -> float:
        return len(self.device_events()) / max(1, self.calls)


@Kept
def _device_events(timeline: Timeline) -> tuple[Event, ...]:
    return tuple(e for e in timeline.events if e.lane == "device" and e.category in DEVICE_WORK)


@Kept
def _busy_spans(timeline: Timeline) -> Spans:
    return disjoint((e.start_ns, e.end_ns) for e in timeline.device_events())


def disjoint(spans: Iterable[tuple[int, int]]) -> Spans:
    """Starts and ends, in the order of time, of half-open spans that cover what `spans` cover and do not overlap. What
    others cover is left with a length of 0.
    """
    import numpy as np  # only here: where nothing was profiled, nobody waits for its import

    starts, ends = np.fromiter(chain.from_iterable(spans), np.int64).reshape(-1, 2).T
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    starts[1:] = np.maximum(starts[1:], reach[:-1])
    return starts, np.maximum(starts, ends)


def covered_ns(spans: Iterable[tuple[int, int]]) -> int:
    """Length of the union of half-open spans."""
    return _length(disjoint(spans))


def _length(spans: Spans) -> int:
    starts, ends = spans
    return int((ends - starts).sum())


_RANK: dict[str, int] = {"device": 0, "launch": 1, "host": 2}


def thinned(events: tuple[Event, ...], wall_ns: int, limit: int) -> tuple[tuple[Event, ...], int]:
    """At most `limit` of `events`, and the time they stand for: all device work if it fits, else the first of it."""
    if len(events) <= limit:
        return events, wall_ns
    work = [event for event in events if event.category in DEVICE_WORK]
    if len(work) > limit:
        # Of the same start, all or none: else the busy share of the rest would be off.
        wall_ns = work[limit].start_ns
        kept = [event for event in work if event.start_ns < wall_ns]
        return tuple(replace(e, end_ns=min(e.end_ns, wall_ns)) for e in kept), wall_ns
    ranked = sorted(events, key=lambda e: (e.category not in DEVICE_WORK, _RANK[e.lane], -e.duration_ns))
    return tuple(sorted(ranked[:limit], key=lambda e: (e.start_ns, -e.end_ns))), wall_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """Samples of memory over time. `at_ns` counts from the start of the cell; the others are bytes, same length.

    `device_used_bytes` is what NVML reports for the whole device; empty where NVML is not available.
    """

    at_ns: tuple[int, ...] = ()
    allocated_bytes: tuple[int, ...] = ()
    reserved_bytes: tuple[int, ...] = ()
    device_used_bytes: tuple[int, ...] = ()

    @property
    def peak_allocated_bytes(self) -> int:
        return max(self.allocated_bytes, default=0)

    @property
    def peak_reserved_bytes(self) -> int:
        return max(self.reserved_bytes, default=0)
