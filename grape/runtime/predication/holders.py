"""Who else holds a tensor that a loop carries.

An iteration on the device hands on memory of its own where a plain one may hand on the very tensor that it was given.
Nobody can tell where nobody but the loop holds that tensor: it is no other name's, no view of it is alive, and nothing
in C++ refers to it.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import getrefcount
from weakref import getweakrefcount

import torch

_use_count = torch._C._storage_Use_Count
_tensor_uses: Callable[[torch.Tensor], int] | None = getattr(torch.Tensor, "_use_count", None)


def storage_of(tensor: torch.Tensor) -> int:
    """The identity of its memory, asked for so that no function mode takes it for the person's question."""
    with torch._C.DisableTorchFunction():
        return int(tensor.untyped_storage()._cdata)


def _references(values: tuple[object, ...], position: int) -> int:
    return getrefcount(values[position])


def _memory_uses(tensor: torch.Tensor) -> tuple[int, int]:
    """How often its memory is referred to, and how often the Python object that stands for its memory."""
    with torch._C.DisableTorchFunction():
        storage = tensor.untyped_storage()
    return int(_use_count(storage._cdata)), getrefcount(storage)


# Of a tensor that only a tuple holds. Versions of Python and of torch count their own differently.
_REFERENCES = _references((torch.empty(1),), 0)
_MEMORY_USES = _memory_uses(torch.empty(1))


class Holders:
    """Of one run of a loop. `initial` is its state before it, which the names of the loop hold until it is over.

    `others` are further tuples of the loop's state that are alive during the run.
    """

    def __init__(self, initial: tuple[object, ...], others: tuple[tuple[object, ...], ...]) -> None:
        self._initial = initial
        self._tuples = {id(one): one for one in (initial, *others)}
        self._mine: list[object] = []

    def replayed(self, before: tuple[object, ...], after: tuple[object, ...]) -> None:
        """A replay gave `after`: what it did not hand on as it was is known to nobody else."""
        mine = self._mine or [None] * len(after)
        self._mine = [new if new is not old else known for new, old, known in zip(after, before, mine, strict=True)]

    def ran(self, after: tuple[object, ...]) -> None:
        """An iteration in ordinary Python gave `after`."""
        if self._mine:
            self._mine = [known if new is known else None for new, known in zip(after, self._mine, strict=True)]

    def alone(self, state: tuple[object, ...], position: int) -> bool:
        """True where only the loop holds `state[position]`, and its state nowhere else."""
        if self._mine and state[position] is self._mine[position]:
            return True
        expected = _REFERENCES + sum(one is state[position] for one in self._initial)  # of the names themselves
        for known in self._tuples.values():
            if known is not state:
                expected += sum(one is state[position] for one in known)
        found = _references(state, position)
        value = state[position]
        return (
            type(value) is torch.Tensor
            and found == expected
            and _tensor_uses is not None
            and _tensor_uses(value) == 1
            and _memory_uses(value) == _MEMORY_USES
            and getweakrefcount(value) == 0
        )
