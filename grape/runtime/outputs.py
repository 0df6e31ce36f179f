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
from .sharing import shared
from .slots import Slot
from .strided import Strided, over, strided

__all__ = ["Outputs"]

_use_count = torch._C._storage_Use_Count
_NOWHERE = torch.empty(0, device="cpu")
"""In the place of a tensor of the capture that was in a slot: others are made over that memory."""
_ALIAS_BYTES = 576
"""What the process grows by for a tensor with a storage over a slot (torch 2.11, CPython 3.12)."""


@dataclass(slots=True)
class _InPlace:
    """Outputs that share one storage in a slot, of which callers get aliases: the `index` and tensor (`template`) of
    the first, and those of `others`."""

    slot: Slot
    storage: Any
    idle: int
    index: int
    template: torch.Tensor
    others: Sequence[tuple[int, torch.Tensor]]


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
        self._groups = [members for key, members in groups.items() if key not in slots]
        self._in_slots = [(slots[key], members) for key, members in groups.items() if key in slots]
        self._strided: list[Strided] = []
        """How the outputs lie in slots, one after the other."""
        self._in_place: list[_InPlace] | None = []
        """None: they are made again when the next results leave."""
        self.slots = [slot for slot, _ in self._in_slots]
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

    def lend(self, others: Sequence[Outputs] = ()) -> None:
        """Stop owning the memory: captures of other graphs may use it between a replay and the next.

        Called once the outputs of the capture itself have been compared. The memory stays mapped while the graph's
        pool lives. Results in slots get storages of exactly their size, for callers to hold. What equals that of
        `others` is kept once.
        """
        for members in self._groups:
            own = self._made[members[0]].untyped_storage()
            storage = torch._C._construct_storage_from_data_pointer(own.data_ptr(), self._backend.device, own.nbytes())
            for index in members:
                self._made[index] = over(storage, strided(self._made[index]), self._backend.device)
        self._sources = [self._source(members) for members in self._groups]
        if [len(members) for members in self._groups] == [1]:
            made = self._made[self._groups[0][0]]
            if _is_cloned_as_it_is(made):
                self._lone, self._sources = made, []
        known: dict[Strided, Strided] = {}
        for index in (index for _, members in self._in_slots for index in members):
            how = strided(self._made[index])
            self._strided.append(known.setdefault(how, how))
            self._made[index] = _NOWHERE
        self._in_slots = shared(self._in_slots, [one._in_slots for one in others])
        self.slots = shared(self.slots, [one.slots for one in others])
        self._groups = shared(self._groups, [one._groups for one in others])
        self._in_place = self._over_slots()

    @property
    def kept_bytes(self) -> int:
        """An estimate of what `let_go` gives back, on the host."""
        return _ALIAS_BYTES * len(self._strided) if self._in_place else 0

    def let_go(self) -> None:
        """Forget the tensors that callers get aliases of. Those of an occupant stay as they are: its slot has them."""
        self._in_place = None

    def _over_slots(self) -> list[_InPlace]:
        lying = iter(self._strided)
        return [self._over_slot(slot, members, [next(lying) for _ in members]) for slot, members in self._in_slots]

    def _over_slot(self, slot: Slot, members: Sequence[int], lying: Sequence[Strided]) -> _InPlace:
        storage, device = slot.lend(lying[0][-1]), self._backend.device
        template, *more = [over(storage, how, device) for how in lying]
        others = tuple(zip(members[1:], more, strict=True))
        return _InPlace(slot, storage, _use_count(storage._cdata), members[0], template, others)

    def hand_out(self) -> list[torch.Tensor]:
        """What the replay just enqueued has written, in order: aliases of slots, and copies."""
        result: list[torch.Tensor] = [None] * len(self._made)  # type: ignore[list-item]
        in_place = self._in_place
        if in_place is None:
            in_place = self._in_place = self._over_slots()
        for position, group in enumerate(in_place):
            slot = group.slot
            if group.storage.data_ptr() != slot.address:  # an earlier result was resized, or shared: its storage moved
                members = self._in_slots[position][1]
                first = sum(len(before) for _, before in self._in_slots[:position])
                lying = self._strided[first : first + len(members)]
                group = in_place[position] = self._over_slot(slot, members, lying)
            if slot.keeper is group:  # the last occupant is dead, and its storage is handed out again
                slot.predicted = False
                slot.references = getrefcount(slot.storage_object)
            else:
                slot.occupy(group, group.storage._cdata, group.idle, group.storage)
            result[group.index] = group.template.data
            if group.others:
                for index, template in group.others:
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
