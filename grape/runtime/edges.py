"""Neighbour lists of few lengths: what `grape.pad_edges` returns.

Molecular dynamics pads neighbour lists to a capacity, so that one compiled step serves all of them (Schoenholz and
Cubuk, "JAX MD", NeurIPS 2020; Pelaez et al., "TorchMD-Net 2.0", 2024). There masked edges point at an atom that is not
there, which the model has to know of. Here they are a pair of atoms that are there, and farther apart than any that
interact: a model whose interactions end at a cutoff adds exactly 0 for it.
"""

from __future__ import annotations

from typing import TypeVar

import torch

from ..errors import UsageError

Edges = TypeVar("Edges", torch.Tensor, tuple[torch.Tensor, ...])

_STEPS = 8
"""Lengths between a power of two and the next: at most one edge in nine is padding."""


def bucket(length: int) -> int:
    """The smallest of the lengths 1, 2, ..., 16, 18, 20, ..., 32, 36, ..., 64, 72, ... that is at least `length`."""
    step = max(1, (1 << max(length - 1, 0).bit_length() >> 1) // _STEPS)
    return -(-length // step) * step


def pad_edges(edges: Edges, distances: torch.Tensor, cutoff: float | torch.Tensor) -> Edges:
    """`edges` made as long as a few lengths are, so that calls with them share graphs.

    `edges` is what ``(distances < cutoff).nonzero(as_tuple=True)`` or ``(distances < cutoff).nonzero()`` gave: two
    tensors [edges], or one [edges, 2]. `distances` is [atoms, atoms], in any unit that grows with distance (squares,
    too), `cutoff` in the same; the diagonal is not looked at. The edges keep their order. Behind them stands, as often
    as it takes, the pair of atoms that is farthest apart. A model whose interactions end at `cutoff`, or before,
    multiplies what that pair adds by exactly 0; any other model gives another result. Lengths go in eighths of a power
    of two.

    `edges` itself comes back where its length is one of these, or where no pair is farther apart than `cutoff`. The CPU
    waits for that, as it did for `nonzero`. Like the list itself, padding holds until atoms have moved so far that a
    pair which is not in the list has come within the cutoff of the model.

    Raises `UsageError` where shapes or dtypes are others.
    """
    length = _length(edges, distances)
    more = bucket(length) - length
    if not more:
        return edges
    atoms = len(distances)
    known = distances.detach().masked_fill(torch.eye(atoms, dtype=torch.bool, device=distances.device), -1)
    known = torch.where(known.isfinite(), known, -1).flatten()
    farthest = known.argmax()
    if not bool(known[farthest] > cutoff):
        return edges
    pair = torch.stack([farthest // atoms, farthest % atoms])
    if isinstance(edges, torch.Tensor):
        return torch.cat([edges, pair.expand(more, 2)])
    return tuple(torch.cat([side, atom.expand(more)]) for side, atom in zip(edges, pair, strict=True))


def _length(edges: object, distances: object) -> int:
    """How many edges there are."""
    if not isinstance(distances, torch.Tensor) or distances.ndim != 2 or len(set(distances.shape)) != 1:
        shown = list(distances.shape) if isinstance(distances, torch.Tensor) else f"a {type(distances).__name__}"
        raise UsageError(f"grape.pad_edges needs distances of shape [atoms, atoms], not {shown}")
    sides = edges if isinstance(edges, tuple) else (edges,)
    shapes = [list(side.shape) for side in sides if isinstance(side, torch.Tensor) and side.dtype == torch.long]
    if not shapes or len(shapes) < len(sides):
        raise UsageError("grape.pad_edges needs what `nonzero` gives: indices of dtype int64")
    alike = len(shapes) == 2 and len(shapes[0]) == 1 and shapes[0] == shapes[1]
    if isinstance(edges, tuple) and not alike:
        raise UsageError(f"grape.pad_edges needs two tensors of shape [edges], not {shapes}")
    if not isinstance(edges, tuple) and shapes[0][1:] != [2]:
        raise UsageError(f"grape.pad_edges needs edges of shape [edges, 2], not {shapes[0]}; transpose them later")
    return shapes[0][0]
