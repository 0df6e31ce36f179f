"""Fixed addresses for the tensors that enter a region.

Arguments that share a storage share a placeholder, so that aliasing inside the region is what it was outside. An
argument that has always lain at one address, or that an earlier replay left in a slot, is bound where it lies.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

import torch

from ..guarding.sharing import shared
from .slots import Slot, SlotStore
from .strided import Strided, alignment, by_storage, over, strided, unit_of


class Placeholders:
    """The tensors that stand for `leaves` in a capture, in order: `tensors`, with their `addresses`.

    A leaf that lives in a slot already (the result of an earlier replay) is read where it lies (`forwarded`); one that
    has always been at one address is bound there (`bound`); of the others (`copied`) each storage gets a slot of its
    own; what lies on the host stays there (`host`). `slots[i]` is the slot of a forwarded or copied leaf.

    `landing`: by path, the result and the side of an argument that the call before returned without a graph. It is read
    where a graph of that call will put it.

    Once the capture is over (`settle`) nothing is kept of a tensor over a slot but how to make it again.
    """

    def __init__(
        self,
        store: SlotStore,
        owner: Hashable,
        device: torch.device,
        leaves: Sequence[torch.Tensor],
        paths: Sequence[str],
        bound: Collection[int],
        landing: Mapping[str, tuple[str, int]] | None = None,
    ) -> None:
        self.tensors: list[torch.Tensor] = []
        self.inference = [leaf.is_inference() for leaf in leaves]
        self.bound: list[int] = []
        self.forwarded: list[int] = []
        self.copied: list[int] = []
        self.host: list[int] = []
        self.slots: dict[int, Slot] = {}
        occupants = store.occupants()
        flats: dict[int, tuple[torch.UntypedStorage, int]] = {}
        for key, members in by_storage(leaves).items():
            first = leaves[members[0]]
            place = self.host
            if first.device.type == device.type:
                slot = occupants.get(key)
                if slot is not None:
                    place = self.forwarded
                    flats[key] = slot.storage(first.untyped_storage().nbytes()), 0
                elif all(i in bound for i in members):
                    place = self.bound
                else:
                    place = self.copied
                    base, end = _span([leaves[i] for i in members])
                    whole_of_it = (base, end) == (0, first.untyped_storage().nbytes())
                    base -= _lead(first, base)
                    where = (landing or {}).get(paths[members[0]]) if whole_of_it and base == 0 else None
                    slot = self._landing(store, owner, where, end)
                    slot = slot or store.vacant((owner, "in", paths[members[0]]), end - base)
                    flats[key] = slot.storage(end - base), base
                if slot is not None:
                    self.slots.update(dict.fromkeys(members, slot))
            place += members
        for leaf in leaves:
            key = leaf.untyped_storage()._cdata
            if key in flats:
                storage, base = flats[key]
                offset = (int(leaf.storage_offset()) * leaf.itemsize - base) // leaf.itemsize
                tensor = torch.empty(0, dtype=leaf.dtype, device=device)
                tensor.set_(storage, offset, leaf.shape, leaf.stride())
            elif leaf.device.type == device.type:
                tensor = leaf.detach()
            else:
                tensor = leaf.detach().clone()
            if leaf.requires_grad and not tensor.requires_grad:
                tensor = tensor.detach().requires_grad_()
            self.tensors.append(tensor)
        self.nbytes = sum(storage.nbytes() for storage, _ in flats.values())
        """Bytes that the arguments need where they are not bound."""
        for indices in (self.bound, self.forwarded, self.copied, self.host):
            indices.sort()
        self.in_place = [*self.bound, *self.forwarded]
        self.movable = sorted([*self.forwarded, *self.copied])
        self._targets: dict[int, torch.Tensor] = {}
        self._stretches: dict[int, torch.Tensor | None] = {}
        self._settled: Sequence[torch.Tensor | Strided] = ()
        self.addresses = [tensor.data_ptr() for tensor in self.tensors]
        self.unit = unit_of(device)
        self.alignments = [alignment(tensor) for tensor in self.tensors]

    def settle(self, others: Sequence[Placeholders]) -> None:
        """The capture is over. What equals that of `others` is kept once; none of the lists changes any more."""
        known: dict[Strided, Strided] = {}
        self._settled = [
            known.setdefault(how := strided(tensor), how) if i in self.slots else tensor
            for i, tensor in enumerate(self.tensors)
        ]
        self.tensors = []
        self.let_go()
        names = ("inference", "bound", "forwarded", "copied", "host", "slots", "in_place", "movable", "addresses")
        for name in (*names, "alignments"):
            setattr(self, name, shared(getattr(self, name), [getattr(other, name) for other in others]))

    def tensor(self, index: int) -> torch.Tensor:
        """The tensor that stands for the leaf."""
        if not self._settled:
            return self.tensors[index]
        kept = self._settled[index]
        if isinstance(kept, torch.Tensor):
            return kept
        slot = self.slots[index]
        with torch.inference_mode(False):  # an inference tensor could be written under that mode only
            return over(slot.storage(kept[-1]), kept, slot.device)

    def let_go(self) -> None:
        """Forget what was made for copies; the next one makes it again."""
        self._targets.clear()
        self._stretches.clear()

    def target(self, index: int) -> torch.Tensor:
        """The tensor that a copy of the leaf is written to: each element once. Made when it is first needed: most never
        are.
        """
        found = self._targets.get(index)
        if found is None:
            found = self._targets[index] = distinct(self.tensor(index))
        return found

    def stretch(self, index: int) -> torch.Tensor | None:
        """A strided placeholder as one stretch, gaps and all; None for a dense one.

        Copying the stretch instead of the elements lets many placeholders be filled in one launch.
        """
        if index in self._stretches:
            return self._stretches[index]
        found = self._stretches[index] = _flattened(self.tensor(index).detach())
        return found

    def _landing(self, store: SlotStore, owner: Hashable, where: tuple[str, int] | None, nbytes: int) -> Slot | None:
        """None where somebody lives there, or another argument is read there."""
        if where is None:
            return None
        slot = store.slot((owner, "out", *where), nbytes)
        if slot.occupied or any(slot is one for one in self.slots.values()):
            return None
        slot.vacate()
        return slot

    def renew_leaves(self) -> None:
        """Other tensors for those that require gradients: nodes of gradients belong to the stream of one run."""
        for index, tensor in enumerate(self.tensors):
            if tensor.requires_grad:
                self.tensors[index] = tensor.detach().requires_grad_()


def _span(members: Sequence[torch.Tensor]) -> tuple[int, int]:
    """The first byte of their storage that the members touch, and the one past the last."""
    base = min(int(member.storage_offset()) * member.itemsize for member in members)
    if len({member.dtype for member in members}) > 1:
        base -= base % 16  # each must start at a multiple of its own element size
    return base, max(base, *((int(m.storage_offset()) + extent(m)) * m.itemsize for m in members))


def _lead(member: torch.Tensor, base: int) -> int:
    """Bytes between an aligned address and the first that is read. They are kept, for addresses choose kernels."""
    return int(member.untyped_storage().data_ptr() + base) % unit_of(member.device)


def distinct(tensor: torch.Tensor) -> torch.Tensor:
    """Each element of a tensor once: expanded dimensions, which no copy may write through, are narrowed to one."""
    if 0 not in tensor.stride():
        return tensor.detach()
    sizes = [min(size, 1) if step == 0 else size for size, step in zip(tensor.shape, tensor.stride(), strict=True)]
    return tensor.detach().as_strided(sizes, tensor.stride(), int(tensor.storage_offset()))


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All the memory behind a tensor, as bytes: other views of it may reach further than the tensor does."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _flattened(tensor: torch.Tensor) -> torch.Tensor | None:
    if tensor.is_contiguous() or tensor.numel() == 0:
        return None
    return tensor.as_strided((extent(tensor),), (1,), int(tensor.storage_offset()))


def extent(tensor: torch.Tensor) -> int:
    """Elements from the first to past the last one that a tensor touches; 0 for an empty tensor."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
