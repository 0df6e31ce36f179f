"""Graphs that are given back are gone: no object, no memory of the tape, no module is left over (R1, R10, R11)."""

from __future__ import annotations

import collections
import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good
from torch import nn

import grape
from grape.runtime import GraphedFunction
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.replaying.entry import Entry
from grape.sessions import engine
from tests.unit.sabotage import warm

CYCLES = 60
CALLS = 16
"""In a session: enough to observe, to capture and to replay."""
SETTLED = 20
"""After so many cycles everything that is made once has been made."""


pytestmark = pytest.mark.usefixtures("without_gradients")


class Net(nn.Module):
    """Writes a buffer and returns several results, one of them a view, so that every kind of memory is used."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = torch.relu(self.linear(x)) * 0.5 + state
        self.total += y.sum(0)
        return y, y[:1], torch.cat([state, y])[-3:]


def loop(call: Callable[..., Any], calls: int) -> None:
    state = torch.zeros(3, 4)
    for _ in range(calls):
        _, _, state = call(torch.randn(3, 4), state)


def alive() -> collections.Counter[str]:
    """How many objects of Grape's classes, tensors and storages there are, by class."""
    gc.collect()
    kinds = collections.Counter[str]()
    for thing in gc.get_objects():
        kind = type(thing)
        if str(kind.__module__).startswith("grape.") or kind in (torch.Tensor, nn.Parameter, Net):
            kinds[f"{kind.__module__}.{kind.__qualname__}"] += 1
    return kinds


def entries() -> list[Entry]:
    gc.collect()
    return [thing for thing in gc.get_objects() if type(thing) is Entry]


def made_since(earlier: list[Entry]) -> list[Entry]:
    """What lives now and did not then; who holds `earlier` keeps their identities from being used again."""
    return [entry for entry in entries() if not any(entry is one for one in earlier)]


def grown(before: collections.Counter[str], after: collections.Counter[str]) -> dict[str, int]:
    return {kind: count - before[kind] for kind, count in after.items() if count > before[kind]}


def check(cycle: Callable[[], int]) -> None:
    """Run the cycles; neither objects nor `cycle`'s bytes may grow after the first few."""
    sizes, counts = [], collections.Counter[str]()
    for number in range(CYCLES):
        sizes.append(cycle())
        if number == SETTLED:
            counts = alive()
    assert not grown(counts, alive())
    assert max(sizes[SETTLED:]) <= max(sizes[:SETTLED]), sizes


def test_regions_that_share_a_pool_and_are_released() -> None:
    """One backend, as in a session: the pool is kept for the next capture, and does not grow."""
    backend, net = ReferenceBackend(), Net()

    def cycle() -> int:
        graphed = GraphedFunction(net, backend=backend, tolerance=0.0)
        warm(graphed, lambda: loop(graphed, 4))
        region = graphed._region
        assert region is not None
        region.release()
        return backend.memory().pool_bytes

    check(cycle)
    assert not list(backend._graphs), "a graph outlived its region"
    backend.close()


def test_a_wrapped_function_that_is_released_and_used_again() -> None:
    net = Net()
    graphed = grape.graph(net, device="cpu")

    def cycle() -> int:
        warm(graphed, lambda: loop(graphed, 4))
        region = graphed._region
        assert region is not None
        backend = region.context.backend
        graphed.release()
        return backend.memory().pool_bytes

    check(cycle)


def test_sessions_that_are_undone(closed_engine: None) -> None:
    """The module stays; each session captures, `undo` gives back, `reset` forgets."""
    net = Net()

    def cycle() -> int:
        with grape.session() as session:
            loop(net, CALLS)
        report = session.report
        assert report is not None and any(region.replays for region in report.regions), report.verdict
        assert engine().undo().startswith("undone: Net")
        loop(net, 1)
        held = engine().context.backend.memory().pool_bytes
        engine().reset()
        return int(held)

    check(cycle)


def test_undo_alone_frees_the_graphs(closed_engine: None) -> None:
    """Without `reset`: what a graph reads and writes dies with `undo`."""
    others = entries()
    net = Net()
    with grape.session():
        loop(net, CALLS)
    backend = engine().context.backend
    graphs = weakref.WeakSet(getattr(backend, "_graphs"))  # noqa: B009  the protocol does not offer them
    assert len(graphs) and made_since(others)
    engine().undo()
    assert not made_since(others) and not len(graphs)


def test_a_deleted_function_of_grape_graph_is_collected() -> None:
    def cell() -> tuple[weakref.ref[Any], weakref.ref[Any]]:
        net = Net()
        graphed = grape.graph(net, device="cpu")
        warm(graphed, lambda: loop(graphed, 4))
        return weakref.ref(net), weakref.ref(graphed)

    held, of = cell()
    gc.collect()
    assert of() is None and held() is None


@pytest.mark.parametrize("ending", ["released", "deleted"])
def test_results_outlive_the_graph_that_made_them(ending: str) -> None:
    """What the caller holds stays as it was when the graphed function is gone, and is freed when the caller lets go."""

    def cell() -> list[torch.Tensor]:
        graphed = GraphedFunction(Net(), backend=ReferenceBackend(poison=True), tolerance=0.0)
        warm(graphed, partial(loop, graphed, 4))
        results = [graphed(torch.randn(3, 4), torch.zeros(3, 4))[0] for _ in range(5)]
        copies.extend(result.clone() for result in results)
        if ending == "released":
            graphed.release()
        return results

    copies: list[torch.Tensor] = []
    results = cell()
    gc.collect()
    # Memory that was given back would be taken by one of these.
    others = [torch.full((size,), float("nan")) for size in range(1, 600)]
    assert [result.equal(copy) for result, copy in zip(results, copies, strict=True)] == [True] * 5
    held = [weakref.ref(result) for result in results]
    del results, others
    gc.collect()
    assert not any(result() is not None for result in held)


def test_a_module_that_was_a_region_and_is_deleted_is_collected(closed_engine: None) -> None:
    """A notebook that makes a new model in the same cell again must not keep the old ones."""

    def cell() -> weakref.ref[nn.Module]:
        net = Net()
        with grape.session() as session:
            loop(net, CALLS)
        report = session.report
        assert report is not None and any(region.replays for region in report.regions), report.verdict
        return weakref.ref(net)

    held = cell()
    with grape.session():  # the next cell: what the last one's namespace held is forgotten
        torch.ones(1)
    gc.collect()
    assert held() is None
