"""Molecular dynamics on a GPU: a model of energies and forces is replayed, whatever its neighbour lists do."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import torch._dynamo  # optimizers import it, and it wraps functions of torch for good
from IPython.core.interactiveshell import InteractiveShell

import grape
from grape.magics import load, unload
from grape.options import ENGINE, REFERENCE
from grape.sessions import close_engine
from tests.processes import ROOT
from tests.property.stream_programs import needs_compiler

pytestmark = [needs_compiler, pytest.mark.filterwarnings("ignore")]

STEPS = 200
TOLERANCE = 1e-4
"""Of the largest energy, position and force: a product of matrices of another height may round otherwise, and so does
what follows from it in the steps behind."""


@pytest.fixture(scope="module")
def cells() -> Iterator[ModuleType]:
    """The cells of `benchmarks/simulation.py`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("_simulation_cells")


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    monkeypatch.delenv(REFERENCE, raising=False)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    close_engine()
    torch.use_deterministic_algorithms(True)  # sums over neighbours are atomic else, and plain runs differ, too
    shell = InteractiveShell.instance()
    load(shell)
    yield shell
    unload(shell)
    torch.use_deterministic_algorithms(False)
    close_engine()


def begin(shell: InteractiveShell, cells: ModuleType, form: str) -> str:
    """Make the molecule of 22 atoms and its model; the cell of the steps."""
    sizes = {"device": "cuda", "steps": STEPS, **cells.MOLECULES["22"]}
    run(shell, "\n".join(f"{name} = {value!r}" for name, value in sizes.items()))
    run(shell, cells.FORMS[form].define)
    use: str = cells.FORMS[form].use
    return use


def run(shell: InteractiveShell, source: str) -> None:
    shell.run_cell(source).raise_error()


def found(shell: InteractiveShell) -> tuple[list[float], list[torch.Tensor]]:
    return list(shell.user_ns["energies"]), [one.clone() for one in shell.user_ns["result"]]


def under_grape(shell: InteractiveShell, source: str) -> dict[str, Any]:
    run(shell, f"%%grape --no-widget\n{source}")
    assert grape.last is not None
    return grape.last.to_dict()


@pytest.mark.parametrize("engine", ["streams", "regions"])
@pytest.mark.parametrize("form", ["dense", "list", "padded"])
def test_every_run_leaves_the_bits_of_the_plain_one(
    shell: InteractiveShell, cells: ModuleType, monkeypatch: pytest.MonkeyPatch, form: str, engine: str
) -> None:
    monkeypatch.setenv(ENGINE, engine)
    cell = begin(shell, cells, form)
    run(shell, cell)
    energies, tensors = found(shell)
    for _ in range(4):
        report = under_grape(shell, cell)
        again, others = found(shell)
        assert again == energies and all(one.equal(other) for one, other in zip(tensors, others, strict=True))
    share = 0.0 if form == "list" else 0.5  # of a list that varies, what pays is another matter
    if engine == "streams":
        (stream,) = report["streams"]
        assert stream["matched"] > share * stream["operators"], stream
    else:
        assert sum(region["replays"] for region in report["regions"]) > share * STEPS, report["regions"]


def test_a_padded_list_stays_within_the_tolerance(shell: InteractiveShell, cells: ModuleType) -> None:
    run(shell, begin(shell, cells, "list"))
    energies, tensors = found(shell)
    length = len(shell.user_ns["i"])
    run(shell, cells.FORMS["padded"].use)
    padded, others = found(shell)
    assert length <= len(shell.user_ns["i"]) <= length * 9 / 8
    largest = max(map(abs, energies))
    assert max(abs(a - b) for a, b in zip(energies, padded, strict=True)) <= TOLERANCE * largest
    for one, other in zip(tensors, others, strict=True):
        assert float((one - other).abs().max()) <= TOLERANCE * float(one.abs().max())


def test_lists_are_padded_to_few_lengths(cells: ModuleType) -> None:
    positions = torch.rand(50, 3, device="cuda") * 4
    distances = (positions[:, None] - positions).norm(dim=-1)
    lengths, found = set(), set()
    for radius in torch.linspace(1.5, 2.5, 40).tolist():
        edges = ((distances < radius) & (distances > 0)).nonzero(as_tuple=True)
        i, j = grape.pad_edges(edges, distances, radius)
        lengths.add(len(edges[0]))
        found.add(len(i))
        assert i[: len(edges[0])].equal(edges[0]) and j[: len(edges[1])].equal(edges[1])
        assert bool((distances[i[len(edges[0]) :], j[len(edges[1]) :]] == distances.max()).all())
    assert len(found) < len(lengths) / 2
