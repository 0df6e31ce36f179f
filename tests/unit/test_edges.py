"""`grape.pad_edges`: few lengths, the same edges in front, and behind them a pair that interacts with nothing."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

import grape
from grape.errors import UsageError
from grape.runtime.edges import bucket


def line(*places: float) -> Tensor:
    """Distances of atoms on a line."""
    at = torch.tensor(places)
    return (at[:, None] - at).abs()


def listed(distances: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    i, j = ((distances < radius) & (distances > 0)).nonzero(as_tuple=True)
    return i, j


def test_lengths_go_in_eighths_of_a_power_of_two() -> None:
    assert [bucket(n) for n in (0, 1, 7, 16, 17, 31, 33, 64, 65, 1000, 1025)] == [
        *(0, 1, 7, 16, 18, 32, 36, 64, 72, 1024, 1152)
    ]
    for n in range(1, 5000):
        assert n <= bucket(n) <= n * 9 / 8 + 1 and bucket(bucket(n)) == bucket(n)


@pytest.mark.parametrize("unit", [lambda d: d, torch.square], ids=["distances", "squares"])
def test_the_edges_come_first_and_then_the_pair_that_is_farthest_apart(unit: object) -> None:
    distances = line(*map(float, range(12)))
    i, j = listed(distances, 1.5)  # 22 edges
    i, j = torch.cat([i, i[:1]]), torch.cat([j, j[:1]])
    known, radius = (distances, 1.5) if unit is not torch.square else (distances.square(), 2.25)
    padded, others = grape.pad_edges((i, j), known, radius)
    assert len(padded) == len(others) == 24
    assert padded[:23].equal(i) and others[:23].equal(j)
    assert {int(padded[-1]), int(others[-1])} == {0, 11}
    rows = grape.pad_edges(torch.stack([i, j], 1), known, radius)
    assert rows.equal(torch.stack([padded, others], 1))


def test_what_has_such_a_length_is_handed_back() -> None:
    distances = line(*map(float, range(12)))
    edges = listed(distances, 1.5)
    assert grape.pad_edges(edges, distances, 1.5) is edges
    none = listed(distances, 0.5)
    assert grape.pad_edges(none, distances, 0.5) is none


def test_nothing_is_padded_where_every_pair_interacts() -> None:
    distances = line(0.0, 0.1, 0.3, 0.4, 0.7)
    edges = tuple(side[:17] for side in listed(distances, 1.0))
    assert grape.pad_edges(edges, distances, 1.0) is edges
    assert len(grape.pad_edges(edges, distances, 0.5)[0]) == 18


@pytest.mark.parametrize("own", [float("inf"), 1e6, float("nan"), 0.0])
def test_an_atom_is_no_pair_with_itself_whatever_the_diagonal_holds(own: float) -> None:
    distances = line(*map(float, range(12)))
    edges = tuple(side[:17] for side in listed(distances, 1.5))
    i, j = grape.pad_edges(edges, distances.fill_diagonal_(own), 1.5)
    assert {int(i[-1]), int(j[-1])} == {0, 11}


@pytest.mark.parametrize("far", [float("inf"), float("nan")])
def test_a_distance_that_is_none_is_not_the_farthest(far: float) -> None:
    distances = line(*map(float, range(12)))
    edges = tuple(side[:17] for side in listed(distances, 1.5))
    distances[0, 11] = distances[11, 0] = far
    i, j = grape.pad_edges(edges, distances, 1.5)
    assert float(distances[i[-1], j[-1]]) == 10.0


def test_a_radius_on_the_device_and_distances_with_a_gradient_are_as_good() -> None:
    distances = line(*map(float, range(12))).requires_grad_()
    edges = tuple(side[:17] for side in listed(distances, 1.5))
    i, j = grape.pad_edges(edges, distances, torch.tensor(1.5))
    assert len(i) == len(j) == 18 and not i.requires_grad


LINE = line(*map(float, range(12)))
INDEX = torch.zeros(17, dtype=torch.long)


@pytest.mark.parametrize(
    ("edges", "distances", "said"),
    [
        ((INDEX, INDEX), LINE[0], "needs distances of shape [atoms, atoms], not [12]"),
        ((INDEX, INDEX), 3.0, "needs distances of shape [atoms, atoms], not a float"),
        ((INDEX, INDEX[1:]), LINE, "needs two tensors of shape [edges], not [[17], [16]]"),
        ((INDEX,), LINE, "needs two tensors of shape [edges], not [[17]]"),
        (INDEX.expand(2, 17), LINE, "needs edges of shape [edges, 2], not [2, 17]; transpose them later"),
        ((INDEX.float(), INDEX), LINE, "needs what `nonzero` gives: indices of dtype int64"),
        ([1, 2], LINE, "needs what `nonzero` gives: indices of dtype int64"),
    ],
)
def test_other_arguments_are_refused(edges: object, distances: object, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"grape.pad_edges {said}")):
        grape.pad_edges(edges, distances, 1.5)  # type: ignore[type-var, arg-type]
