"""The results of a replay.

A result leaves in one of two ways. In place: the graph wrote it into a slot (`slots.py`), and the caller gets a tensor
over that memory; no replay writes there again while anything refers to it. Copied: the graph wrote it into the pool
that all graphs share, where the next replay may write again, so it is copied into memory of its own, all in one launch
(invariant R4 in OWNERSHIP.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from sys import getrefcount
from typing import Any

import torch

from .backends.protocol import Backend
from .placeholders import distinct, extent
from .slots import Slot

__all__ = ["Outputs"]

_use_count = torch._C._storage_Use_Count


@dataclass(slots=True)
class _InPlace:
    """Outputs that share one storage in a slot: their indices with the tensors that callers get aliases of."""

    slot: Slot
    members: list[tuple[int, torch.Tensor]]
    storage: Any
    address: int
    nbytes: int
    idle: int


class Outputs:
    """All outputs of one graph. `made` are the tensors of the capture, in order; `slots` says where a storage lies.

    Outputs that share a storage leave as views of one. `nbytes` is what each replay copies.
    """

    def __init__(self, backend: Backend, made: Sequence[torch.Tensor], slots: Mapping[int, Slot]) -> None:
        self._backend = backend
        self._made = list(made)
        groups: dict[int, list[int]] = {}
        for index, tensor in enumerate(self._made):
            groups.setdefault(tensor.untyped_storage()._cdata, []).append(index)
        self._homes = {key: slots[key] for key in groups if key in slots}
        self._groups = [members for key, members in groups.items() if key not in slots]
        self._in_slots = {key: members for key, members in groups.items() if key in slots}
        self._in_place: list[_InPlace] = []
        self.slots = list(self._homes.values())
        """The slots that each replay writes results into."""
        self._sources = [self._source(members) for members in self._groups]
        self._lone: torch.Tensor | None = None
        """What to clone, where that is the only copy to be made."""
        self.nbytes = sum(source.nbytes for source, _ in self._sources)
        self.held_bytes = sum(self._made[members[0]].untyped_storage().nbytes() for members in groups.values())
        """Bytes of all results, copied or in place."""

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
        pool lives. Results in slots get storages of exactly their size, for callers to hold.
        """
        for members in self._groups:
            own = self._made[members[0]].untyped_storage()
            storage = torch._C._construct_storage_from_data_pointer(own.data_ptr(), self._backend.device, own.nbytes())
            for index in members:
                self._made[index] = _over(storage, self._made[index])
        self._sources = [self._source(members) for members in self._groups]
        if [len(members) for members in self._groups] == [1]:
            made = self._made[self._groups[0][0]]
            self._lone = made if _is_cloned_as_it_is(made) else None
        for key, members in self._in_slots.items():
            nbytes = self._made[members[0]].untyped_storage().nbytes()
            group = self._over_slot(self._homes[key], members, nbytes)
            self._in_place.append(group)
            for index, template in group.members:
                self._made[index] = template

    def _over_slot(self, slot: Slot, members: list[int], nbytes: int) -> _InPlace:
        storage = slot.storage(nbytes)
        made = [(index, _over(storage, self._made[index])) for index in members]
        return _InPlace(slot, made, storage, storage.data_ptr(), nbytes, _use_count(storage._cdata))

    def hand_out(self) -> list[torch.Tensor]:
        """What the replay just enqueued has written, in order: aliases of slots, and copies."""
        result: list[torch.Tensor] = [None] * len(self._made)  # type: ignore[list-item]
        for position, group in enumerate(self._in_place):
            if group.storage.data_ptr() != group.address:  # an earlier result was resized, or shared: its storage moved
                indices = [index for index, _ in group.members]
                group = self._in_place[position] = self._over_slot(group.slot, indices, group.nbytes)
            slot = group.slot
            if slot.keeper is group:  # the last occupant is dead, and its storage is handed out again
                slot.predicted = False
                slot.references = getrefcount(slot.storage_object)
            else:
                slot.occupy(group, group.storage._cdata, group.idle, group.storage)
            for index, template in group.members:
                result[index] = template.data
        if not self._groups:
            return result
        if self._lone is not None:
            result[self._groups[0][0]] = self._backend.clone(self._lone)
            return result
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
        self._backend.copy(copies, [source for source, _ in self._sources])
        return result


def _is_cloned_as_it_is(tensor: torch.Tensor) -> bool:
    """Whether `clone` gives a tensor of the same strides: of one with gaps, or expanded, it does not."""
    if tensor.is_conj() or tensor.is_neg():
        return False
    there = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return there.clone().stride() == tensor.stride()


def _over(storage: Any, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same view over another storage."""
    view = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return view.set_(storage, int(tensor.storage_offset()), tensor.shape, tensor.stride())
