"""Whether branches of a graph make it faster: measured against the same graph as one chain."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

import torch

from .....model.overlap import Overlapped, OverlapPlan
from ..driver import Driver
from ..executables.instantiate import Instantiation

ROUNDS, LAUNCHES = 3, 3
"""Of each order, one after the other."""
AT_LEAST = 1.03
"""A graph keeps its branches where they were so much faster."""


def compare_orders(driver: Driver, instantiation: Instantiation, graph: object, plan: OverlapPlan) -> Overlapped:
    """Launch the graph with its branches and, as a copy, as a chain, on the current stream.

    Launches must be without harm: the graph writes nothing but memory of its own and results. Not inside a capture.
    Raises `DriverError`, torch.OutOfMemoryError.
    """
    chained = driver.call("cuGraphClone", graph)
    handles: list[Any] = []
    try:
        chain(driver, chained)
        handles.extend(instantiation.of(one) for one in (graph, chained))
        branched_ms, chained_ms = _compare(driver, handles)
    finally:
        for handle in handles:
            driver.succeeds("cuGraphExecDestroy", handle)
        driver.succeeds("cuGraphDestroy", chained)
    applied = branched_ms * AT_LEAST <= chained_ms
    return Overlapped(
        operators=plan.operators,
        chain=plan.chain,
        lanes=plan.lanes,
        chained_ms=chained_ms,
        branched_ms=branched_ms,
        applied=applied,
    )


def chain(driver: Driver, graph: object) -> None:
    """Have each node of a graph wait for one other: an order in which the graph could have been captured."""
    _, count = driver.call("cuGraphGetNodes", graph, 0)
    nodes = driver.call("cuGraphGetNodes", graph, count)[0][:count] if count else []
    edges = _edges(driver, graph)
    order = _ordered([int(node) for node in nodes], edges)
    handle = {int(node): node for node in nodes}
    missing = [pair for pair in itertools.pairwise(order) if pair not in edges]
    if missing:
        sources, targets = ([handle[pair[side]] for pair in missing] for side in (0, 1))
        driver.call("cuGraphAddDependencies", graph, sources, targets, None, len(missing))


def _edges(driver: Driver, graph: object) -> set[tuple[int, int]]:
    *_, count = driver.call("cuGraphGetEdges", graph, 0)
    if not count:
        return set()
    sources, targets, *_ = driver.call("cuGraphGetEdges", graph, count)
    return {(int(one), int(other)) for one, other in zip(sources[:count], targets[:count], strict=True)}


def _ordered(nodes: list[int], edges: set[tuple[int, int]]) -> list[int]:
    """Each behind those that it waits for, else as the driver lists them: in the order of their making."""
    place = {node: index for index, node in enumerate(nodes)}
    waits = dict.fromkeys(nodes, 0)
    after: dict[int, list[int]] = {node: [] for node in nodes}
    for source, target in edges:
        waits[target] += 1
        after[source].append(target)
    ready = sorted((node for node in nodes if not waits[node]), key=place.__getitem__, reverse=True)
    order = []
    while ready:
        node = ready.pop()
        order.append(node)
        for target in after[node]:
            waits[target] -= 1
            if not waits[target]:
                ready.append(target)
        ready.sort(key=place.__getitem__, reverse=True)
    return order


def _compare(driver: Driver, handles: list[Any]) -> list[float]:
    launch, stream = driver.function("cuGraphLaunch"), torch.cuda.current_stream()
    times: list[list[float]] = [[] for _ in handles]
    for number in range(1 + ROUNDS):
        for handle, taken in zip(handles, times, strict=True):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            launch(handle, stream.cuda_stream)  # the host is ahead of what is timed
            begin.record(stream)
            for _ in range(LAUNCHES):
                launch(handle, stream.cuda_stream)
            end.record(stream)
            end.synchronize()
            if number:
                taken.append(begin.elapsed_time(end) / LAUNCHES)
    return [statistics.median(taken) for taken in times]
