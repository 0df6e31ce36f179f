"""How far results lie apart, in words that are true of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_SHAPES = "results of other shapes"
_NOT_FINITE = "infinite or NaN elsewhere"
LOST = (_SHAPES, _NOT_FINITE)
"""Said of results that are wrong."""


def same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Equal in number, shape, type and value; what is not a number is equal to itself."""
    return len(some) == len(others) and all(
        (one.shape, one.dtype) == (other.shape, other.dtype) and _distance(one, other) == 0
        for one, other in zip(some, others, strict=True)
    )


def apart(expected: Sequence[Tensor], found: Sequence[Tensor]) -> tuple[float | None, str]:
    """The largest difference, each over the largest finite absolute value of its tensor, and what to say of it."""
    if [one.shape for one in expected] != [one.shape for one in found]:
        return None, _SHAPES
    distances = [_distance(one, other) for one, other in zip(expected, found, strict=True)]
    if not distances:
        return None, "no results to compare"
    if any(one is None for one in distances):
        return None, _NOT_FINITE
    most = max(one for one in distances if one is not None)
    return most, f"differs by {most:.1e}" if most else "same bits"


def _distance(expected: Tensor, found: Tensor) -> float | None:
    """None where they are not finite at the same places."""
    one, other = _numbers(expected), _numbers(found)
    if not one.numel():
        return 0.0
    for test in (torch.isnan, torch.isposinf, torch.isneginf):
        if not torch.equal(test(one), test(other)):
            return None
    finite = one.isfinite()
    if not finite.any():
        return 0.0
    one, other = one[finite], other[finite]
    scale = one.abs().max().item() or 1.0
    return (one - other).abs().max().item() / scale


def _numbers(tensor: Tensor) -> Tensor:
    dense = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    if dense.is_quantized:
        dense = dense.dequantize()
    return (torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense).double()
