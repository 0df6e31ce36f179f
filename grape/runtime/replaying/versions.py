"""Version counters: how often a tensor was written in place, as autograd and Python see it.

Grape writes the person's memory where eager code would, in other ways: a replay counts nothing, a copy counts where
eager code did not (a batch norm writes its statistics uncounted), a second run counts twice. So how far an eager call
moved the counters is noted, and they are set.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch


def versions_of(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Of each tensor; inference tensors count nothing, and have 0."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def set_versions(tensors: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
    """Views of one tensor have one counter."""
    pairs = [pair for pair in zip(tensors, versions, strict=True) if not pair[0].is_inference()]
    if pairs:
        found, numbers = tuple([tensor for tensor, _ in pairs]), tuple([version for _, version in pairs])
        torch._C._autograd._unsafe_set_version_counter(found, numbers)


@dataclass(frozen=True, slots=True)
class Growth:
    """How far a call moves the counters of tensors from outside (`tensors`), and of arguments, by their number."""

    tensors: Sequence[torch.Tensor]
    by: Sequence[int]
    arguments: Sequence[tuple[int, int]]

    @property
    def any(self) -> bool:
        return bool(self.tensors or self.arguments)

    def due(self, leaves: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[int]]:
        """The tensors and what their counters have to be after a call with these arguments, which is still to write."""
        found = [*self.tensors, *(leaves[index] for index, _ in self.arguments)]
        by = [*self.by, *(grown for _, grown in self.arguments)]
        return found, [now + grown for now, grown in zip(versions_of(found), by, strict=True)]


class VersionWatch:
    """Of one call: the counters of `outside` and of its `arguments` before it, after it (`note`), and again (`restore`)
    when Grape's own runs of the same code are over."""

    def __init__(self, outside: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor]) -> None:
        self._tensors, self._outside = [*outside, *arguments], len(outside)
        self._before = self._after = versions_of(self._tensors)

    def note(self) -> None:
        """The eager run is over."""
        self._after = versions_of(self._tensors)

    def restore(self) -> None:
        set_versions(self._tensors, self._after)

    def growth(self, written: Collection[int]) -> Growth:
        """`written` are the arguments that a replay writes, whether or not that counts."""
        grown = [after - before for before, after in zip(self._before, self._after, strict=True)]
        pairs = zip(self._tensors, grown[: self._outside], strict=False)
        outside = [(tensor, by) for tensor, by in pairs if by]
        return Growth(
            tuple(tensor for tensor, _ in outside),
            tuple(by for _, by in outside),
            tuple((index, by) for index, by in enumerate(grown[self._outside :]) if by or index in written),
        )
