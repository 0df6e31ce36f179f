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
from ..regions.situation import KnownRegion, Situation

__all__ = [
    "account",
    "apply_budget",
    "beside",
    "budget_without_room",
    "enforce_budget",
    "give_way",
    "name_budget",
    "no_room",
    "run_eagerly",
    "starve",
]

CLASS_SHARE = 0.25
"""Executables beyond the usual number, one for each class, may take so much of what pools and slots take. A class that
has none makes it at its call: 25 ms for the 1,300 nodes of a training step on an H200, whose 93 classes take 0.7 GB
beside a pool of 6."""


def apply_budget(situation: Situation) -> None:
    """Let executables have what the budget leaves them; less useful ones go."""
    store = situation.executables
    if store is None:
        return
    budget = situation.memory_budget
    held = beside(situation) if budget is not None or store.crowded else 0
    limits = replace(
        store.limits,
        nbytes=None if budget is None else budget - held,
        class_bytes=int(CLASS_SHARE * held) if store.crowded else 0,
    )
    if limits != store.limits or limits.nbytes is not None:
        store.limits = limits
        store.apply_limits()


def enforce_budget(situation: Situation) -> None:
    """As `apply_budget`; regions for which not one executable fits any more give all that they hold."""
    store = situation.executables
    if situation.memory_budget is not None:
        _give_pool_back(situation)  # an undo keeps it
    apply_budget(situation)
    if store is None or store.limits.nbytes is None:
        return
    holding = [region for region in list(situation.regions) if region.entries]
    # What one gives back may be enough for the others, so the one that holds most goes first.
    for region in sorted(holding, key=lambda one: situation.store.nbytes_of(one.owner), reverse=True):
        alone = all(entry.apart_bytes for entry in region.entries)  # these take no executables of the store
        if store.limits.nbytes < 0 if alone else not store.fits(region.owner):
            starve(region, over_budget(situation), retry_above=situation.memory_budget or 0)
            apply_budget(situation)


def beside(situation: Situation) -> int:
    """Bytes of pools and slots, and of what graphs have that share nothing."""
    apart = sum(entry.apart_bytes for region in list(situation.regions) for entry in region.entries)
    return situation.backend.memory().pool_bytes + situation.store.nbytes + apart


def account(situation: Situation, region: KnownRegion | None = None) -> GraphMemory | None:
    """The memory of the graphs of a region, or of all; None where there are none, or they share no executables."""
    store = situation.executables
    regions = [region] if region is not None else list(situation.regions)
    entries = [entry for one in regions for entry in one.entries]
    if store is None or not entries:
        return None
    found = store.account(region.owner if region is not None else None)
    pool_bytes = situation.backend.memory().pool_bytes
    return GraphMemory(
        pool_bytes=pool_bytes,
        placeholder_bytes=situation.store.nbytes_of(region.owner) if region is not None else situation.store.nbytes,
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


def no_room(situation: Situation) -> Refused:
    """Why an executable could not be had just now."""
    return Refused.because(Reason.DEVICE_FULL) if _device_full(situation) else over_budget(situation)


def budget_without_room(situation: Situation) -> int:
    """More than this must be allowed before an executable that could not be had just now is tried again."""
    return 0 if _device_full(situation) else situation.memory_budget or 0


def _device_full(situation: Situation) -> bool:
    """True where it was the device, not the budget: then the next cell may find more."""
    store = situation.executables
    return situation.memory_budget is None or (store is not None and store.device_full)


def over_budget(situation: Situation) -> Refused:
    """As `no_room`, where it is for the budget."""
    return _over_budget(beside(situation), situation.memory_budget or 0)


def _over_budget(beside_bytes: int, budget: int) -> Refused:
    return Refused.because(Reason.OVER_BUDGET, beside=size_text(beside_bytes), budget=size_text(budget))


def starve(region: KnownRegion, refused: Refused, *, retry_above: int) -> None:
    """Leave a region eager for want of memory, until a cell whose budget is larger than `retry_above`.

    What it calls may need less, and is captured within the same budget.
    """
    situation = region.situation
    region.starved_at, region.starved_beside = retry_above, beside(situation)
    region.release()
    region.refused = replace(refused, at=region.at)
    _give_pool_back(situation)


def name_budget(region: KnownRegion) -> None:
    """A cell begins whose budget is no larger than the one that was too small: the refusal names this one."""
    budget = region.situation.memory_budget
    if region.starved_at and region.refused is not None and budget is not None:
        region.refused = replace(_over_budget(region.starved_beside, budget), at=region.refused.at)


def _give_pool_back(situation: Situation) -> None:
    """The pool goes with the last graph."""
    if not any(region.entries for region in list(situation.regions)):
        situation.backend.close()


def give_way(situation: Situation) -> bool:
    """Release the graphs of all regions, for the person's own code is out of memory. Were there any?

    If so, nothing more is captured until a reset: graphs must not take the memory a second time.
    """
    holding = [region for region in list(situation.regions) if region.entries]
    for region in holding:
        starve(region, Refused.because(Reason.GAVE_WAY), retry_above=0)
    situation.exhausted |= bool(holding)
    _give_pool_back(situation)
    return bool(holding)


def run_eagerly(region: KnownRegion, args: Args, kwargs: Kwargs, *, repeatable: Callable[[], bool]) -> object:
    """The person's code. Where it runs out of memory and graphs hold some, they go.

    Then the call is made again if that does no harm; else the error is the person's, as it would be without Grape.
    """
    attention = region.situation.attention
    attention.begin(None)
    try:
        with person_runs():
            return region.function(*args, **kwargs)
    except torch.OutOfMemoryError:
        again = repeatable()
        if not give_way(region.situation) or not again:
            raise
    finally:
        attention.end()
    with person_runs():
        return region.function(*args, **kwargs)
