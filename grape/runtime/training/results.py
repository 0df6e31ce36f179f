"""Whether a region's results need no autograd graph of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...model import Refused
from .consumed import is_consumed

__all__ = ["graph_that_leaves"]


def graph_that_leaves(results: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor]) -> Refused | None:
    """Why a call that recorded autograd graphs cannot be replayed: a later `backward` may go through one of them.

    `results` are the tensors in the result and, after the call, in the arguments; `arguments` those that came in.
    """
    given = {id(tensor) for tensor in arguments}
    if any(tensor.grad_fn is not None and id(tensor) not in given and not is_consumed(tensor) for tensor in results):
        return Refused(code="GR405", why="its results need gradients")
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return Refused(code="GR405", why="autocast is entered outside of what calls backward; enter it inside")
    if any(tensor.requires_grad for tensor in arguments):
        return Refused(code="GR405", why="an argument requires a gradient")
    return None
