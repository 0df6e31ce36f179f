"""What rewritten code calls. `rewrite.control_flow` writes these calls; docs/control-flow.md explains them.

Each function does exactly what Python does as long as the condition is a plain value or nothing is captured, and
asks the active lowering otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from .functions import cond, iterate, lowering_for
from .lowering import Check, refuse
from .merge import UNBOUND
from .places import Attribute, Item, Place, contained
from .truth import Flag, as_predicate, is_tensor_predicate, negate

__all__ = [
    "UNBOUND",
    "attribute",
    "both",
    "branch",
    "check",
    "either",
    "ended",
    "is_tensor_predicate",
    "item",
    "loop",
    "maybe",
    "negate",
]

attribute = Attribute
item = Item
_REPEATABLE = (range, list, tuple, torch.Tensor)


def maybe(read: Callable[[], Any]) -> Any:
    """The value of the name that `read` reads, or `UNBOUND`."""
    try:
        return read()
    except NameError:
        return UNBOUND


def branch(
    condition: Any,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    operands: tuple[Any, ...] = (),
    places: tuple[Place, ...] = (),
) -> Any:
    """`if condition:`, as a function of the names that the branches assign.

    `places` are the attributes and items that a branch assigns.
    """
    lowering = lowering_for(condition)
    if lowering is None:
        return (true_fn if condition else false_fn)(*operands)
    result, values = lowering.cond(
        as_predicate(condition), contained(true_fn, operands, places), contained(false_fn, operands, places)
    )
    for place, value in zip(places, values, strict=True):
        place.set(value)
    return result


def loop(
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    carried: tuple[Any, ...],
    live: tuple[bool, ...],
) -> Any:
    """`while cond:`, as a function of the names that the body assigns; one name is passed bare, several as a tuple."""
    if len(carried) == 1:
        return iterate(cond_fn, lambda value: (body_fn(value),), carried, live=live)[0]
    return iterate(cond_fn, body_fn, carried, live=live)


def both(first: Any, second: Callable[[], Any]) -> Any:
    """`first and second()`."""
    if lowering_for(first) is None:
        return first and second()
    return cond(first, lambda: _truth(second()), lambda: False)


def either(first: Any, second: Callable[[], Any]) -> Any:
    """`first or second()`."""
    if lowering_for(first) is None:
        return first or second()
    return cond(first, lambda: True, lambda: _truth(second()))


def _truth(value: Any) -> bool | Flag:
    if is_tensor_predicate(value):
        return value if isinstance(value, Flag) else Flag(as_predicate(value))
    if isinstance(value, (bool, int, float)):
        return bool(value)
    raise refuse(f"a {type(value).__name__} beside a condition that is only known on the device", "GR102")


def check(condition: Any, line: int, text: str | None = None) -> Any:
    """The condition of an `assert`. In a capture it is remembered, and counts as true."""
    lowering = lowering_for(condition)
    if lowering is None:
        return condition
    failed = negate(condition)
    lowering.check(Check(failed=failed.tensor, line=line, text=text))
    return True


def ended(stopped: bool | Flag, items: Iterable[Any]) -> bool:
    """Whether a `for` loop over `items` is left now. One that the device may have left goes on, nullified."""
    if not isinstance(stopped, Flag):
        return stopped
    if type(items) not in _REPEATABLE:
        raise refuse(
            f"a loop over a {type(items).__name__} that data may leave early: taking further items has effects"
        )
    return False
