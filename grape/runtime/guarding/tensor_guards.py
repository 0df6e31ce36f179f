"""torch's compiled check of many tensors at once, which its compiler uses for its own guards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch._C._dynamo.guards import TensorGuards

_guards: Callable[..., TensorGuards] = TensorGuards  # the stubs of torch lack the tensors that it takes


def compiled_check(tensors: Sequence[torch.Tensor]) -> Callable[..., bool] | None:
    """A function of as many tensors that says whether all are as these are now; None where there are none.

    Compared are type, dispatch keys (which depend on modes, and on whether a tensor was made in inference mode), dtype,
    device, shape, stride and requires_grad; not the memory. No tensor may stand there twice.
    """
    if not tensors:
        return None
    check: Callable[..., bool] = _guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return check
