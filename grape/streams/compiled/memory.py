"""Copies of what compiled code reads and leaves, and whether they are the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def extent(one: torch.Tensor) -> int:
    """Bytes from its first element to its last."""
    if not one.numel():
        return 0
    steps = zip(one.size(), one.stride(), strict=True)
    return one.element_size() * (1 + sum((size - 1) * stride for size, stride in steps))


def copied(one: torch.Tensor, begins: int = 0) -> torch.Tensor:
    """Its elements in other memory, as far apart, so many bytes behind an address that all of CUDA is content with.
    Raises RuntimeError where there is no memory, or where elements lie in one place.
    """
    before, rest = divmod(begins, one.element_size())
    if rest:
        raise RuntimeError("a tensor that begins between two of its elements")
    if not before:
        copy = torch.empty_strided(one.size(), one.stride(), dtype=one.dtype, device=one.device)
    else:
        room = before + extent(one) // one.element_size()
        memory = torch.empty(room, dtype=one.dtype, device=one.device)
        copy = memory.as_strided(one.size(), one.stride(), before)
    return copy.copy_(one)


def load(into: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    for to, value in zip(into, values, strict=True):
        to.copy_(value)


def unnoticed(written: Sequence[torch.Tensor]) -> AbstractContextManager[None]:
    """Inside, autograd does not see that these are written."""
    counted = tuple(one for one in written if not one.is_inference())
    autograd: Any = torch.autograd
    found: AbstractContextManager[None] = autograd._unsafe_preserve_version_counter(counted)
    return found if counted else nullcontext()


def copied_together(some: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Of tensors in one memory: others that lie in a copy of that as these do."""
    memory = _memory(some[0]).clone().untyped_storage()
    return [
        torch.empty(0, dtype=one.dtype, device=one.device).set_(memory, one.storage_offset(), one.size(), one.stride())
        for one in some
    ]


def lying(some: Iterable[Any]) -> dict[int, list[int]]:
    """The numbers of the tensors, by the address of the memory that they lie in."""
    found: dict[int, list[int]] = {}
    for number, one in enumerate(some):
        if isinstance(one, torch.Tensor):
            found.setdefault(one.untyped_storage().data_ptr(), []).append(number)
    return found


def spoil(results: Iterable[Any]) -> None:
    """Turn all bits of their memory around."""
    tensors = [one for one in results if isinstance(one, torch.Tensor)]
    for first, *_ in lying(tensors).values():
        _memory(tensors[first]).bitwise_not_()


def _memory(one: torch.Tensor) -> torch.Tensor:
    """All that it lies in, as bytes."""
    return torch.empty(0, dtype=torch.uint8, device=one.device).set_(one.untyped_storage())


def alike(expected: Sequence[Any], found: Sequence[Any]) -> bool:
    """True where both have the same bits in the same places."""
    return len(expected) == len(found) and all(
        _same_bits(one, other)
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
        else type(one) is type(other) and one == other
        for one, other in zip(expected, found, strict=True)
    )


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if (one.size(), one.stride(), one.dtype) != (other.size(), other.stride(), other.dtype):
        return False
    left, right = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other))
    return torch.equal(left, right)
