"""One value out of two, chosen on the device: which pairs can be merged, and the choice with identical bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ...backends.operators import copy_each
from .active import refuse
from .flag import Flag, as_predicate

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PLAIN = (type(None), int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, slice, type(...))


class Unbound:
    """Stands for a name that has no value. There is one instance, `UNBOUND`."""

    def __repr__(self) -> str:
        return "UNBOUND"


UNBOUND = Unbound()


class Nothing:
    """Stands for a value that nobody looks at: what a function returns, where it has not returned yet."""

    def __repr__(self) -> str:
        return "NOTHING"


NOTHING = Nothing()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers, so that NaN payloads and signed zeros are copied, never computed with."""
    tensor = tensor.detach()
    if tensor.dtype == torch.complex128:
        tensor = torch.view_as_real(tensor)
    return tensor.view(_BITS[tensor.element_size()])


def _without_repeats(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with every expanded dimension (stride 0) cut to its first element."""
    for dim, (size, step) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and step == 0:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def select_bits(pred: torch.Tensor, if_true: torch.Tensor, if_false: torch.Tensor) -> torch.Tensor:
    """A new tensor with the bits of one of two tensors of the same shape, strides, dtype and device."""
    with torch.no_grad():
        if if_true.numel() == 0:
            return torch.empty_strided(if_true.shape, if_true.stride(), dtype=if_true.dtype, device=if_true.device)
        one, other = _without_repeats(if_true), _without_repeats(if_false)
        made = torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=one.device)
        torch.where(pred, _bits(one), _bits(other), out=_bits(made))
        return made.as_strided(if_true.shape, if_true.stride()) if one is not if_true else made


def copy_bits(target: torch.Tensor, source: torch.Tensor) -> None:
    """Give `target` the bits of `source`, a tensor of the same shape, strides and dtype that overlaps neither."""
    with torch.no_grad():
        if target.numel():
            _bits(target).copy_(_bits(source))


def copy_all_bits(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """`copy_bits` of pairs (target, source), in one kernel for each size of element: a copy alone is a memcpy node on
    CUDA, and in a body that takes several times as long as a kernel.
    """
    written = [(_bits(target), _bits(source)) for target, source in pairs if target.numel()]
    with torch.no_grad():
        copy_each([target for target, _ in written], [source for _, source in written])


def restore_bits(pred: torch.Tensor, written: torch.Tensor, before: torch.Tensor) -> None:
    """Give `written` its earlier contents `before` where `pred` is false; elsewhere it keeps its bits."""
    with torch.no_grad():
        if written.numel():
            torch.where(pred, _bits(written), _bits(before), out=_bits(written))


def same_plain(one: Any, other: Any) -> bool:
    """True where two values without tensors are the same value to every reader."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return one == other and math.copysign(1.0, one) == math.copysign(1.0, other)
    if isinstance(one, complex):
        return repr(one) == repr(other)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same_plain, one, other))
    return isinstance(one, _PLAIN) and bool(one == other)


def merge_values(
    pred: torch.Tensor,
    if_true: object,
    if_false: object,
    select: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> object:
    """The value of both results where `pred` decides; `select(if_true, if_false)` merges two tensors.

    Raises `CaptureFailed` for a pair that no single value can stand for: other shapes, dtypes, strides or devices,
    plain values that differ, containers that the person might change later.
    """
    return _Merge(pred, select).value(if_true, if_false)


class _Merge:
    def __init__(self, pred: torch.Tensor, select: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        self._pred = pred
        self._select = select
        self._made: dict[tuple[int, int], object] = {}

    def value(self, one: object, other: object) -> object:
        if one is other:
            return one
        if isinstance(one, Unbound) or isinstance(other, Unbound):
            # Bound in one branch only: unbound afterwards, so that a use fails and is never wrong.
            return UNBOUND
        if isinstance(one, Nothing) or isinstance(other, Nothing):
            return other if isinstance(one, Nothing) else one
        key = (id(one), id(other))
        if key not in self._made:
            self._made[key] = self._fresh(one, other)
        return self._made[key]

    def _fresh(self, one: Any, other: Any) -> object:
        if isinstance(one, (bool, Flag)) and isinstance(other, (bool, Flag)):
            return self._truth(one, other)
        if isinstance(one, (bool, Flag)) and _has_truth(other):
            return self._truth(one, Flag(as_predicate(other)))
        if isinstance(other, (bool, Flag)) and _has_truth(one):
            return self._truth(Flag(as_predicate(one)), other)
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            require_alike(one, other)
            return self._select(one, other)
        if type(one) is not type(other):
            raise refuse(f"one branch gives a {_kind(one)}, the other a {_kind(other)}")
        if isinstance(one, tuple) and not isinstance(one, torch.Size):
            return self._tuple(one, other)
        if same_plain(one, other):
            return one
        if isinstance(one, _PLAIN):
            raise refuse(f"the branches give different Python values ({one!r} and {other!r}); make them tensors")
        raise refuse(f"the branches give two {_kind(one)} objects, which cannot become one")

    def _truth(self, one: bool | Flag, other: bool | Flag) -> Flag:
        pred = self._pred
        if isinstance(one, Flag) and isinstance(other, Flag):
            return Flag(torch.where(pred, one.tensor, other.tensor))
        if isinstance(one, Flag):
            return Flag(pred.logical_not().logical_or(one.tensor) if other else pred.logical_and(one.tensor))
        if isinstance(other, Flag):
            return Flag(pred.logical_or(other.tensor) if one else pred.logical_not().logical_and(other.tensor))
        return Flag(pred if one else pred.logical_not())

    def _tuple(self, one: tuple[object, ...], other: tuple[object, ...]) -> Any:
        if len(one) != len(other):
            raise refuse(f"the branches give tuples of {len(one)} and {len(other)} values")
        merged = [self.value(a, b) for a, b in zip(one, other, strict=True)]
        kind: Any = type(one)
        if kind is tuple:
            return tuple(merged)
        if hasattr(kind, "_fields"):
            return kind(*merged)
        raise refuse(f"the branches give two {_kind(one)} objects, which cannot become one")


def _has_truth(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1


def _kind(value: object) -> str:
    return type(value).__name__


def require_alike(one: torch.Tensor, other: torch.Tensor) -> None:
    """Raise `CaptureFailed` unless one tensor can stand for the other once it has its bits."""
    if type(one) is not torch.Tensor or type(other) is not torch.Tensor:
        raise refuse(f"the branches give a {_kind(one)} and a {_kind(other)}; only plain tensors can be merged")
    for name in ("shape", "dtype", "device", "layout"):
        mine, theirs = getattr(one, name), getattr(other, name)
        if mine != theirs:
            raise refuse(f"the branches give tensors of different {name}: {_text(mine)} and {_text(theirs)}")
    if one.layout != torch.strided or one.is_quantized or one.element_size() not in (*_BITS, 16):
        raise refuse(f"the branches give {one.layout} tensors of {one.dtype}, which cannot be merged")
    if one.stride() != other.stride():
        raise refuse(f"the branches give tensors of different strides: {one.stride()} and {other.stride()}")
    if one.is_conj() or other.is_conj() or one.is_neg() or other.is_neg():
        raise refuse("the branches give tensors that are lazily conjugated or negated")
    if torch.is_grad_enabled() and (one.requires_grad or other.requires_grad):
        raise refuse("the branches give tensors that need gradients")
    if one.is_inference() != other.is_inference():
        raise refuse("only one branch gives an inference tensor")


def _text(value: object) -> str:
    return str(tuple(value)) if isinstance(value, torch.Size) else str(value)
