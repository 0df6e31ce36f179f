"""Graphs that only Grape holds on to any more: of state and code that the person has let go of.

Who makes a model anew (``net = Net()`` again), defines a function anew or edits a loop expects the old one's memory
back. A graph reads the old weights where they lie and would keep them; so at the end of each cell the graphs that
serve nothing are looked through.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable

from ..guarding.guards import GuardSet
from ..regions.region import Region
from ..regions.specialization import Specialization
from ..replaying.entry import Entry
from ..state import Reach, TooLarge


def release_abandoned(regions: Iterable[Region]) -> None:
    """Release graphs that served no call since the last time this was asked and that read what cannot be read any more.

    That is a tensor that the region's code no longer reaches, or an object that came as an argument and in whose place
    another one comes now. What has another name still (models that take turns under one name) stays. A graph
    that goes too early is captured again.
    """
    regions = list(regions)
    guards = {id(entry.guards): entry.guards for region in regions for entry in region.entries}.values()
    for region in regions:
        reach: dict[int, Reach | None] = {}
        for key, shape in list(region.shapes.items()):
            idle = [entry for entry in shape.entries if entry.replays == entry.settled_replays]
            if len(idle) == len(shape.entries) and _is_replaced(region, shape):
                _drop(region, key, shape)
                continue
            for entry in idle:
                if _is_lost(region, entry, reach) and not _is_elsewhere(entry.guards, guards):
                    shape.entries.remove(entry)
                    entry.release()
                    shape.captures = max(0, shape.captures - 1)
            if not shape.entries:
                shape.input_guard = None  # which refers to what came as arguments
        region.end_run()
        for shape in region.shapes.values():
            shape.settled_calls = shape.calls
            for entry in shape.entries:
                entry.settled_replays = entry.replays


def _is_lost(region: Region, entry: Entry, reach: dict[int, Reach | None]) -> bool:
    """True where the graph reads a tensor, or does what a function did, that the code does not reach any more."""
    guards = entry.guards
    if guards.holds():
        return False
    if id(guards) not in reach:
        try:
            reach[id(guards)] = Reach((region.root, *guards.more))
        except TooLarge:
            reach[id(guards)] = None
    found = reach[id(guards)]
    if found is None or guards.watches_others(found):
        return True
    return any(tensor.untyped_storage()._cdata not in found.sources for tensor in entry.externals.values())


def _is_elsewhere(guards: GuardSet, every: Collection[GuardSet]) -> bool:
    """True if all objects that were replaced are alive without Grape: something that holds no guards refers to them."""
    replaced = guards.replaced()
    beside = 3  # the list, the name below and the argument of `getrefcount`
    return bool(replaced) and all(
        sys.getrefcount(value) - beside > sum(one.references(value) for one in every) for value in replaced
    )


def _is_replaced(region: Region, shape: Specialization) -> bool:
    """True where calls come with other modules, optimizers or functions in the place of those of this shape."""
    if shape.calls > shape.settled_calls or not shape.holds_objects:
        return False
    return not shape.entries or any(
        other.calls > other.settled_calls and other.sizes == shape.sizes and other.paths == shape.paths
        for other in region.shapes.values()
        if other is not shape
    )


def _drop(region: Region, key: object, shape: Specialization) -> None:
    for entry in shape.entries:
        entry.release()
    shape.entries.clear()
    del region.shapes[key]
    region.forget_shape(shape)
