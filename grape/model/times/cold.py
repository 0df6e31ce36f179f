"""Operators that take longer when they meet a shape for the first time: plans, tuning, compilation, workspaces."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..location import line_of
from ..trace import OpRecord, Trace

LEAST_MS = 1.0
"""A first visit that costs less is none to speak of."""
_TIMES = 4.0
"""So many times what later visits take, at least."""
_SLOW = 0.75
"""Share of the shapes whose first visit has to be slow: some were met in an earlier cell."""
_QUICK = 0.9
"""Share of the later visits that have to be quick: else the operator waits for something else."""
_NS_PER_MS = 1e6
_MOST = 0.5
_TRACED_MS = 0.03
"""It takes so long to trace an operator, at least."""
_WAITS = frozenset({"host-read", "transfer-out", "transfer-in", "dynamic", "view"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdOperator:
    """One operator at one line. `each_ms` is what the first visits cost in one call that brings new shapes (of a trace
    outside of regions: one first visit); `all_ms` what they cost in all traces; `warm_ms` a later visit. `wall_ms` is
    the longest of the traces that hold slow visits, without what tracing took at least.
    """

    op: OpRecord
    each_ms: float
    all_ms: float
    shapes: int
    warm_ms: float | None = None
    wall_ms: float = 0.0

    @property
    def is_most(self) -> bool:
        """True where it is most of its call, so that how long others take tells whether they bring new shapes."""
        return self.wall_ms > 0 and self.each_ms >= _MOST * self.wall_ms


@dataclass(slots=True)
class _Visits:
    """Of one operator at one line: for each shape the trace and the nanoseconds of the first visit, and all later
    ones.
    """

    op: OpRecord
    first: dict[object, tuple[int, int]] = field(default_factory=dict)
    later: list[int] = field(default_factory=list)


def cold_operators(traces: Sequence[Trace], *, by_call: bool) -> tuple[ColdOperator, ...]:
    """The operators of `traces`, in their order, whose first visits of a shape are slow and whose later ones are not.

    One slow visit alone tells nothing: the process loads libraries at the first of all. `by_call`: each trace is one
    call.
    """
    visits = (_cold(one, traces, by_call=by_call) for one in _visits(traces))
    return tuple(one for one in visits if one is not None)


def may_be_cold(traces: Sequence[Trace]) -> bool:
    """True where a slow first visit was seen that costs more than it takes to trace another call with a new shape."""
    if not traces:
        return False
    tracing_ms = _TRACED_MS * max(len(trace.ops) for trace in traces)
    return any(one.each_ms >= tracing_ms for one in cold_operators(traces, by_call=True))


def _visits(traces: Sequence[Trace]) -> Iterable[_Visits]:
    found: dict[object, _Visits] = {}
    slow: set[object] = set()
    for number, trace in enumerate(traces):
        for op in trace.ops:
            if op.kind in _WAITS:
                continue
            key = (op.name, line_of(op.user), line_of(op.inner))
            if op.host_ns >= LEAST_MS * _NS_PER_MS:
                slow.add(key)
            visits = found.setdefault(key, _Visits(op))
            shape = tuple((view.shape, view.dtype) for view in op.tensors())
            if shape in visits.first:
                visits.later.append(op.host_ns)
            else:
                visits.first[shape] = number, op.host_ns
    return (visits for key, visits in found.items() if key in slow)


def slow_visits(
    first: Sequence[int], later: Sequence[int], *, least_ms: float = LEAST_MS, share: float = _SLOW
) -> list[tuple[int, float]]:
    """Of an operator's `first` visits of shapes those that are slow, by their numbers, and how many nanoseconds more
    than one of the `later` visits they take. Empty where that is no `share` of them, or not the shape that makes them
    slow.
    """
    if len(later) < 2:
        return []
    warm = statistics.median(later)
    least = max(least_ms * _NS_PER_MS, (_TIMES - 1) * warm)
    slow = [(number, ns - warm) for number, ns in enumerate(first) if ns - warm >= least]
    if not slow or len(slow) < share * len(first):
        return []
    bound = min(ns for _, ns in slow) / 2
    return slow if sum(ns - warm < bound for ns in later) >= _QUICK * len(later) else []


def cost_of(each: Sequence[float]) -> tuple[float, float]:
    """What one costs, and all do. The first of all may have loaded libraries."""
    typical = statistics.median(each[1:]) if len(each) > 2 else min(each)
    return typical, sum(each[1:]) + min(each[0], typical)


def _cold(visits: _Visits, traces: Sequence[Trace], *, by_call: bool) -> ColdOperator | None:
    calls, first = zip(*visits.first.values(), strict=True)
    slow = [(calls[number], ns) for number, ns in slow_visits(first, visits.later)]
    if not slow:
        return None
    each = [ns for _, ns in slow]
    if by_call:
        each = [sum(ns for number, ns in slow if number == call) for call in sorted({number for number, _ in slow})]
    typical, everything = cost_of(each)
    return ColdOperator(
        op=visits.op,
        each_ms=typical / _NS_PER_MS,
        all_ms=everything / _NS_PER_MS,
        warm_ms=statistics.median(visits.later) / _NS_PER_MS,
        wall_ms=max(_wall_ms(traces[number]) for number, _ in slow),
        shapes=len(slow),
    )


def _wall_ms(trace: Trace) -> float:
    return max(0.0, trace.wall_ns / _NS_PER_MS - _TRACED_MS * len(trace.ops))
