"""Compares what Python can see of a result beside its contents: that of a replay is as that of the eager call, or
refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ..buffers.strided import Strided, strided


@dataclass(frozen=True, slots=True)
class Look:
    """Of one tensor. `version` is None where torch keeps none, `base` the tensor that it is a view of, `node` the name
    of its node of autograd."""

    tensor: torch.Tensor
    kind: type
    layout: Strided
    resizable: bool
    requires_grad: bool
    is_leaf: bool
    node: str | None
    inference: bool
    version: int | None
    names: tuple[str | None, ...] | None
    base: torch.Tensor | None


def look_of(tensor: torch.Tensor) -> Look:
    """Take it before anything is done to the tensor."""
    inference = tensor.is_inference()
    return Look(
        tensor=tensor,
        kind=type(tensor),
        layout=strided(tensor),
        resizable=tensor.untyped_storage().resizable(),
        requires_grad=tensor.requires_grad,
        is_leaf=tensor.is_leaf,
        node=type(tensor.grad_fn).__name__ if tensor.grad_fn is not None else None,
        inference=inference,
        version=None if inference else tensor._version,
        names=getattr(tensor, "names", None),
        base=tensor._base,
    )


@dataclass(frozen=True, slots=True)
class Form:
    """How an output is to be made: its version, the bytes of its storage, and `base`, the layout of what it is a view
    of, with a number that is the same for all views of that. `itself` is the output's own number."""

    version: int | None = 0
    nbytes: int = 0
    itself: int = -1
    base: tuple[int, Strided] | None = None


def forms_of(looks: Sequence[Look]) -> list[Form]:
    """The forms of outputs that look like this. What autograd has recorded is made as no view: its node is another."""
    numbers: dict[int, int] = {}

    def number(tensor: torch.Tensor) -> int:
        return numbers.setdefault(id(tensor), len(numbers))

    def form(look: Look) -> Form:
        base = look.base if look.node is None else None
        known = (number(base), strided(base)) if base is not None else None
        return Form(version=look.version, nbytes=look.layout[-1], itself=number(look.tensor), base=known)

    return list(map(form, looks))


def kinship(tensor: torch.Tensor, root: torch.Tensor) -> str:
    """How `tensor`, which shares the memory of `root`, is had from it: "view", "detached" or "data"; see `alias_of`."""
    if tensor._is_view() or tensor.is_inference() or root.is_inference():
        return "view"
    before = tensor._version, root._version
    torch._C._autograd._unsafe_set_version_counter((tensor,), (before[0] + 1,))
    shares = root._version != before[1]
    torch._C._autograd._unsafe_set_version_counter((tensor, root), before)
    return "detached" if shares else "data"


def alias_of(root: torch.Tensor, how: str, shape: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
    """A tensor over the memory of `root`: a view of it, or none that counts changes with it, or none at all."""
    made = root.as_strided(shape, stride, offset)
    if how == "view":
        return made
    return made.detach() if how == "detached" else made.data


def first_difference(
    eager: Sequence[Look], replayed: Sequence[torch.Tensor], made: Mapping[int, object]
) -> tuple[int, str] | None:
    """The first result of which Python sees something else than of the eager one: its number, and what that is.

    `made` are the numbers of those that the graph makes: versions of others are those of what they are parts of.
    """
    bases: dict[int, int] = {}
    for look, tensor in zip(eager, replayed, strict=True):
        bases[id(look.tensor)] = id(tensor)
    for index, (look, tensor) in enumerate(zip(eager, replayed, strict=True)):
        if look.tensor is tensor:
            continue
        other = look_of(tensor)
        for name in ("kind", "layout", "resizable", "requires_grad", "is_leaf", "inference", "names"):
            if getattr(look, name) != getattr(other, name):
                return index, "memory" if name == "layout" else name
        if index in made and look.version != other.version:
            return index, "version"
        if (look.node is None) != (other.node is None):
            return index, "node"
        if look.node is None and not _same_base(look.base, other.base, bases):
            return index, "base"
    return None


def _same_base(one: torch.Tensor | None, other: torch.Tensor | None, known: dict[int, int]) -> bool:
    if one is None or other is None:
        return one is other
    if one is other:
        return True
    return known.setdefault(id(one), id(other)) == id(other) and strided(one) == strided(other)
