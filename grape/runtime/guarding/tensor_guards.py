"""Checks of many tensors at once: torch's compiled one, which its compiler uses for its own guards, and those of
Grape's extension, where that is there.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter

import torch
from torch._C._dynamo.guards import TensorGuards

from ... import native
from ..state import Check, never
from .structure import names_of_dimensions

_guards: Callable[..., TensorGuards] = TensorGuards  # the stubs of torch lack the tensors that it takes
_PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Of these alone the extension knows that nothing of Python's answers for them."""
_dtype = attrgetter("dtype")
_needs_grad = attrgetter("requires_grad")


def compiled_check(tensors: Sequence[torch.Tensor]) -> Callable[..., bool] | None:
    """A function of as many tensors that says whether all are as these are now; None where there are none.

    Compared are type, dispatch keys (which depend on modes, and on whether a tensor was made in inference mode), dtype,
    device, shape, stride and requires_grad; not the memory. No tensor may stand there twice.
    """
    if not tensors:
        return None
    check: Callable[..., bool] = _guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return check


class Places:
    """Where tensors lie now, and as what: address, class, shape, stride, dtype, names of dimensions, whether they are
    read conjugated or negated, and whether they need a gradient, which code may ask under `no_grad` as well.
    """

    __slots__ = ("_compiled", "_lie", "_pictured", "_tensors", "_then")

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        self._pictured = _checked_picture(tensors)  # first: what is written meanwhile is a write
        self._then = self._now()
        self._lie = _checked_addresses(tensors, self._then[0])
        self._compiled = compiled_check(tensors)

    def _now(self) -> tuple[list[int], *tuple[object, ...]]:
        tensors = self._tensors
        kind = torch.Tensor
        places = [*map(kind.data_ptr, tensors)], [*map(kind.size, tensors)], [*map(kind.stride, tensors)]
        bits = [*map(kind.is_conj, tensors)], [*map(kind.is_neg, tensors)]
        flags = torch.is_grad_enabled(), [*map(_needs_grad, tensors)]
        return *places, [*map(_dtype, tensors)], names_of_dimensions(tensors), *bits, [*map(type, tensors)], flags

    @property
    def form(self) -> tuple[object, ...]:
        """All but the addresses."""
        return self._then[1:]

    def lie_there(self) -> bool:
        """True where every tensor lies where it did."""
        return self._lie() or [*map(torch.Tensor.data_ptr, self._tensors)] == self._then[0]

    def same(self, *, in_memory: bool) -> bool:
        """True where all is as it was. `in_memory`: they lie there, that was just asked."""
        if self._pictured():
            return True
        compiled = self._compiled  # it may say no under other modes than those in which it was made
        if compiled is not None and (in_memory or self.lie_there()) and compiled(*self._tensors):
            return True
        return self.same_in_python()

    def same_in_python(self) -> bool:
        """As `same`, which the compiled checks only hasten."""
        return self._now() == self._then


def _comparable(tensors: Sequence[torch.Tensor]) -> bool:
    return all(type(tensor) in _PLAIN for tensor in tensors)


def _checked_picture(tensors: Sequence[torch.Tensor]) -> Check:
    """These very tensors are as they are now: what `compiled_check` compares, and their addresses, under the same mode
    of gradients.
    """
    extension = native.built()
    if extension is None or not _comparable(tensors):
        return never
    picture = extension.picture(tuple(tensors))
    return partial(extension.is_pictured, tuple(tensors), picture) if picture else never


def _checked_addresses(tensors: Sequence[torch.Tensor], addresses: Sequence[int]) -> Check:
    extension = native.built()
    if extension is None or not _comparable(tensors):
        return never
    return partial(extension.lie_at, tuple(tensors), array("Q", addresses).tobytes())


def checked_gradients(leaves: Sequence[torch.Tensor], present: Sequence[bool]) -> Check:
    """Those of the leaves that are `present` have gradients, and no others."""
    extension = native.built()
    if extension is None or not _comparable(leaves):
        return never
    return partial(extension.are_graded, tuple(leaves), bytes(present))
