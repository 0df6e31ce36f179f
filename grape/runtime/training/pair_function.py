"""The node of autograd that stands for a replayed forward."""

from __future__ import annotations

import functools
from typing import Any

import torch

__all__ = ["function_named"]


class _Paired(torch.autograd.Function):
    """Takes a `PairedCall`, what autograd is to keep and check the versions of, and the leaves, one for each part of
    their gradients: so autograd adds these up with others in the order in which it does so without Grape."""

    @staticmethod
    def forward(ctx: Any, call: Any, kept: Any, *inputs: torch.Tensor) -> object:
        ctx.set_materialize_grads(False)  # what nobody used has no gradient, and what led to it gets none
        ctx.call = call
        ctx.save_for_backward(*kept)
        outputs, call.outputs = tuple(call.outputs), ()
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> object:
        kept = ctx.saved_tensors  # raises in torch's words where one was changed, or the graph was gone through
        return (None, None, *ctx.call.pair.backward(ctx.call, kept, gradients))


@functools.cache
def function_named(name: str) -> object:
    """A function whose node has this name, which torch prints with a tensor."""
    kind: Any = type(_Paired)
    made = kind(name, (_Paired,), {})
    made._backward_cls.__name__ = name
    return made
