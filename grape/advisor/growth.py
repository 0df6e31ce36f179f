"""Which arguments of a region grow by a constant from call to call."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..model import ShapeCount

_LEAST_SHAPES = 3
_STEADY = 0.75
"""Share of the steps that must be the same. A cache starts with a prompt of its own length, and starts again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """One argument whose dimension `dim` grows by `step` every `calls` calls, from `first` to `last`."""

    argument: str
    dim: int
    step: int
    calls: int
    first: int
    last: int
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def rate_text(self) -> str:
        return f"{self.step} at each call" if self.calls == 1 else f"{self.step} every {self.calls} calls"

    def continued_by(self, shape: tuple[int, ...]) -> bool:
        """True for a shape of this series, or for the next one after it."""
        same = len(shape) == len(self.shape) and all(
            a == b for i, (a, b) in enumerate(zip(shape, self.shape, strict=True)) if i != self.dim
        )
        if not same:
            return False
        size = shape[self.dim]
        return self.first <= size <= self.last + self.step and (size - self.first) % self.step == 0


def growing(shapes: Sequence[ShapeCount]) -> tuple[Growth, ...]:
    """The arguments of a region that grow steadily, in the order in which they are passed."""
    series: dict[str, list[tuple[int, tuple[int, ...]]]] = {}
    for count in sorted(shapes, key=lambda c: c.order):
        for name, shape in count.shapes:
            series.setdefault(name, []).append((count.order, shape))
    return tuple(g for name, seen in series.items() if (g := steady_growth(name, seen)) is not None)


def steady_growth(argument: str, seen: Sequence[tuple[int, tuple[int, ...]]]) -> Growth | None:
    """The growth of one argument, from (ordinal of the call, shape) pairs; None where it does not grow steadily.

    At least three shapes are needed, and three quarters of the steps between neighbours must be the same.
    """
    steps = [_step(a, b) for a, b in pairwise(seen)]
    counted = Counter(step for step in steps if step is not None)
    if not counted:
        return None
    (dim, size, calls), often = counted.most_common(1)[0]
    if often < _LEAST_SHAPES - 1 or often < _STEADY * len(steps):
        return None
    touched = [
        shape
        for pair, step in zip(pairwise(seen), steps, strict=True)
        if step == (dim, size, calls)
        for _, shape in pair
    ]
    sizes = [shape[dim] for shape in touched]
    return Growth(
        argument=argument, dim=dim, step=size, calls=calls, first=min(sizes), last=max(sizes), shape=touched[-1]
    )


def _step(a: tuple[int, tuple[int, ...]], b: tuple[int, tuple[int, ...]]) -> tuple[int, int, int] | None:
    """(dimension, growth, calls between) where exactly one dimension grew, else None."""
    (before, old), (after, new) = a, b
    if len(old) != len(new):
        return None
    changed = [dim for dim in range(len(old)) if old[dim] != new[dim]]
    if len(changed) != 1 or new[changed[0]] < old[changed[0]]:
        return None
    return changed[0], new[changed[0]] - old[changed[0]], max(1, after - before)
