"""The evidence that a region gives the advisor and the report, as frozen data."""

from __future__ import annotations

import statistics

from ...model import CopyRecord, Measured, RegionEvidence, ShapeCount
from ..accounts.memory import account
from ..accounts.samples import CallTimes
from .call_profiles import CallProfiles
from .captures import Captures
from .observer import Observer
from .region_state import RegionState
from .traced_calls import traces_of_cell


def evidence_of(region: RegionState, observer: Observer, profiles: CallProfiles, captures: Captures) -> RegionEvidence:
    """The evidence of a region in the cell that runs. Eager times go back further, and traces that hold for it."""
    shapes = [shape for shape in region.shapes.values() if shape.run == region.context.run]
    compared = [shape for shape in shapes if shape.before.warm_ms() and len(shape.after)]
    before = CallTimes.warm(shape.before for shape in compared or shapes)
    after = CallTimes.joined(shape.after for shape in compared)
    replay_counts = region.replay_counts
    refused = region.refused or region.unused_gradients
    if refused is None and region.gave_way_in_run and not region.replays_in_run:
        refused = region.of_gradients
    waiting = [shape.decision for shape in shapes if shape.decision and shape.decision.action != "capture"]
    return RegionEvidence(
        name=region.name,
        at=region.at,
        end_line=region.end_line,
        loop_line=region.loop_line,
        outcome="refused" if refused else "replayed" if region.replays_in_run else "observed",
        refused=refused,
        calls=region.calls_in_run,
        replays=region.replays_in_run,
        parent=region.parent,
        wasted_iterations=region.wasted,
        overlapped=captures.overlapped,
        afterwards_ms=tuple(observer.afterwards_ms),
        paired=region.paired,
        verified=sorted(captures.verified)[-1] if captures.verified and not region.refused else None,
        traces=(*traces_of_cell(region, observer.traced), *observer.traced_afterwards),
        before=profiles.timeline_before() if profiles.profile_holds else None,
        after=profiles.timeline_after() if profiles.profile_holds else None,
        before_ms=Measured.of(before or region.host_ms),
        guards_ms=observer.guards_ms,
        after_ms=Measured.of(after),
        shapes=tuple(
            ShapeCount(
                shapes=shape.shapes,
                calls=shape.seen,
                order=shape.order,
                earlier_runs=shape.runs - 1 - shape.recalled,
                first_ms=shape.before.cold_ms,
                warm_ms=statistics.median(warm) if (warm := shape.before.warm_ms()) else None,
                captured=bool(shape.entries),
                capture_ms=sum(entry.capture_ms for entry in shape.entries),
                graph_bytes=sum(entry.nbytes for entry in shape.entries),
            )
            for shape in shapes
        ),
        copies=tuple(
            CopyRecord(
                argument=path,
                bytes=nbytes // times,
                calls=times,
                made_at=region.origins.get(path),
                unpredicted=region.context.predictor.why_not(region, path),
            )
            for path, (times, nbytes) in sorted(replay_counts.copies.items())
        ),
        scalar_changes=tuple(observer.scalar_changes),
        decisions=(*captures.decisions, *waiting[-1:]),
        copied_bytes_per_call=replay_counts.copied_bytes // max(1, region.replays_in_run),
        alias_hits=replay_counts.alias_hits,
        alias_misses=replay_counts.alias_misses,
        graph_bytes=sum(entry.nbytes for entry in region.entries),
        graph_memory=account(region.context, region),
    )
