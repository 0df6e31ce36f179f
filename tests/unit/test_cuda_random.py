"""Graphs that draw random numbers in executables of our own: who moves the generator, and how far. No GPU."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.torch_version import TorchVersion

from grape.runtime.backends.cuda.executables.executable import CudaExecutable, Executables, TorchExecutable
from grape.runtime.backends.cuda.executables.updatable import UpdatableCudaGraph
from grape.runtime.backends.cuda.random import Drawn, RandomPrologue, advance

from .cuda_stand_in import RawGraph, StandIn, inspected, without_a_device, write_nodes

DEVICE = torch.device("cuda", 0)


def state(seed: int, offset: int) -> torch.Tensor:
    """As `torch.cuda.get_rng_state` has it."""
    return torch.tensor([seed, offset], dtype=torch.int64).view(torch.uint8)


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        ((7, 0), (7, 12), 12),
        ((7, 2**40), (7, 2**40 + 4), 4),
        ((7, 12), (7, 12), None),
        ((7, 12), (7, 4), None),
        ((7, 12), (8, 16), None),
        ((7, 0), (7, 6), None),
    ],
)
def test_how_far_the_generator_was_moved(before: tuple[int, int], after: tuple[int, int], moved: int | None) -> None:
    assert advance(state(*before), state(*after)) == moved


class ValueGuards:
    """Writes down what a `RandomPrologue` is asked for."""

    def __init__(self, log: list[str], works: bool = True) -> None:
        self.log, self.works = log, works

    def prepare(self, moves: int) -> bool:
        return self.works

    def begin(self, moves: int) -> None:
        self.log.append(f"draws {moves}")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    made = StandIn()
    with without_a_device(monkeypatch, made):
        yield made


def drawing(stand_in: StandIn, *, works: bool = True, moves: int = 8) -> tuple[UpdatableCudaGraph, Any]:
    executables = Executables(stand_in.driver, DEVICE)
    executables.random = ValueGuards(stand_in.log, works)  # type: ignore[assignment]
    raw: Any = RawGraph(stand_in, inspected())
    raw.instantiate = lambda: None
    graph = UpdatableCudaGraph(executables, raw, nodes=9, draws=True, pool="pool")
    graph._inspected, graph._looked = inspected(), True
    graph.drew((None, state(1, 4)), (None, state(1, 4 + moves)))
    return graph, executables


def test_the_generator_moves_right_before_the_launch(stand_in: StandIn) -> None:
    graph, _ = drawing(stand_in)
    assert graph.attachment == Drawn("pool", 8)
    made = graph.instantiate()
    assert isinstance(made, CudaExecutable)
    made._launch = lambda *_: stand_in.log.append("launch") or (0,)
    other, _ = drawing(stand_in, moves=12)
    del stand_in.log[:]
    made.replay()
    assert write_nodes(made, [], other.attachment)
    made.replay()
    assert stand_in.log == ["draws 8", "launch", "draws 12", "launch"]


def test_a_prologue_that_cannot_be_made_leaves_the_graph_to_torch(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("a capture that fails")

    monkeypatch.setattr(RandomPrologue, "_is_right", lambda self: True)
    monkeypatch.setattr(RandomPrologue, "_drawing", fails)
    raw: Any = RawGraph(stand_in, inspected())
    graph = UpdatableCudaGraph(Executables(stand_in.driver, DEVICE), raw, nodes=9, draws=True, pool="pool")
    graph.drew((None, state(1, 4)), (None, state(1, 12)))
    assert graph.attachment == "pool"


class Counted:
    """A generator, and graphs that move it."""

    def __init__(self) -> None:
        self.offset = 0

    def get_offset(self) -> int:
        return self.offset

    def moving(self, moves: int) -> SimpleNamespace:
        return SimpleNamespace(replay=lambda: setattr(self, "offset", self.offset + moves))


@pytest.mark.parametrize(
    ("version", "factor", "works"),
    [
        ("2.11.0+cu130", 1, True),
        ("2.11.0+cu130", 2, False),
        ("2.12.0", 1, False),
        ("2.13.0", 1, False),
        ("2.14.0.dev1", 1, False),
    ],
)
def test_where_each_capture_may_have_its_own_seed_or_torch_counts_otherwise_torch_launches(
    monkeypatch: pytest.MonkeyPatch, version: str, factor: int, works: bool
) -> None:
    generator = Counted()
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    monkeypatch.setattr(torch, "Generator", lambda device: generator)
    monkeypatch.setattr(RandomPrologue, "_drawing", lambda _, moves, __: generator.moving(factor * moves))
    assert RandomPrologue(StandIn().driver, DEVICE).prepare(4) is works


@pytest.mark.parametrize(("works", "moves"), [(False, 8), (True, 0), (True, 6)])
def test_what_nobody_knows_how_to_move_is_left_to_torch(stand_in: StandIn, works: bool, moves: int) -> None:
    graph, _ = drawing(stand_in, works=works, moves=moves)
    assert graph.attachment == "pool" and isinstance(graph.instantiate(), TorchExecutable)
