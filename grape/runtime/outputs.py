"""The results of a replay.

A graph writes its results into the pool that all graphs share, and the next replay of any graph may write there again.
So results never leave in place: each replay copies them, in one launch, into memory of their own (invariant R4 in
OWNERSHIP.md). What a caller holds is an ordinary tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .backends.protocol import Backend
from .placeholders import distinct, extent

__all__ = ["Outputs"]


class Outputs:
    """All outputs of one graph. `made` are the tensors of the capture, in order.

    Outputs that share a storage leave as views of one copy. `nbytes` is what each replay copies.
    """

    def __init__(self, backend: Backend, made: Sequence[torch.Tensor]) -> None:
        self._backend = backend
        self._made = list(made)
        groups: dict[int, list[int]] = {}
        for index, tensor in enumerate(self._made):
            groups.setdefault(tensor.untyped_storage()._cdata, []).append(index)
        self._groups = list(groups.values())
        self._sources = [self._source(members) for members in self._groups]
        self.nbytes = sum(source.nbytes for source, _ in self._sources)

    def _source(self, members: Sequence[int]) -> tuple[torch.Tensor, int]:
        """What to copy for these members, and the offset at which it starts: a lone member as it is, else a span."""
        tensors = [self._made[i] for i in members]
        base = min(int(tensor.storage_offset()) for tensor in tensors)
        if len(tensors) == 1:
            return distinct(tensors[0]), base
        end = max(int(tensor.storage_offset()) + extent(tensor) for tensor in tensors)
        return tensors[0].as_strided((max(0, end - base),), (1,), base), base

    @property
    def uniform(self) -> bool:
        """False where outputs that share memory have different dtypes, which one copy does not support."""
        return all(len({self._made[i].dtype for i in members}) == 1 for members in self._groups)

    def lend(self) -> None:
        """Stop owning the memory: captures of other graphs may use it between a replay and the next.

        Called once the outputs of the capture itself have been compared. The memory stays mapped while the graph's
        pool lives.
        """
        storages: dict[int, Any] = {}
        for index, tensor in enumerate(self._made):
            own = tensor.untyped_storage()
            if own._cdata not in storages:
                storages[own._cdata] = torch._C._construct_storage_from_data_pointer(
                    own.data_ptr(), tensor.device, own.nbytes()
                )
            view = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            view.set_(storages[own._cdata], int(tensor.storage_offset()), tensor.shape, tensor.stride())
            self._made[index] = view
        self._sources = [self._source(members) for members in self._groups]

    def hand_out(self) -> list[torch.Tensor]:
        """Copies of what the replay just enqueued has written, in order."""
        result: list[torch.Tensor] = [None] * len(self._made)  # type: ignore[list-item]
        copies: list[torch.Tensor] = []
        for members, (source, base) in zip(self._groups, self._sources, strict=True):
            copy = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device=source.device)
            copies.append(copy)
            if len(members) == 1:
                made = self._made[members[0]]
                expanded = made.shape != copy.shape
                result[members[0]] = copy.as_strided(made.shape, made.stride()) if expanded else copy
            else:
                for index in members:
                    made = self._made[index]
                    result[index] = copy.as_strided(made.shape, made.stride(), int(made.storage_offset()) - base)
        if copies:
            self._backend.copy(copies, [source for source, _ in self._sources])
        return result
