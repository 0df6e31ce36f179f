"""Predicts the time of a replayed call of a region from what was observed while it ran eagerly."""

from __future__ import annotations

from dataclasses import replace

from ..model import CellEvidence, RegionEvidence
from ..model.times.machine import H200, MachineCosts
from .code.sites import sync_sites
from .cost import copy_ms, idle_ms
from .static.sources import synchronizes_in_loops

_UNTIL = (6.0, 0.26)
"""Work of the CPU until the launch, in operators (`MachineCosts.operator_us`): in any case, and for each tensor among
the arguments. Fitted to `benchmarks/results/predicted.json`, as those below."""
_SINCE = (2.0, 0.5)
"""The same for results, while the device works."""
_GUARDS = (5.0, 0.15)
"""Seeing that nothing has changed, where nobody timed it: in any case, and for each tensor read from outside."""
_ADDRESSES = 0.12
"""The share of it that comes before the launch."""
_SWITCH = (32.0, 0.125)
"""Bringing a shape to an executable that did another one: in any case, and for each kernel."""
_SETTLED = 64
"""A shape that is called so often gets an executable of its own."""
_OFTEN = 0.5
"""Waits of the cell per call of the region, from which on each call is taken to find an idle device."""


def predict(evidence: CellEvidence, costs: MachineCosts = H200) -> CellEvidence:
    """`evidence` with the predicted time of each region's replayed call; nothing is predicted without a CUDA device."""
    if not evidence.cuda or not any(region.before for region in evidence.regions):
        return evidence
    regions = tuple(
        replace(region, predicted_ms=predicted_replay_ms(region, costs, waited=_is_waited_for(evidence, region)))
        for region in evidence.regions
    )
    return replace(evidence, regions=regions)


def predicted_replay_ms(region: RegionEvidence, costs: MachineCosts = H200, *, waited: bool = False) -> float | None:
    """Milliseconds per replayed call; None without a timeline of device work.

    A replay takes its kernels, copies and memsets, a gap between each two of them, and the copies into placeholders
    where they are known. The CPU prepares a replay while the device works on the one before. Where its part takes
    longer than the device's, or where the cell waits for each call (`waited`), the device stands still till the launch.
    """
    before = region.before
    if before is None or not before.device_events():
        return None
    busy_ms = before.gpu_busy_ns / 1e6 / max(1, before.calls)
    copied = region.copied_bytes_per_call or sum(copy.bytes for copy in region.copies)
    device_ms = busy_ms + before.kernels_per_call * costs.node_gap_us / 1e3 + copy_ms(copied, costs)
    until_ms, since_ms = _host_ms(region, costs)
    if waited or device_ms < until_ms + since_ms:
        return until_ms + max(device_ms, since_ms)
    return device_ms


def _host_ms(region: RegionEvidence, costs: MachineCosts) -> tuple[float, float]:
    """Milliseconds of the CPU until a replay is launched, and after that."""
    last = region.traces[-1] if region.traces else None
    arguments = len(last.argument_storages) if last is not None else 0
    outside = len(last.external_storages) if last is not None else 0
    operator_ms = costs.operator_us / 1e3
    guards_ms = region.guards_ms
    if guards_ms is None:
        guards_ms = (_GUARDS[0] + _GUARDS[1] * outside) * operator_ms
    until_ms = _ADDRESSES * guards_ms + (_UNTIL[0] + _UNTIL[1] * arguments) * operator_ms
    since_ms = (1 - _ADDRESSES) * guards_ms + (_SINCE[0] + _SINCE[1] * arguments) * operator_ms
    if len(region.shapes) > 1 and region.before is not None and region.calls < _SETTLED * len(region.shapes):
        until_ms += (_SWITCH[0] + _SWITCH[1] * region.before.kernels_per_call) * operator_ms
    return until_ms, since_ms


def saving_ms(region: RegionEvidence, costs: MachineCosts = H200) -> float | None:
    """Milliseconds that a graph would save per call: the measured eager time less the predicted one.

    Where no eager call was timed, what its timeline shows of idle time stands in; under the profiler that is more than
    there is without it. None without a timeline, at least 0.
    """
    predicted = region.predicted_ms if region.predicted_ms is not None else predicted_replay_ms(region, costs)
    if predicted is None or region.before is None:
        return None
    if region.before_ms is not None:
        return max(0.0, region.before_ms.median_ms - predicted)
    idle = idle_ms(region.before)
    return None if idle is None else max(0.0, idle - region.before.kernels_per_call * costs.node_gap_us / 1e3)


def held_ms(region: RegionEvidence, costs: MachineCosts = H200) -> float:
    """Time in the cell that a graph of this region could win; for ordering only.

    Predicted saving where a timeline was taken, else eager time, else traced time, all times the number of calls.
    """
    saving = saving_ms(region, costs)
    if saving is not None:
        return saving * region.calls
    if region.before_ms is not None:
        return region.before_ms.median_ms * region.calls
    walls = [trace.wall_ns for trace in region.traces]
    return sum(walls) / len(walls) / 1e6 * region.calls if walls else 0.0


def _is_waited_for(evidence: CellEvidence, region: RegionEvidence) -> bool:
    """True where the cell waits for the device about once per call of the region."""
    seen = len(evidence.trace.ops) if evidence.trace is not None else 0
    waits = [site for site in sync_sites(evidence) if site.region is None]
    if sum(site.executions for site in waits) >= _OFTEN * region.calls > 0:
        return True
    if waits and seen and max(site.executions for site in waits) >= 4 and region.calls > seen // 2:
        return True  # the trace of the cell ended before its loop did
    return synchronizes_in_loops(evidence.source)
