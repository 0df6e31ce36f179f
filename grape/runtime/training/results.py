"""True where a region's results need no autograd graph of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ...model import Position, Reason, Refused
from ...quiet import without_warnings
from ...tracing import RecordedCall
from .consumed import has_graph, is_consumed


def need_gradients(more: str = "", at: Position | None = None) -> Refused:
    """The refusal that calls without gradients do not share. `more` goes on in the sentence."""
    return Refused.because(Reason.NEEDS_GRADIENTS, at, more=more)


def leaves_a_graph(results: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor]) -> bool:
    """True where a later `backward` may go through what a call recorded; see `graph_that_leaves`."""
    given = {id(tensor) for tensor in arguments}
    return any(id(tensor) not in given and has_graph(tensor) and not is_consumed(tensor) for tensor in results)


def with_graphs_of_results(
    call: RecordedCall, results: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor]
) -> RecordedCall:
    """The call with `needs_grad` set where it left an autograd graph that no operator showed.

    Operators inside of an `autograd.Function` (reentrant checkpointing is one) run without gradients.
    """
    if call.trace.needs_grad or not leaves_a_graph(results, arguments):
        return call
    return replace(call, trace=replace(call.trace, needs_grad=True))


def no_pair(device: torch.device, escapes: Sequence[str]) -> Refused | None:
    """Why a call that leaves an autograd graph cannot be replayed as a pair; see `pair`. None where it may be.

    `escapes` name what was done to tensors behind the dispatcher's back.
    """
    if "backward" in escapes:
        return need_gradients(", and it calls backward itself")
    if "register_hook" in escapes:
        return need_gradients(", and it puts hooks on tensors")
    if torch.is_autocast_enabled(device.type) and torch.is_autocast_cache_enabled():
        shared = "autocast, entered outside of it, shares its casts"
        return need_gradients(f", and {shared}; enter it inside, or with cache_enabled=False")
    return None


def graph_that_leaves(results: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor]) -> Refused | None:
    """Why a call that recorded autograd graphs cannot be replayed: a later `backward` may go through one of them.

    `results` are the tensors in the result and, after the call, in the arguments; `arguments` those that came in.
    """
    if leaves_a_graph(results, arguments):
        return need_gradients()
    if any(_has_gradient(tensor) for tensor in results):
        return Refused.because(Reason.OWN_GRADIENT)
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return Refused.because(Reason.AUTOCAST)
    if any(tensor.requires_grad for tensor in arguments):
        return Refused.because(Reason.ARGUMENT_GRADIENT)
    return None


def gets_gradient(results: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor]) -> Refused | None:
    """Why a call that puts a `.grad` on what it returns cannot be replayed: its results would have none."""
    given = {id(tensor) for tensor in arguments}
    with without_warnings():  # torch warns where a tensor that autograd recorded has none
        for tensor in results:
            if id(tensor) not in given and not isinstance(tensor, torch.nn.Parameter) and tensor.grad is not None:
                return Refused.because(Reason.OWN_GRADIENT)
    return None


def _has_gradient(tensor: torch.Tensor) -> bool:
    """True where a tensor that is no parameter has a `.grad`, or will get one."""
    if not tensor.is_leaf:
        return tensor.retains_grad
    return not tensor.requires_grad and tensor.grad is not None
