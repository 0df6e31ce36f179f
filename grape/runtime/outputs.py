"""The memory that a graph writes its results to, and who may still be using it.

An output's storage was made in the capture and lives in the graph's pool. It is handed out in place only while
nothing but Grape refers to it (invariant R4 in OWNERSHIP.md); otherwise its contents are copied out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .backends.protocol import Backend
from .placeholders import extent

__all__ = ["OutputGroup", "Outputs"]


@dataclass(slots=True)
class OutputGroup:
    """Outputs that share one storage. `own` counts the references to it that Grape itself holds."""

    storage: torch.UntypedStorage
    members: list[int]
    own: int
    in_place: bool

    def in_use(self) -> bool:
        """True while somebody outside Grape refers to the storage, through whatever view."""
        return int(torch._C._storage_Use_Count(self.storage._cdata)) > self.own


class Outputs:
    """All outputs of one graph. `made` are the tensors of the capture; `dies` says which are gone by the next call."""

    def __init__(self, backend: Backend, made: Sequence[torch.Tensor], dies: Sequence[bool]) -> None:
        self._backend = backend
        self._made = [tensor.data for tensor in made]
        self.groups: list[OutputGroup] = []
        by_storage: dict[int, OutputGroup] = {}
        for index, tensor in enumerate(self._made):
            storage = tensor.untyped_storage()
            group = by_storage.get(storage._cdata)
            if group is None:
                group = OutputGroup(storage, [], 1, True)
                by_storage[storage._cdata] = group
                self.groups.append(group)
            group.members.append(index)
            group.own += 1
            group.in_place = group.in_place and dies[index]
        self._in_place = [group for group in self.groups if group.in_place]
        self._spans = [self._span(group) for group in self.groups]
        self.nbytes = sum(group.storage.nbytes() for group in self.groups)

    def _span(self, group: OutputGroup) -> tuple[torch.Tensor, int] | None:
        """The members' memory as one flat tensor and where it starts; None for a lone member, copied as it is."""
        if len(group.members) == 1:
            return None
        members = [self._made[i] for i in group.members]
        base = min(member.storage_offset() for member in members)
        end = max(member.storage_offset() + extent(member) for member in members)
        return members[0].as_strided((max(0, end - base),), (1,), base), base

    @property
    def uniform(self) -> bool:
        """False where outputs that share memory have different dtypes, which copying out does not support."""
        return all(len({self._made[i].dtype for i in group.members}) == 1 for group in self.groups)

    def blocked(self) -> bool:
        """True where a replay now would overwrite a tensor that is still in use."""
        return any(group.in_use() for group in self._in_place)

    def keep_out(self) -> None:
        """Copy out, from now on, every output that is in use now: it turned out to outlive the call."""
        for group in self._in_place:
            if group.in_use():
                group.in_place = False
        self._in_place = [group for group in self.groups if group.in_place]

    def hand_out(self) -> list[torch.Tensor]:
        """Tensors for the results of the replay just enqueued; what may outlive the next replay is a copy."""
        result: list[torch.Tensor] = [None] * len(self._made)  # type: ignore[list-item]
        targets: list[torch.Tensor] = []
        sources: list[torch.Tensor] = []
        for group, span in zip(self.groups, self._spans, strict=True):
            if group.in_place:
                for index in group.members:
                    result[index] = self._made[index].data
            elif span is None:
                made = self._made[group.members[0]]
                copy = torch.empty_strided(made.shape, made.stride(), dtype=made.dtype, device=made.device)
                targets.append(copy)
                sources.append(made)
                result[group.members[0]] = copy
            else:
                flat, base = span
                copy = torch.empty_like(flat)
                targets.append(copy)
                sources.append(flat)
                for index in group.members:
                    made = self._made[index]
                    result[index] = copy.as_strided(made.shape, made.stride(), made.storage_offset() - base)
        if targets:
            self._backend.copy(targets, sources)
        return result
