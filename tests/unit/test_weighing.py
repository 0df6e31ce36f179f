"""Graphs that are not faster than eager calls go, also those of regions that a cell calls seldom."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from grape.options import Options
from grape.runtime.accounts.samples import CallTimes
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.regions.region import Region
from grape.runtime.regions.replays import FEWEST
from grape.sessions import Cell, Session

pytestmark = pytest.mark.usefixtures("closed_engine")


class _Told:
    def __init__(self, ms: float) -> None:
        self._ms = ms

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def elapsed_ms(self) -> float:
        return self._ms


def _times(ms: float, count: int) -> CallTimes:
    times = CallTimes()
    for number in range(count):
        times.add(_Told(ms * (1 + number / 100)))
    return times


@pytest.fixture
def replayed() -> Iterator[tuple[Session, Region]]:
    """A module's region with a graph, in a session that is open."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).requires_grad_(False)
    session = Session(options=Options(), cell=Cell(name="c", source="", filename="c"), namespace={"model": model})
    session.open()
    for _ in range(14):
        model(torch.ones(2, 4))
    engine = session._engine
    assert engine is not None
    region = next(region for region in engine.interceptor.regions if region.entries)
    yield session, region
    session.abandon()


@pytest.mark.parametrize(
    ("before", "after", "count", "dropped"),
    [
        (1.0, 2.0, FEWEST, True),
        (1.0, 2.0, FEWEST - 1, False),
        (2.0, 1.0, FEWEST, False),
        (1.0, 1.0, FEWEST, False),
    ],
    ids=["slower", "too few replays", "faster", "no clear difference"],
)
def test_a_graph_that_is_slower_goes_when_the_cell_is_over(
    before: float,
    after: float,
    count: int,
    dropped: bool,
    replayed: tuple[Session, Region],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, region = replayed
    for shape in region.shapes.values():
        if shape.entries:
            shape.before, shape.after = _times(before, 6), _times(after, count)
    assert session._engine is not None
    with monkeypatch.context() as patched:
        patched.setattr(ReferenceBackend, "kind", "cuda")
        session._engine.compare_times()
    assert (region.refused is not None) is dropped and bool(region.entries) is not dropped
    if dropped:
        assert region.refused is not None and region.refused.code == "GR406"
        assert region.captures.decisions[-1].action == "drop"


def test_the_tape_is_never_faster_and_keeps_its_graphs(replayed: tuple[Session, Region]) -> None:
    session, region = replayed
    for shape in region.shapes.values():
        shape.before, shape.after = _times(1.0, 6), _times(2.0, 20)
    assert session._engine is not None
    session._engine.compare_times()
    assert region.refused is None and region.entries
