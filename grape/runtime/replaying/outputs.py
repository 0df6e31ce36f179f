"""The results of a replay.

A result leaves in one of two ways. In place: the graph wrote it into a slot (`slots.py`), and the caller gets a tensor
over that memory; no replay writes there again while anything refers to it. Copied: the graph wrote it into the pool
that all graphs share, where the next replay may write again, so it is copied into memory of its own, all in one launch
(invariant R4 in OWNERSHIP.md). Either way it comes with all of its storage, and as a view where eager code returns one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from sys import getrefcount

import torch

from ..backends.protocol import Backend
from ..buffers.placeholders import extent
from ..buffers.slots import Slot
from ..buffers.strided import Strided, by_storage, over, storage_at, strided
from ..guarding.sharing import shared
from .looks import Form, alias_of, forms_of, kinship, look_of

_use_count = torch._C._storage_Use_Count
_set_versions = torch._C._autograd._unsafe_set_version_counter
_NOWHERE = torch.empty(0, device="cpu")
"""In the place of a tensor of the capture: others are made over its memory."""
_ALIAS_BYTES = 576
"""Bytes by which the process grows for a tensor with a storage over a slot (torch 2.11, CPython 3.12)."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Outputs that share a storage: `root` is made over all of it, and `itself` is cut out of that where it is less.
    `source` is what there is to copy: some kernels leave a small result in a larger storage, of which a graph that was
    recorded elsewhere has the used part only.

    `parts` are the outputs: number, how it is had from `itself` (None: that is it) and its layout. `version` is None
    where torch keeps none.
    """

    root: Strided
    source: Strided
    itself: Strided | None
    version: int | None
    parts: tuple[tuple[int, str | None, Strided], ...]
    lone: int | None = field(init=False, compare=False)
    """The output that is all of `root`, where there is no other one."""

    def __post_init__(self) -> None:
        whole = self.itself is None and len(self.parts) == 1 and self.parts[0][1] is None
        object.__setattr__(self, "lone", self.parts[0][0] if whole else None)

    def target(self, root: torch.Tensor) -> torch.Tensor:
        """Where in `root` the source is copied to."""
        return root if self.source is self.root else root.as_strided(*self.source[1:4])

    def part(self, root: torch.Tensor, result: list[torch.Tensor]) -> torch.Tensor:
        """Make the outputs of what `root` holds; what the others are parts of."""
        if self.lone is not None:
            result[self.lone] = root
            return root
        itself = root if self.itself is None else alias_of(root, "data", *self.itself[1:4])
        for index, how, layout in self.parts:
            result[index] = itself if how is None else alias_of(itself, how, *layout[1:4])
        return itself


class _Mixed(Exception):
    """Outputs that share a storage in a way that cannot be made again."""


@dataclass(slots=True)
class _InPlace:
    """A result that lies in a slot: callers get aliases of `template`."""

    slot: Slot
    storage: torch.UntypedStorage
    idle: int
    template: torch.Tensor


class Outputs:
    """All outputs of one graph. `made` are the tensors of the capture, in order; `slots` says where a storage lies.

    `forms` say how eager code returns them. `nbytes` is what each replay copies. `refused`: why they cannot be made
    again, or None.
    """

    def __init__(
        self,
        backend: Backend,
        made: Sequence[torch.Tensor],
        slots: Mapping[int, Slot],
        forms: Sequence[Form] | None = None,
    ) -> None:
        self._backend = backend
        self._made = list(made)
        self._inference = torch.is_inference_mode_enabled()
        if forms is None:
            forms = forms_of([look_of(tensor) for tensor in made])
        keys = by_storage(self._made)
        self.refused: str | None = None
        self._known: dict[Strided, Strided] = {}
        groups: dict[int, _Group] = {}
        try:
            groups = {key: self._group(members, forms) for key, members in keys.items()}
            if any(group.source is not group.root for key, group in groups.items() if key in slots):
                raise _Mixed("a result lies in more memory than its slot has")
        except _Mixed as mixed:
            self.refused = str(mixed)
        self._groups = [(group, key) for key, group in groups.items() if key not in slots]
        """Those that are copied."""
        self._in_slots = [(slots[key], group) for key, group in groups.items() if key in slots]
        self._sources = [
            over(made[keys[key][0]].untyped_storage(), group.source, backend.device) for group, key in self._groups
        ]
        self._in_place: list[_InPlace] | None = []
        """None: they are made again when the next results leave."""
        self.slots = [slot for slot, _ in self._in_slots]
        """The slots that each replay writes results into."""
        self._lone = False
        """True where the only copy to be made is a clone."""
        self.nbytes = sum(group.root[-1] for group, _ in self._groups)
        self.held_bytes = sum(self._made[members[0]].untyped_storage().nbytes() for members in keys.values())
        """Bytes of all results, copied or in place."""

    def _layout(self, tensor: torch.Tensor) -> Strided:
        how = strided(tensor)
        return self._known.setdefault(how, how)

    def _group(self, members: Sequence[int], forms: Sequence[Form]) -> _Group:
        made = self._made
        first, layouts = members[0], {index: self._layout(made[index]) for index in members}
        bases = {base[0]: base[1] for index in members if (base := forms[index].base) is not None}
        if len({layouts[index][0] for index in members} | {layout[0] for layout in bases.values()}) > 1:
            raise _Mixed("results of different dtypes share memory")
        own = {forms[index].itself: index for index in members}
        parts: list[tuple[int, str | None, Strided]] = []
        if self._inference:  # no tensor knows of what it is a view
            main = layouts[first]
            parts = [(index, None if index == first else "view", layouts[index]) for index in members]
        else:
            lone = [index for index in members if forms[index].base is None]
            others = [number for number in bases if number not in own]
            if len(others) + bool(lone) > 1 or any(forms[own[n]].base for n in bases if n in own):
                raise _Mixed("results share memory in a way that a replay cannot repeat")
            chief = lone[0] if lone else None
            main = layouts[chief] if chief is not None else self._known.setdefault(bases[others[0]], bases[others[0]])
            for index in members:
                base = forms[index].base
                if base is not None and chief is not None and own[base[0]] != chief:
                    raise _Mixed("results share memory in a way that a replay cannot repeat")
                how = "view" if base is not None else None if index == chief else kinship(made[index], made[lone[0]])
                parts.append((index, how, layouts[index]))
        versions = {forms[index].version for index in members}
        version = None if self._inference else max((one for one in versions if one is not None), default=0)
        there = made[first].untyped_storage().nbytes()
        nbytes = max(there, forms[first].nbytes)
        root = main if _fills(main) and main[-1] == nbytes else self._flat(main[0], nbytes)
        source = root if there == nbytes else self._flat(main[0], there)
        itself = None if root is main else main
        return _Group(root=root, source=source, itself=itself, version=version, parts=tuple(parts))

    def _flat(self, dtype: torch.dtype, nbytes: int) -> Strided:
        if nbytes % dtype.itemsize:
            raise _Mixed("a result lies in memory that is no multiple of its elements")
        how = (dtype, (nbytes // dtype.itemsize,), (1,), 0, nbytes)
        return self._known.setdefault(how, how)

    def lend(self, others: Sequence[Outputs] = ()) -> None:
        """Stop owning the memory: captures of other graphs may use it between a replay and the next.

        Called once the outputs of the capture itself have been compared. The memory stays mapped while the graph's
        pool lives. Results in slots get storages of exactly their size, for callers to hold. What equals that of
        `others` is kept once.
        """
        device = self._backend.device
        for position, (group, _) in enumerate(self._groups):
            address = self._sources[position].data_ptr()
            storage = storage_at(address, device, group.source[-1])
            self._sources[position] = over(storage, group.source, device)
        lone = self._groups[0][0] if len(self._groups) == 1 else None
        self._lone = lone is not None and lone.source is lone.root and _is_cloned_as_it_is(self._sources[0])
        self._made = [_NOWHERE] * len(self._made)
        self._groups = [(shared(group, self._of(others, group)), 0) for group, _ in self._groups]
        in_slots = [(slot, shared(group, self._of(others, group))) for slot, group in self._in_slots]
        self._in_slots = shared(in_slots, [one._in_slots for one in others])
        self.slots = shared(self.slots, [one.slots for one in others])
        self._known.clear()
        self._in_place = self._over_slots()

    @staticmethod
    def _of(others: Sequence[Outputs], group: _Group) -> list[_Group]:
        return [known for one in others for known in one.groups if known == group]

    @property
    def groups(self) -> list[_Group]:
        """How the outputs are made, copied ones first."""
        return [*(group for group, _ in self._groups), *(group for _, group in self._in_slots)]

    @property
    def kept_bytes(self) -> int:
        """An estimate of what `let_go` gives back, on the host."""
        return _ALIAS_BYTES * len(self._in_place or ())

    def let_go(self) -> None:
        """Forget the tensors that callers get aliases of. Those of an occupant stay as they are: its slot has them."""
        self._in_place = None

    def _over_slots(self) -> list[_InPlace]:
        return [self._over_slot(slot, group) for slot, group in self._in_slots]

    def _over_slot(self, slot: Slot, group: _Group) -> _InPlace:
        storage = slot.lend(group.root[-1])
        template = over(storage, group.root, self._backend.device)
        return _InPlace(slot, storage, _use_count(storage._cdata), template)

    def hand_out(self) -> list[torch.Tensor]:
        """The results that the replay just enqueued has written, in order: aliases of slots, and copies."""
        result: list[torch.Tensor] = [None] * len(self._made)  # type: ignore[list-item]
        in_place = self._in_place
        if in_place is None:
            in_place = self._in_place = self._over_slots()
        counted: list[torch.Tensor] = []
        versions: list[int] = []
        for position, lying in enumerate(in_place):
            slot, group = lying.slot, self._in_slots[position][1]
            if lying.storage.data_ptr() != slot.address:  # an earlier result was resized, or shared: its storage moved
                lying = in_place[position] = self._over_slot(slot, group)
            if slot.keeper is lying:  # the last occupant is dead, and its storage is handed out again
                slot.predicted = False
                slot.references = getrefcount(slot.storage_object)
            else:
                slot.occupy(lying, lying.storage._cdata, lying.idle)
            itself = group.part(lying.template.data, result)
            if group.version:
                counted.append(itself)
                versions.append(group.version)
        if counted:
            _set_versions(tuple(counted), tuple(versions))
        if not self._groups:
            return result
        if self._lone:
            group = self._groups[0][0]
            itself = group.part(self._backend.clone(self._sources[0]), result)
            if group.version:
                _set_versions((itself,), (group.version,))
            return result
        device, roots, targets = self._backend.device, [], []
        for group, _ in self._groups:
            dtype, shape, stride, _, _ = group.root
            roots.append(torch.empty_strided(shape, stride, dtype=dtype, device=device))
            targets.append(group.target(roots[-1]))
        self._backend.copy(targets, self._sources)
        selves = [group.part(root, result) for (group, _), root in zip(self._groups, roots, strict=True)]
        if not self._inference:
            _set_versions(tuple(selves), tuple([group.version or 0 for group, _ in self._groups]))
        return result


def _fills(layout: Strided) -> bool:
    """True where a tensor has each byte of its storage, once."""
    dtype, shape, stride, offset, nbytes = layout
    tensor = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
    return not offset and tensor.numel() == extent(tensor) and tensor.nbytes == nbytes


def _is_cloned_as_it_is(tensor: torch.Tensor) -> bool:
    """True where `clone` gives a tensor of the same strides: of one with gaps, or expanded, it does not."""
    there = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return there.clone().stride() == tensor.stride()
