"""Random numbers that a region draws on the CPU although it works on a device, and that nothing uses.

transformers' Wav2Vec2 draws one per layer in evaluation too, for LayerDrop, and does not look at it. The device's work
does not depend on such numbers, but the CPU's generator moves on; so each replay draws them again, with the same
operators in the same order, and leaves the generator as the eager call would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ...model import HOST_RANDOM, OpRecord, Reason, Refused, TensorView
from ...model.call import Args
from ...tracing import RecordedCall
from .value_guards import thaw

aten = torch.ops.aten
_OVERWRITING = frozenset(
    {
        aten.uniform_.default,
        aten.normal_.default,
        aten.random_.default,
        aten.random_.to,
        getattr(aten.random_, "from"),
        aten.bernoulli_.float,
        aten.exponential_.default,
        aten.geometric_.default,
        aten.cauchy_.default,
        aten.log_normal_.default,
    }
)
"""These fill a tensor without looking at it: how far the generator moves depends on its layout alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One operator that draws. `target` is the layout of the tensor that it fills; None where it makes its result."""

    function: Any
    args: Args
    kwargs: Mapping[str, object]
    target: TensorView | None

    def repeat(self) -> None:
        if self.target is None:
            self.function(*self.args, **self.kwargs)
            return
        shape, stride, dtype = self.target.shape, self.target.stride, getattr(torch, self.target.dtype)
        self.function(torch.empty_strided(shape, stride, dtype=dtype, device="cpu"), *self.args, **self.kwargs)


@dataclass(frozen=True, slots=True)
class HostDraws:
    """Random numbers that one call draws on the CPU, in order."""

    draws: tuple[Draw, ...] = ()

    def repeat(self) -> None:
        """Move the CPU's generator as the eager call does: from its state, by the same draws."""
        for draw in self.draws:
            draw.repeat()

    @contextmanager
    def alone(self) -> Iterator[Callable[[], bool]]:
        """Around a run of the region's code: the function tells, right behind it, whether the generator moved so.

        It runs from another state than the eager call did, so that setting the very seed that the person has just set
        is noticed too. Afterwards the generator is as before.
        """
        before = torch.get_rng_state()
        torch.rand((), device="cpu")
        mark = torch.get_rng_state()

        def as_drawn() -> bool:
            found = torch.get_rng_state()
            torch.set_rng_state(mark)
            self.repeat()
            return torch.equal(found, torch.get_rng_state())

        try:
            yield as_drawn
        finally:
            torch.set_rng_state(before)


def host_draws(call: RecordedCall) -> HostDraws | Refused:
    """The draws of a traced call that is over, or why they cannot be repeated: something used or kept a number.

    Used is a number that any other operator takes, reading it included; kept, one whose memory still lives.
    """
    drawing = [op for op in call.trace.ops if op.kind == HOST_RANDOM]
    if not drawing:
        return HostDraws()
    drawn = {number for op in drawing for number in (*op.born, *op.written)}
    for op in call.trace.ops:
        if op.kind != HOST_RANDOM and any(view.storage in drawn for view in op.tensors()):
            return _refusal(
                next(one for one in drawing if drawn.intersection((*one.born, *one.written))), " and uses them"
            )
    draws = []
    for op in drawing:
        draw = _draw(op, call.functions[op.ordinal])
        if draw is None:
            return _refusal(op, " in a way that depends on more than the generator")
        if any(number not in call.born or not call.storages[number].expired() for number in (*op.born, *op.written)):
            return _refusal(op, " and keeps them")
        draws.append(draw)
    return HostDraws(tuple(draws))


def _refusal(op: OpRecord, how: str) -> Refused:
    return Refused.because(Reason.HOST_DRAWS, op.user or op.inner, how=how)


def _draw(op: OpRecord, function: object) -> Draw | None:
    """None where its effect on the generator could depend on contents, or another generator draws."""
    args, kwargs = op.args, {name: _plain(thaw(value)) for name, value in op.kwargs}
    target = None
    if function in _OVERWRITING and isinstance(args[0], TensorView) and op.written == (args[0].storage,):
        target, args = args[0], args[1:]
    values = [_plain(thaw(value)) for value in args]
    if any(isinstance(value, (TensorView, torch.Generator)) for value in tree_leaves((values, kwargs))):
        return None
    return Draw(function=function, args=tuple(values), kwargs=kwargs, target=target)


def _plain(value: object) -> object:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
