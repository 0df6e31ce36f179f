"""How much memory graphs may hold, what they hold, and how they give way.

The budget counts everything on the device: the pool, the slots, the executables. Pool and slots follow from what was
captured, so what is left of the budget is the limit of the executables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from ...model import GraphMemory, Reason, Refused
from ...model.call import Args, Kwargs
from ...model.sizes import size_text
from ...tracing import person_runs
from ..regions.context import KnownRegion, RegionContext

CLASS_SHARE = 0.25
"""Executables beyond the usual number, one for each class, may take so much of what pools and slots take. A class that
has none makes it at its call: 25 ms for the 1,300 nodes of a training step on an H200, whose 93 classes take 0.7 GB
beside a pool of 6."""


def apply_budget(context: RegionContext) -> None:
    """Let executables have what the budget leaves them; less useful ones go."""
    store = context.executables
    if store is None:
        return
    budget = context.memory_budget
    held = beside(context) if budget is not None or store.crowded else 0
    limits = replace(
        store.limits,
        nbytes=None if budget is None else budget - held,
        class_bytes=int(CLASS_SHARE * held) if store.crowded else 0,
    )
    if limits != store.limits or limits.nbytes is not None:
        store.limits = limits
        store.apply_limits()


def enforce_budget(context: RegionContext) -> None:
    """As `apply_budget`; regions for which not one executable fits any more give all that they hold."""
    store = context.executables
    if context.memory_budget is not None:
        _give_pool_back(context)  # an undo keeps it
    apply_budget(context)
    if store is None or store.limits.nbytes is None:
        return
    holding = [region for region in list(context.regions) if region.entries]
    # What one gives back may be enough for the others, so the one that holds most goes first.
    for region in sorted(holding, key=lambda one: context.store.nbytes_of(one.owner), reverse=True):
        alone = all(entry.apart_bytes for entry in region.entries)  # these take no executables of the store
        if store.limits.nbytes < 0 if alone else not store.fits(region.owner):
            leave_eager(region, over_budget(context), retry_above=context.memory_budget or 0)
            apply_budget(context)


def beside(context: RegionContext) -> int:
    """Bytes of pools and slots, and of what graphs have that share nothing."""
    apart = sum(entry.apart_bytes for region in list(context.regions) for entry in region.entries)
    return context.backend.memory().pool_bytes + context.store.nbytes + apart


def account(context: RegionContext, region: KnownRegion | None = None) -> GraphMemory | None:
    """The memory of the graphs of a region, or of all; None where there are none, or they share no executables."""
    store = context.executables
    regions = [region] if region is not None else list(context.regions)
    entries = [entry for one in regions for entry in one.entries]
    if store is None or not entries:
        return None
    found = store.account(region.owner if region is not None else None)
    pool_bytes = context.backend.memory().pool_bytes
    return GraphMemory(
        pool_bytes=pool_bytes,
        placeholder_bytes=context.store.nbytes_of(region.owner) if region is not None else context.store.nbytes,
        executable_bytes=found.executable_bytes,
        record_bytes=found.record_bytes + found.base_bytes,
        host_graph_bytes=found.working_set_bytes,
        graphs=found.shapes,
        classes=found.classes,
        alone=found.alone,
        executables=found.executables,
        switches=found.switches,
        evictions=found.evictions,
        refused_updates=found.refused,
        per_graph_bytes=pool_bytes + found.all_resident_bytes + sum(entry.private_bytes for entry in entries),
    )


def no_room(context: RegionContext) -> Refused:
    """Why an executable could not be had just now."""
    return Refused.because(Reason.DEVICE_FULL) if _device_full(context) else over_budget(context)


def budget_without_room(context: RegionContext) -> int:
    """More than this must be allowed before an executable that could not be had just now is tried again."""
    return 0 if _device_full(context) else context.memory_budget or 0


def _device_full(context: RegionContext) -> bool:
    """True where it was the device, not the budget: then the next cell may find more."""
    store = context.executables
    return context.memory_budget is None or (store is not None and store.device_full)


def over_budget(context: RegionContext) -> Refused:
    """As `no_room`, where it is for the budget."""
    return _over_budget(beside(context), context.memory_budget or 0)


def _over_budget(beside_bytes: int, budget: int) -> Refused:
    return Refused.because(Reason.OVER_BUDGET, beside=size_text(beside_bytes), budget=size_text(budget))


def leave_eager(region: KnownRegion, refused: Refused, *, retry_above: int) -> None:
    """Leave a region eager for want of memory, until a cell whose budget is larger than `retry_above`.

    What it calls may need less, and is captured within the same budget.
    """
    context = region.context
    region.over_budget_at, region.over_budget_beside = retry_above, beside(context)
    region.release()
    region.refused = replace(refused, at=region.at)
    _give_pool_back(context)


def name_budget(region: KnownRegion) -> None:
    """A cell begins whose budget is no larger than the one that was too small: the refusal names this one."""
    budget = region.context.memory_budget
    if region.over_budget_at and region.refused is not None and budget is not None:
        region.refused = replace(_over_budget(region.over_budget_beside, budget), at=region.refused.at)


def _give_pool_back(context: RegionContext) -> None:
    """The pool goes with the last graph."""
    if not any(region.entries for region in list(context.regions)):
        context.backend.close()


def evict_all(context: RegionContext) -> bool:
    """Release the graphs of all regions, for the person's own code is out of memory. Were there any?

    If so, nothing more is captured until a reset: graphs must not take the memory a second time.
    """
    holding = [region for region in list(context.regions) if region.entries]
    for region in holding:
        leave_eager(region, Refused.because(Reason.GAVE_WAY), retry_above=0)
    context.exhausted |= bool(holding)
    _give_pool_back(context)
    return bool(holding)


def run_eagerly(region: KnownRegion, args: Args, kwargs: Kwargs, *, repeatable: Callable[[], bool]) -> object:
    """The person's code. Where it runs out of memory and graphs hold some, they go.

    Then the call is made again if that does no harm; else the error is the person's, as it would be without Grape.
    """
    attention = region.context.attention
    attention.begin(None)
    try:
        with person_runs():
            return region.function(*args, **kwargs)
    except torch.OutOfMemoryError:
        again = repeatable()
        if not evict_all(region.context) or not again:
            raise
    finally:
        attention.end()
    with person_runs():
        return region.function(*args, **kwargs)
