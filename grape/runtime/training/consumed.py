"""Results whose autograd graph was consumed by a `backward` inside the region.

Eager gives back such a result with `requires_grad` set and a graph that a second `backward` refuses to go through. A
replay makes no autograd graph at all, so its result gets one that refuses in the same words.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable
from typing import Any

import torch
from torch.autograd.function import FunctionCtx
from torch.autograd.graph import Node
from torch.utils._pytree import tree_leaves

from ..once import tried_once
from ..replaying.versions import set_versions, versions_of

_NoModes: Any = vars(torch._C)["_DisableTorchDispatch"]


def keeps_graph_back(tensor: torch.Tensor) -> bool:
    """True where `grad_fn` raises: of a view made without gradients, or one of several that an operator gave, whose
    base was changed in place since. Plain code may hold such a view, and only must not compute with it.
    """
    try:
        _ = tensor.grad_fn
    except RuntimeError:
        return True
    return False


def has_graph(tensor: torch.Tensor) -> bool:
    """True where autograd recorded how the tensor came to be, also where torch will not say how."""
    return keeps_graph_back(tensor) or tensor.grad_fn is not None


def is_consumed(tensor: torch.Tensor) -> bool:
    """True where another `backward` from this result would raise, because what its graph had saved is freed.

    A graph in which nothing was saved (a sum of parameters) can be gone through twice, and is not consumed.
    """
    if keeps_graph_back(tensor):
        return False
    pending = [tensor.grad_fn]
    seen: set[Node] = set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        kind: object = type(node)
        for name, raw in _saved_by(kind):
            try:
                if not _is_hooked(getattr(node, raw, None)):
                    with _NoModes():  # a mode would be given the `detach` that unpacks a result
                        getattr(node, name)
            except RuntimeError as error:
                if str(error) == _refusal():
                    return True
        pending += [following for following, _ in node.next_functions]
    return False


@functools.cache
def _saved_by(kind: Hashable) -> tuple[tuple[str, str], ...]:
    """Attributes of this kind of node that give a saved tensor, or raise where it is freed; with each, the one that
    gives it as it is kept.
    """
    pairs = [(name, f"_raw{name}") for name in saved_names(kind)]
    return (*pairs, ("saved_tensors", "_raw_saved_tensors")) if hasattr(kind, "saved_tensors") else tuple(pairs)


@functools.cache
def saved_names(kind: Hashable) -> tuple[str, ...]:
    """Attributes of this kind of node of torch's that give a saved tensor, or a list of them."""
    return tuple(name for name in dir(kind) if name.startswith("_saved_"))


def _is_hooked(kept: object) -> bool:
    """True where a saved tensor is there, and a hook of the person's unpacks it: activation checkpointing computes it
    anew then, which may write buffers. A hook ends with what it unpacks.
    """
    saved = kept if isinstance(kept, (tuple, list)) else (kept,)
    return any(getattr(one, "unpack_hook", None) is not None for one in saved)


@functools.cache
def _refusal() -> str:
    """The text of torch's error for a second `backward`, in this version's words."""
    try:
        _freed().backward()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("a second backward did not raise")


@tried_once
def _freed() -> torch.Tensor:
    """A tensor whose graph was consumed: a node of torch's own refuses, in its words and without a frame of Python."""
    one = torch.ones((), device="cpu", requires_grad=True)
    twice = one * one
    twice.backward()
    return twice


class _Consumed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, data: torch.Tensor, freed: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(data)  # the tensor itself is the result, not a view of it: it may be written in place
        return data

    @staticmethod
    def backward(ctx: object, *gradients: object) -> object:
        return None, torch.zeros((), device="cpu")


@functools.cache
def named(function: type[torch.autograd.Function], name: str) -> type[torch.autograd.Function]:
    """The function, with nodes of this name, which torch prints with a tensor."""
    kind: Any = type(function)
    made: type[torch.autograd.Function] = kind(name, (function,), {})
    made._backward_cls.__name__ = name
    return made


def seal(tensor: torch.Tensor, name: str | None = None) -> None:
    """Give `tensor` a consumed graph in the place of its own, whose nodes nothing keeps alive then.

    `name` is that of the graph's last node, by default of the tensor's own. A view keeps its graph, and so does what
    was told to retain its gradient: torch cannot take it away.
    """
    if has_graph(tensor):
        if tensor._is_view() or tensor.retains_grad:
            return
        name = name or type(tensor.grad_fn).__name__
        tensor.detach_()
    counted = versions_of([tensor])
    with torch.enable_grad():
        named(_Consumed, name or "").apply(tensor, _freed())
    set_versions([tensor], counted)


def sealable(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Those with a graph that can be replaced: what is done to a tensor that has views shows in the views' graphs."""
    recorded = [tensor for tensor in tensors if has_graph(tensor)]
    viewed = {tensor.untyped_storage()._cdata for tensor in recorded if tensor._is_view()}
    return [tensor for tensor in recorded if tensor.untyped_storage()._cdata not in viewed]


def seal_all(result: object) -> None:
    """Seal the tensors in `result` whose graphs are consumed: nodes of the leaves' gradients end with their graphs."""
    tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    if any(has_graph(tensor) and tensor.layout is not torch.strided for tensor in tensors):
        return
    for tensor in sealable(tensors):
        if is_consumed(tensor):
            seal(tensor)
