"""`cond` and `while_loop`, with the signatures of torch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from ...errors import UsageError
from .lowering.active import as_loop, refuse
from .lowering.flag import Flag, as_predicate
from .lowering.lowering import Lowering, active_lowering
from .lowering.truth import is_tensor_predicate, truth

T = TypeVar("T")


def needed_lowering() -> Lowering:
    """The lowering that decides a condition which is only known on the device."""
    lowering = active_lowering()
    if lowering is None:
        raise refuse("a truth value that is only known on the device is used after the capture", "GR102")
    return lowering


def cond(
    pred: bool | int | float | torch.Tensor | Flag,
    true_fn: Callable[..., T],
    false_fn: Callable[..., T],
    operands: Sequence[object] = (),
) -> T:
    """`true_fn(*operands)` if `pred` is true, else `false_fn(*operands)`. The signature is that of `torch.cond`.

    A Python value, and outside of a capture a tensor too, takes ordinary control flow: one of the two is called, and
    may do anything. In a capture a tensor with one element is decided on the device at each replay; then both must
    give results of the same structure, shapes and dtypes, and may write in place.
    """
    if not is_tensor_predicate(pred):
        return (true_fn if truth(pred) else false_fn)(*operands)
    merged: T = needed_lowering().cond(as_predicate(pred), lambda: true_fn(*operands), lambda: false_fn(*operands))
    return merged


def as_state(result: Any, count: int) -> tuple[object, ...]:
    """The next state out of what a rewritten body returns: one name bare, several as a tuple."""
    return () if count == 0 else (result,) if count == 1 else tuple(result)


def while_loop(
    cond_fn: Callable[..., object], body_fn: Callable[..., object], carried_inputs: Sequence[object]
) -> tuple[Any, ...]:
    """The carried values once `cond_fn(*carried)` is false. The signature is that of `torch.while_loop`.

    `body_fn(*carried)` returns the next carried values, as a tuple of the same length. In a capture, a condition that
    is a tensor with one element makes the whole loop run on the device; iterations before the first such condition
    are ordinary ones.
    Raises `UsageError` where `body_fn` returns something else.
    """
    carried = tuple(carried_inputs)

    def body(*state: object) -> tuple[object, ...]:
        result = body_fn(*state)
        if not isinstance(result, (tuple, list)) or len(result) != len(carried):
            raise UsageError(f"the body of while_loop must return a tuple of the {len(carried)} carried values")
        return tuple(result)

    while True:
        test = cond_fn(*carried)
        if is_tensor_predicate(test):
            return needed_lowering().while_loop(cond_fn, body, carried, test=test, live=(True,) * len(carried))
        if not truth(test):
            return carried
        with as_loop():
            carried = body(*carried)
