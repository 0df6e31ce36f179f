"""GR203 cold-shape: eager code itself takes longer when it meets a shape for the first time.

Sees: the operators of the traced calls, and under streams those that make plans, whose first visit of a shape takes
several times what later visits take; and calls of a region, the first of a shape against its later ones. Costs: that
difference for each new shape: plans of cuDNN, tuning, kernels that are compiled, workspaces. Fix: a kernel that needs
no plan per shape, or fewer shapes.
Wrong when: the process goes on for long with the same shapes: then it was paid once.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ....model import CellEvidence, Finding, RegionEvidence, ShapeCount, Trace
from ....model.times.cold import LEAST_MS, ColdOperator, cold_operators
from ....model.times.machine import H200, MachineCosts
from ...stopped import record_of
from ...words import in_library, milliseconds, operator_name, via

CODE = "GR203"

_SHAPES = 3
"""New shapes in a cell, from which on they are worth a word."""
_SHARE = 0.02
_ALL_MS = 5.0
"""What is less than this in a cell, or than that share of it, nobody waits for."""
_PAIRS = 2
_SLOW = 0.75
_OF_EACH = 0.5
"""A call in which a first visit is takes so much of what one costs, at least."""
_CALL = 0.5
"""A first call takes so much of a later one more, at least."""

_PLANS = "run it under `sdpa_kernel` without cuDNN: other attention kernels need no plan for each length; or {0}"
_TUNED = "leave `torch.backends.cudnn.benchmark` off where shapes change; or {0}"
_FEWER = "pad to a multiple, or bucket, with a mask, so that few shapes are met"


def check(evidence: CellEvidence, costs: MachineCosts = H200) -> Iterable[Finding]:
    found = [finding for region in evidence.regions for finding in _of_region(evidence, region)]
    if evidence.trace is not None and not evidence.traced_earlier:
        found += _outside(evidence, evidence.trace)
    return found or list(_under_streams(evidence))


def _of_region(evidence: CellEvidence, region: RegionEvidence) -> Iterator[Finding]:
    """Shapes that an earlier cell had are warm, whatever its traces say of them."""
    new = [count for count in region.shapes if not count.earlier_runs]
    if not new:
        return
    cold = []
    for one in cold_operators(region.traces, by_call=True):
        after = _afterwards(one, region)
        if after:  # tracing may have made the visits that were traced slower
            one = replace(one, each_ms=min(one.each_ms, statistics.median(after)))
        shapes = len(new) + len(after)
        sure = one.shapes >= _PAIRS or _borne_out(one, new, region)
        if sure and not _is_little(evidence, one.each_ms, shapes):
            cold.append((one, shapes))
    some = "about " if evidence.looked_on or region.afterwards_ms else "at least "
    for one, shapes in cold:
        yield _of_operator(one, region, shapes=shapes, all_ms=one.each_ms * shapes, some=some)
    called = _called(new) if not cold else None
    if called is None or _is_little(evidence, called[0], len(new)):
        return
    each, total = called
    least = "" if evidence.looked_on else "at least "
    yield Finding(
        code=CODE,
        severity="costly",
        message=f"the first call of `{region.name}` with a shape takes {milliseconds(each)} more than a later one; "
        f"{len(new)} shapes are new in this cell: {least}{milliseconds(total)} in all",
        at=region.at,
        end_line=region.end_line,
        region=region.name,
        evidence=(("shapes", len(new)), ("ms_per_shape", each), ("in_all_ms", total), ("calls", region.calls)),
        predicted_ms_per_call=total / max(1, region.calls),
        advice=_FEWER,
    )


def _is_little(evidence: CellEvidence, each_ms: float, shapes: int) -> bool:
    return shapes < _SHAPES or each_ms * shapes < max(_ALL_MS, _SHARE * evidence.wall_ms)


def _afterwards(one: ColdOperator, region: RegionEvidence) -> list[float]:
    """The times of calls with new shapes after looking on had an end that take so long."""
    return [ms for ms in region.afterwards_ms if ms >= _OF_EACH * one.each_ms]


def _borne_out(one: ColdOperator, new: list[ShapeCount], region: RegionEvidence) -> bool:
    """One slow visit was seen, which may have loaded libraries: where it is most of its call, other calls with new
    shapes have to take as long.
    """
    timed = [count.first_ms for count in new if count.first_ms is not None] + list(region.afterwards_ms)
    slow = sum(ms >= _OF_EACH * one.each_ms for ms in timed)
    return one.is_most and slow >= _PAIRS and slow >= _SLOW * len(timed)


def _called(new: list[ShapeCount]) -> tuple[float, float] | None:
    """Milliseconds for each new shape, and in all, from shapes that were called again; the first of all is left out,
    as the process may load libraries in it.
    """
    ordered = sorted(new, key=lambda count: count.order)
    pairs = [
        (one.first_ms - one.warm_ms, one.warm_ms)
        for one in ordered[1:]
        if one.first_ms is not None and one.warm_ms is not None
    ]
    slow = [more for more, warm in pairs if more >= max(LEAST_MS, _CALL * warm)]
    if len(slow) < max(_PAIRS, _SLOW * len(pairs)):
        return None
    each = statistics.median(slow)
    return each, sum(slow) + each * (len(new) - len(pairs))


def _outside(evidence: CellEvidence, trace: Trace) -> Iterator[Finding]:
    for one in cold_operators((trace,), by_call=False):
        if one.shapes >= _SHAPES and one.all_ms >= max(_ALL_MS, _SHARE * evidence.wall_ms):
            some = "at least " if trace.cut else ""
            yield _of_operator(one, None, shapes=one.shapes, all_ms=one.all_ms, some=some)


def _under_streams(evidence: CellEvidence) -> Iterator[Finding]:
    for stop in (stop for stream in evidence.streams for stop in stream.cold):
        all_ms = stop.total_ns / 1e6
        one = ColdOperator(
            op=record_of(stop, "compute"),
            each_ms=all_ms / stop.times,
            all_ms=all_ms,
            shapes=stop.times,
        )
        if not _is_little(evidence, one.each_ms, one.shapes):
            yield _of_operator(one, None, shapes=one.shapes, all_ms=all_ms, some="")


def _of_operator(
    one: ColdOperator,
    region: RegionEvidence | None,
    *,
    shapes: int,
    all_ms: float,
    some: str,
) -> Finding:
    user, inner = one.op.user, one.op.inner
    calls = max(1, region.calls + len(region.afterwards_ms)) if region is not None else shapes
    return Finding(
        code=CODE,
        severity="costly",
        message=f"{operator_name(one.op)} takes {milliseconds(one.each_ms)} more the first time that it meets a shape; "
        f"{shapes} shapes are new in this cell: {some}{milliseconds(all_ms)} in all{via(user, inner)}",
        at=user or inner or (region.at if region is not None else None),
        region=region.name if region is not None else None,
        evidence=(
            ("operator", one.op.name),
            ("shapes", shapes),
            ("ms_per_shape", one.each_ms),
            *((("warm_ms", one.warm_ms),) if one.warm_ms is not None else ()),
            ("in_all_ms", all_ms),
            *((("executions", shapes),) if region is None else ()),
            *in_library(user, inner),
        ),
        predicted_ms_per_call=all_ms / calls,
        advice=_advice(one.op.name),
    )


def _advice(operator: str) -> str:
    if "cudnn_attention" in operator:
        return _PLANS.format(_FEWER)
    return _TUNED.format(_FEWER) if "conv" in operator or "cudnn" in operator else _FEWER
