"""Memory in which graphs leave the gradients of a leaf tensor, at an address that stays.

A gradient that a graph makes is copied to its *home* at the end of the graph, and `.grad` becomes a tensor over that
memory; a graph that accumulates reads and writes it there. All graphs of all shapes share one home of a leaf, so the
gradient that one call leaves is where the next call's graph looks for it.
"""

from __future__ import annotations

import weakref
from sys import getrefcount
from typing import Any
from weakref import getweakrefcount

import torch

from ..once import tried_once

_use_count = torch._C._storage_Use_Count
_tensor_use_count: Any = getattr(torch.Tensor, "_use_count", None)
SUPPORTED = _tensor_use_count is not None
"""False in a version of torch that does not tell how often a tensor is referred to."""


class Home:
    """`tensor` is what `.grad` is set to, `base` another tensor over the same memory, which is never handed out."""

    __slots__ = ("__weakref__", "_counts", "_object", "address", "base", "cdata", "tensor")

    def __init__(self, like: torch.Tensor) -> None:
        with torch.inference_mode(False), torch.no_grad():
            self.base = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
            self.tensor = self.base.data
        self._object: object = self.base.untyped_storage()
        self.address = self.base.data_ptr()
        self.cdata: int = self._object._cdata
        self._counts = _use_count(self.cdata), getrefcount(self._object), getrefcount(self.tensor)

    def fits(self, gradient: torch.Tensor) -> bool:
        """True where a gradient of this layout can live here, an ordinary one that nobody differentiates."""
        base = self.base
        return (
            not gradient.requires_grad
            and type(gradient) is torch.Tensor
            and gradient.dtype == base.dtype
            and gradient.device == base.device
            and gradient.shape == base.shape
            and gradient.stride() == base.stride()
            and not (gradient.is_conj() or gradient.is_neg() or gradient.is_inference())
        )

    def occupied(self, *, by_its_leaf: bool) -> bool:
        """True where anybody refers to the gradient here, but for the leaf's `.grad`, where that is this one."""
        uses, objects, references = self._counts
        if by_its_leaf:
            references += _held_by_grad()
        return bool(
            _use_count(self.cdata) > uses
            or getrefcount(self._object) > objects
            or getrefcount(self.tensor) > references
            or _tensor_use_count(self.tensor) > 1 + by_its_leaf
        )

    def renew(self) -> torch.Tensor:
        """The tensor to hand out; a new one, where somebody has changed more of the last one than its contents.

        Whoever has a weak reference to the last one must see it end.
        """
        tensor = self.tensor
        odd = tensor.data_ptr() != self.address or tensor.requires_grad or tensor.__dict__ or getweakrefcount(tensor)
        if odd or tensor.shape != self.base.shape or tensor.stride() != self.base.stride():
            self.tensor = self.alias()
        return self.tensor

    def alias(self) -> torch.Tensor:
        """A further tensor over this memory. Whoever keeps it occupies the home."""
        with torch.inference_mode(False), torch.no_grad():
            return self.base.data

    def take_in(self, gradient: torch.Tensor) -> None:
        """Have `gradient`, whose contents were copied here and whose memory nobody else uses, live here from now on."""
        gradient.data = self.base.data
        self.tensor = gradient


_homes: dict[int, list[weakref.ref[Home]]] = {}
"""The homes of each leaf tensor, by its identity: they die with the graphs that use them, which keep the leaf alive.

Nothing refers to the leaf, weakly either: `torch.utils.swap_tensors` would refuse it.
"""


def _known(leaf: torch.Tensor) -> list[Home]:
    return [home for reference in _homes.get(id(leaf), ()) if (home := reference()) is not None]


def _settle(leaf: torch.Tensor, home: Home) -> None:
    key = id(leaf)

    def forget(reference: weakref.ref[Home]) -> None:
        _homes[key].remove(reference)
        if not _homes[key]:
            del _homes[key]

    _homes.setdefault(key, []).append(weakref.ref(home, forget))


def home_of(leaf: torch.Tensor) -> Home | None:
    """The home that the leaf's gradient lives in; None where it lives elsewhere, or where there is none."""
    return next((home for home in _known(leaf) if leaf.grad is home.tensor), None)


def vacant_home(leaf: torch.Tensor, like: torch.Tensor) -> Home:
    """A home for a gradient laid out `like` this one, which nobody else uses. Raises torch.OutOfMemoryError."""
    for home in _known(leaf):
        if home.fits(like) and not home.occupied(by_its_leaf=leaf.grad is home.tensor):
            return home
    made = Home(like)
    _settle(leaf, made)
    return made


def alone(tensor: torch.Tensor) -> bool:
    """True where this `.grad` of one leaf is the only tensor that refers to its memory, which can be replaced then.

    A second leaf or a consumer of DLPack refers to the tensor itself, as its Python object and the leaf do.
    """
    if not SUPPORTED or _tensor_use_count(tensor) > 2:
        return False
    return all(mine <= least for mine, least in zip(_uses(tensor), _uses_alone(), strict=True))


def overlaps(tensor: torch.Tensor) -> bool:
    """True where elements may share memory (an expanded tensor): nothing can be copied there."""
    return bool(torch._debug_has_internal_overlap(tensor))


def _uses(tensor: torch.Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return _use_count(storage._cdata), getrefcount(storage)


@tried_once
def _uses_alone() -> tuple[int, int]:
    return _uses(torch.empty(1, device="cpu"))


@tried_once
def _held_by_grad() -> int:
    """How many references to a tensor's Python object it is worth to be some leaf's `.grad`."""
    with torch.inference_mode(False):
        leaf = torch.zeros(1, device="cpu", requires_grad=True)
        gradient = torch.zeros(1, device="cpu")
    before = getrefcount(gradient)
    leaf.grad = gradient
    return getrefcount(gradient) - before
