"""Adds up what a cell's calls of regions took, and what the same calls take when nobody looks on and nothing is
replayed.

The time of a call that is traced, profiled or captured is booked whole while it runs (`attention.py`); what a plain
call takes is taken back here, when the cell is over and that is known. Plain is the median of eager calls of the same
shape that were neither watched nor the first of their shape.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...model import CallsAccount
from ..regions.region import Region
from ..regions.specialization import Specialization
from .attention import Attention
from .samples import CallTimes
from .tally import explained_ns

_NEIGHBOURS = 3
"""Where a shape has no plain call of its own (a growing cache comes once with each length), those that came next to it
count: so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A region's replays, and the same calls as written, in milliseconds of the whole cell."""

    region: Region
    replays: int
    took_ms: float
    eager_ms: float

    @property
    def lost_ms(self) -> float:
        """Negative where time was gained."""
        return self.took_ms - self.eager_ms


def settle_calls(regions: Iterable[Region], attention: Attention) -> tuple[CallsAccount, tuple[Replayed, ...]]:
    """A cell is over: take back what plain calls would have taken of those that were watched, and add up the replays.

    Waits for the device.
    """
    found: list[Replayed] = []
    unknown, samples, cold_ms = None, [], 0.0
    for region in regions:
        plain, on_device = _PlainTimes(region), region.context.backend.kind == "cuda"
        replays, replayed_ms, eager_ms = 0, 0.0, 0.0
        for shape in region.shapes.values():
            observed = shape.run == region.context.run
            if not observed and not shape.tally.replays:
                continue
            times = plain.of(shape)
            warm = statistics.median(times) if times else None
            cold_ms += _take_back(shape, warm, attention)
            cold = shape.before.cold_ms if shape.is_new and observed else None
            if cold is not None and warm is not None:
                cold_ms += max(0.0, cold - warm)
            count, took_ms = _replays(shape, attention, on_device=on_device, observed=observed)
            replays, replayed_ms, eager_ms = replays + count, replayed_ms + took_ms, eager_ms + count * (warm or 0.0)
            if count and warm is None:
                unknown = unknown or region.name
        if replays:
            samples.append(plain.samples)
            found.append(Replayed(region=region, replays=replays, took_ms=replayed_ms, eager_ms=eager_ms))
    account = CallsAccount(
        replays=sum(one.replays for one in found),
        replayed_ms=sum(one.took_ms for one in found),
        eager_ms=sum(one.eager_ms for one in found),
        samples=min(samples, default=0),
        unknown=unknown,
        paired=any(one.region.paired for one in found),
        cold_ms=cold_ms,
    )
    return account, tuple(found)


def _take_back(shape: Specialization, warm_ms: float | None, attention: Attention) -> float:
    """Book back what plain calls would have taken of those that were watched; what first calls took beyond that and
    beyond what tracing explains, in milliseconds.
    """
    tally, cold_ns = shape.tally, 0.0
    for took_ns, tracer_ns in tally.traced_ns:
        plain_ns = warm_ms * 1e6 if warm_ms is not None else took_ns - tracer_ns
        unexplained = took_ns - plain_ns - explained_ns(tracer_ns)
        if warm_ms is not None and unexplained > 0:
            cold_ns += unexplained
        attention.book("record", -plain_ns - max(0.0, unexplained))
    for purpose, calls in tally.watched.items():
        attention.book(purpose, -calls * (warm_ms or 0.0) * 1e6)
    return cold_ns / 1e6


def _replays(shape: Specialization, attention: Attention, *, on_device: bool, observed: bool) -> tuple[int, float]:
    """How many replays there were, and their time: on a device as events tell, here or in the last cell that was timed.

    What a profiled one took beyond others is booked.
    """
    tally = shape.tally
    if not tally.replays and not tally.profiled_ns:
        return 0, 0.0
    timed = shape.after.ms() if on_device else []
    if timed:
        shape.replay_ms = statistics.median(timed)
    ahead_ms = tally.ahead_ns / max(1, tally.replays) / 1e6
    if shape.replay_ms is not None:  # from the beginning of the call
        each_ms = shape.replay_ms - (ahead_ms if observed else 0.0)
    else:
        each_ms = tally.replay_ns / max(1, tally.replays) / 1e6 + (0.0 if observed else ahead_ms)
    each_ms = max(0.0, each_ms) or min(tally.profiled_ns, default=0) / 1e6
    for ns in tally.profiled_ns:
        attention.book("record", max(0.0, ns - each_ms * 1e6))
    count = tally.replays + len(tally.profiled_ns)
    return count, count * each_ms


def host_times(regions: Iterable[Region]) -> Iterator[Replayed]:
    """The replays of a cell that nobody observed, as the host's clock saw them: where that alone is longer than calls
    as written, whatever the device did, the replays were slower. Regions without a timed call as written are left out.
    """
    for region in regions:
        replayed = [shape for shape in region.shapes.values() if shape.tally.replays]
        plain = _PlainTimes(region)
        times = [plain.of(shape) for shape in replayed]
        if not replayed or not all(times):
            continue
        yield Replayed(
            region=region,
            replays=sum(shape.tally.replays for shape in replayed),
            took_ms=sum(shape.tally.replay_ns + shape.tally.ahead_ns for shape in replayed) / 1e6,
            eager_ms=sum(
                shape.tally.replays * statistics.median(one) for shape, one in zip(replayed, times, strict=True)
            ),
        )


class _PlainTimes:
    """Plain times of one region's calls, in milliseconds, by shape; `samples` counts all that were asked for."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._timed: list[Specialization] | None = None
        self._counted: set[int] = set()
        self.samples = 0

    def of(self, shape: Specialization) -> list[float]:
        near = [shape] if len(shape.before.warm_ms()) else self._nearest(shape)
        for one in near:
            if id(one) not in self._counted:
                self._counted.add(id(one))
                self.samples += len(one.before.warm_ms())
        return CallTimes.warm(one.before for one in near) or self._region.host_ms

    def _nearest(self, shape: Specialization) -> list[Specialization]:
        if self._timed is None:
            self._timed = [one for one in self._region.shapes.values() if one.before.warm_ms()]
        return sorted(self._timed, key=lambda one: abs(one.order - shape.order))[:_NEIGHBOURS]
