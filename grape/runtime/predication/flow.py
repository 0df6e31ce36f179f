"""Functions that rewritten code calls. `rewrite.control_flow` writes these calls; docs/control-flow.md explains them.

Each function does exactly what Python does as long as the condition is a plain value or nothing is captured, and
asks the active lowering otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial

import torch

from .early_stop import run_ahead, while_ahead
from .functions import as_state, cond, needed_lowering
from .lowering.active import as_loop, inside_body, refuse
from .lowering.flag import Flag, as_predicate
from .lowering.lowering import Check, State
from .lowering.merge import NOTHING, UNBOUND
from .lowering.truth import is_tensor_predicate, negate, truth
from .places import Attribute, Item, Place, contained, put, stateful

__all__ = [
    "NOTHING",
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
    "lost",
    "maybe",
    "memory",
    "names",
    "negate",
    "repeat",
]

attribute = Attribute
item = Item
_REPEATABLE: tuple[type, ...] = (
    *(range, list, tuple, dict, type({}.keys()), type({}.values()), type({}.items())),
    *(torch.Tensor, torch.nn.ModuleList, torch.nn.ParameterList, torch.nn.Sequential),
)


def maybe(read: Callable[[], object]) -> object:
    """The value of the name that `read` reads, or `UNBOUND`."""
    try:
        return read()
    except NameError:
        return UNBOUND


def branch(
    condition: object,
    true_fn: Callable[..., object],
    false_fn: Callable[..., object],
    operands: tuple[object, ...] = (),
    places: tuple[Place, ...] = (),
) -> object:
    """`if condition:`, as a function of the names that the branches assign.

    `places` are the attributes and items that a branch assigns.
    """
    if not is_tensor_predicate(condition):
        return (true_fn if truth(condition) else false_fn)(*operands)
    result, values = needed_lowering().cond(
        as_predicate(condition), contained(true_fn, operands, places), contained(false_fn, operands, places)
    )
    for place, value in zip(places, values, strict=True):
        place.set(value)
    return result


def loop(
    cond_fn: Callable[..., object],
    body_fn: Callable[..., object],
    carried: State,
    live: tuple[bool, ...],
    places: tuple[Place, ...] = (),
) -> object:
    """`while cond:`, as a function of the names that the body assigns; one name is passed bare, several as a tuple.

    `live` names are read after the loop. `places` are the attributes, items and global names that the body assigns.
    """
    count = len(carried)

    def body(*state: object) -> State:
        return as_state(body_fn(*state), count)

    initial = carried
    iterated = False
    while True:
        test = cond_fn(*carried)
        if is_tensor_predicate(test):
            on_test, on_body, state = stateful(cond_fn, body, carried, places)
            every = (*live, *(True for _ in places))
            carried = put(places, needed_lowering().while_loop(on_test, on_body, state, test=test, live=every))
            break
        if not truth(test):
            break
        if iterated and not places and isinstance(test, torch.Tensor):
            ran = while_ahead(cond_fn, body_fn, carried, initial)
            if ran is not None:
                carried = ran
                break
        with as_loop():
            carried = body(*carried)
        iterated = True
    return carried[0] if count == 1 else carried


def repeat(
    items: Iterable[object],
    body_fn: Callable[..., object],
    carried: State,
    live: tuple[bool, ...],
    stop: int,
    places: tuple[Place, ...] = (),
) -> object:
    """`for _ in items:` with a body that does not look at the item, as a function of the names that it assigns.

    The loop is left before an iteration where `carried[stop]` is true. The rest is as in `loop`.
    """
    count = len(carried)

    def body(*state: object) -> State:
        return as_state(body_fn(*state), count)

    initial = carried
    for done, _ in enumerate(items):
        if is_tensor_predicate(carried[stop]):
            if not isinstance(items, range):
                raise refuse(f"a loop over a {type(items).__name__} ends early")
            _, on_body, state = stateful(lambda *_: True, body, carried, places)
            every = (*live, *(True for _ in places))
            left = len(items) - done
            carried = put(places, needed_lowering().repeat(left, on_body, state, stop=stop, live=every))
            break
        if truth(carried[stop]):
            break
        if done == 1 and not places and isinstance(items, range):
            ran = run_ahead(len(items) - done, body_fn, carried, stop, initial)
            if ran is not None:
                carried = ran
                break
        with as_loop():
            carried = body(*carried)
    return carried[0] if count == 1 else carried


def both(first: object, second: Callable[[], object]) -> object:
    """`first and second()`."""
    if not is_tensor_predicate(first):
        return second() if truth(first) else first
    return cond(first, lambda: _truth(second()), lambda: False)


def either(first: object, second: Callable[[], object]) -> object:
    """`first or second()`."""
    if not is_tensor_predicate(first):
        return first if truth(first) else second()
    return cond(first, lambda: True, lambda: _truth(second()))


def _truth(value: object) -> bool | Flag:
    if is_tensor_predicate(value):
        return value if isinstance(value, Flag) else Flag(as_predicate(value))
    if isinstance(value, (bool, int, float)):
        return bool(value)
    raise refuse(f"a {type(value).__name__} beside a condition that is only known on the device", "GR102")


def check(condition: object, text: str | None = None) -> object:
    """The condition of an `assert`. In a capture it is remembered, and counts as true."""
    if not is_tensor_predicate(condition):
        return truth(condition)
    frame = sys._getframe(1)
    with torch.no_grad():
        failed = torch.logical_not(as_predicate(condition))
    needed_lowering().check(Check(failed=failed, file=frame.f_code.co_filename, line=frame.f_lineno, text=text))
    return True


def ended(stopped: bool | Flag, *items: Iterable[object]) -> bool:
    """True where a `for` loop over `items` is left now. One that the device may have left goes on, nullified."""
    if not isinstance(stopped, Flag):
        return stopped
    for each in items:
        if type(each) not in _REPEATABLE:
            raise refuse(
                f"a loop over a {type(each).__name__}, whose items cannot be taken without effects, ends early"
            )
    return False


def lost(stopped: bool | Flag) -> bool:
    """True where the last item of a `for` loop is not known, because the device decided where the loop ended."""
    return isinstance(stopped, Flag)


def memory(owner: object) -> object:
    """`owner`, one of whose items is assigned. In a body on the device it must be a tensor."""
    if inside_body() and not isinstance(owner, torch.Tensor):
        raise refuse(f"a branch assigns an item of a {type(owner).__name__}", "GR404")
    return owner


def names(namespace: dict[str, object], *listed: str) -> tuple[Place, ...]:
    """The places of global names; `namespace` is the caller's `globals()`."""
    return tuple(Item(lambda: namespace, partial(str, name)) for name in listed)
