"""torch's compiled check of many tensors at once, which its compiler uses for its own guards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["AVAILABLE", "compiled_check"]

_guards: Any = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "TensorGuards", None)
AVAILABLE = _guards is not None
"""False in a version of torch without them."""


def compiled_check(tensors: Sequence[torch.Tensor]) -> Callable[..., bool] | None:
    """A function of as many tensors that says whether all are as these are now; None where torch has no such thing.

    Compared are type, dispatch keys (which depend on modes, and on whether a tensor was made in inference mode), dtype,
    device, shape, stride and requires_grad; not the memory. No tensor may stand there twice.
    """
    if not AVAILABLE or not tensors:
        return None
    check: Callable[..., bool] = _guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return check
