"""Memory at fixed addresses that Grape lends to the person's program: placeholders, and results handed out in place.

A *slot* belongs to one role (an argument of a region, or one of the two sides of a result) and keeps its address
while it grows, so every shape of a region meets the same addresses. At most one tensor's storage lives in a slot at a
time, its *occupant*; nothing is written into a slot before the occupant is provably dead: the storage's use count says
whether anything outside Grape refers to it, views and autograd included (invariants R4 and R13 in OWNERSHIP.md).
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Hashable, Iterator, Sequence
from sys import getrefcount
from typing import Any, TypeAlias

import torch

from ..backends.protocol import Backend, Reservation
from .growable import growable, is_supported
from .strided import storage_at

_SMALL = 256 * 1024
"""Up to here a slot is an ordinary block of fixed size; above, a reservation that grows in place."""
_TEMPLATES = 4096
_NOBODY = torch.UntypedStorage(0)
Role: TypeAlias = tuple[Hashable, ...]
"""It begins with the owner, whose graphs use the slot."""
_use_count = torch._C._storage_Use_Count


class Slot:
    """One stretch of device memory. `address` never changes; `capacity` counts bytes."""

    __slots__ = (
        "_backend",
        "_buffer",
        "_reservation",
        "_storages",
        "_templates",
        "address",
        "cdata",
        "graphs",
        "idle",
        "keeper",
        "predicted",
        "references",
        "storage_object",
    )

    def __init__(self, backend: Backend, nbytes: int) -> None:
        self._backend = backend
        self._buffer: torch.Tensor | None = None
        self._reservation: Reservation | None = backend.reserve(nbytes) if nbytes > _SMALL else None
        if self._reservation is None:
            size = max(512, 1 << max(0, nbytes - 1).bit_length()) if nbytes <= _SMALL else nbytes
            self._buffer = backend.empty_strided((size,), (1,), torch.uint8)
            self.address = self._buffer.data_ptr()
        else:
            self.address = self._reservation.address
        self._templates: dict[object, tuple[torch.Tensor, int, int]] = {}
        self._storages: list[torch.UntypedStorage] = []
        self.graphs = 0
        """So many graphs read or write here by address, also those of other owners, which read its results."""
        self.vacate()

    def vacate(self) -> None:
        """Forget the occupant, which is dead or was never there."""
        self.cdata: int = _NOBODY._cdata
        self.idle: int = 1 << 30
        self.keeper: object = None
        self.storage_object: torch.UntypedStorage = _NOBODY
        self.references: int = 1 << 62
        self.predicted = False

    @property
    def device(self) -> torch.device:
        return self._backend.device

    @property
    def nbytes(self) -> int:
        return self._reservation.nbytes if self._reservation is not None else self._buffer.nbytes  # type: ignore[union-attr]

    @property
    def occupied(self) -> bool:
        """True where anything outside Grape still refers to the occupant's storage."""
        return bool(_use_count(self.cdata) > self.idle or getrefcount(self.storage_object) > self.references)

    def hold(self, nbytes: int) -> bool:
        """Make room for so many bytes at the same address; False where that is not possible."""
        if nbytes <= self.nbytes:
            return True
        return self._reservation is not None and self._reservation.grow(nbytes)

    def storage(self, nbytes: int) -> torch.UntypedStorage:
        """A storage of exactly so many bytes at the start of the slot. It owns nothing."""
        return storage_at(self.address, self._backend.device, nbytes)

    def lend(self, nbytes: int) -> torch.UntypedStorage:
        """The same for others to hold, who may resize it: then it gets memory of its own, and is here no more."""
        return growable(self.address, self._backend.device, nbytes)

    def occupy(self, keeper: Any, cdata: int, idle: int) -> None:
        """From now on the storage `cdata` lives here; `idle` is its use count while only `keeper` refers to it.

        `keeper` must hold every reference that the count includes: if one went, a living occupant would seem dead. It
        is a tensor, or has its `storage`. That object may be all that a caller keeps, and is counted as well: every
        version of torch has one Python object a storage, which counts as one use however often it is held. It is no
        argument here: where Dynamo evaluates frames in CPython's place, the caller's stack holds it as well.
        """
        self.keeper, self.cdata, self.idle, self.predicted = keeper, cdata, idle, False
        self.storage_object = keeper.untyped_storage() if isinstance(keeper, torch.Tensor) else keeper.storage
        self.references = getrefcount(self.storage_object)

    def template(self, shape: Sequence[int], dtype: torch.dtype) -> tuple[torch.Tensor, int, int] | None:
        """A contiguous tensor over the slot, its storage's identity and idle use count; None where it does not fit."""
        key = (tuple(shape), dtype, torch.is_inference_mode_enabled())
        known = self._templates.get(key)
        if known is not None and known[0].data_ptr() != self.address and known[0].numel():
            gone, known = known[1], None  # its storage was resized, or shared: it lies elsewhere now
            self._storages[:] = [one for one in self._storages if one._cdata != gone]
        if known is None and is_supported():
            made = torch.empty(0, dtype=dtype, device=self._backend.device)
            nbytes = math.prod(shape) * dtype.itemsize
            if not self.hold(nbytes):
                return None
            made.set_(self.lend(nbytes))
            made = made.view(tuple(shape))
            storage = made.untyped_storage()
            cdata = storage._cdata
            if len(self._templates) >= _TEMPLATES:
                self._templates.clear()
                # The occupant's is counted.
                self._storages[:] = [one for one in self._storages if one is self.storage_object]
            self._storages.append(storage)
            known = self._templates[key] = (made, cdata, _use_count(cdata))
        return known

    def release(self) -> None:
        """Give the memory back. Nobody may use it any more."""
        self.vacate()
        self._templates.clear()
        self._storages.clear()
        self._buffer = None
        if self._reservation is not None:
            self._reservation.release()


class SlotStore:
    """The slots of one device, by role."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._slots: dict[Role, Slot] = {}
        self._outgrown: list[tuple[Role, Slot]] = []
        self._left: list[Slot] = []
        self.side_streams: set[torch.cuda.Stream] = set()
        """Streams on which a handed-out result is in use (`Tensor.record_stream`): a replay waits for them."""
        heirs = (backend, self._slots, self._outgrown, self._left)
        weakref.finalize(self, _bequeath, *heirs).atexit = False

    @property
    def device(self) -> torch.device:
        return self._backend.device

    def __iter__(self) -> Iterator[Slot]:
        yield from self._slots.values()
        yield from [slot for _, slot in self._outgrown]
        yield from self._left

    @property
    def nbytes(self) -> int:
        """Bytes of device memory behind all slots."""
        return sum(slot.nbytes for slot in self)

    def nbytes_of(self, owner: Hashable) -> int:
        """Bytes behind the slots of one owner."""
        return sum(slot.nbytes for role, slot in self._by_role() if role[0] is owner)

    def slot(self, role: Role, nbytes: int) -> Slot:
        """The slot of a role, with room for so many bytes. Raises torch.OutOfMemoryError.

        Where it cannot grow there, the role gets another; the old one lives on with the graphs that use it.
        """
        slot = self._slots.get(role)
        if slot is not None and slot.hold(nbytes):
            return slot
        made = Slot(self._backend, nbytes)
        if slot is not None:
            self._outgrown.append((role, slot))
        self._slots[role] = made
        return made

    def recorded(self, tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
        """The person told the allocator that `stream` uses `tensor`. It does not own slots: their next writer waits."""
        cdata = tensor.untyped_storage()._cdata
        if any(slot.cdata == cdata for slot in self):
            self.side_streams.add(stream)

    def wait(self) -> None:
        """Let the current stream wait for what other streams still do with dead occupants."""
        streams, self.side_streams = self.side_streams, set()
        for stream in streams:
            torch.cuda.current_stream(self._backend.device).wait_stream(stream)

    def vacant(self, role: Role, nbytes: int) -> Slot:
        """The first slot of a role, by number, in which nobody lives."""
        return next(slot for i in itertools.count() if not (slot := self.slot((*role, i), nbytes)).occupied)

    def occupants(self) -> dict[int, Slot]:
        """The slots in which something lives, by the identity of its storage; what was resized has moved out."""
        return {slot.cdata: slot for slot in self if slot.occupied and slot.storage_object.data_ptr() == slot.address}

    def sides(self, owner: Hashable) -> dict[int, int]:
        """The results of an owner that live in one of their two slots: its number, by the identity of the storage."""
        mine = [(role, slot) for role, slot in self._by_role() if role[:2] == (owner, "out")]
        return {slot.cdata: int(role[3] == 1) for role, slot in mine if role[3] in (0, 1) and slot.occupied}

    def outgrown(self, role: Role) -> list[Slot]:
        """Earlier slots of a role, and of roles that begin with it: graphs of smaller shapes still use them."""
        return [slot for one, slot in self._outgrown if one[: len(role)] == role]

    def _by_role(self) -> Iterator[tuple[Role, Slot]]:
        yield from self._slots.items()
        yield from self._outgrown

    def drop(self, owner: Hashable) -> None:
        """The graphs of `owner` are gone: give back its slots that nobody lives in, the others when they are empty."""
        self._left += [self._slots.pop(role) for role in list(self._slots) if role[0] is owner]
        self._left += [slot for role, slot in self._outgrown if role[0] is owner]
        self._outgrown[:] = [(role, slot) for role, slot in self._outgrown if role[0] is not owner]
        self.sweep()

    def sweep(self) -> None:
        """Give back the slots without an owner in which nobody lives any more."""
        _give_back(self._backend, self._left)
        _give_back(self._backend, _orphans)

    def clear(self) -> None:
        """Give back everything in which nobody lives; the rest when `sweep` finds it empty."""
        self._left += [*self._slots.values(), *[slot for _, slot in self._outgrown]]
        self._slots.clear()
        self._outgrown.clear()
        self.sweep()


_orphans: list[Slot] = []
"""Slots whose store is gone, in which something still lives."""


def _give_back(backend: Backend, slots: list[Slot]) -> None:
    """Release those in which nobody lives and that no graph uses; keep the others in the list."""
    free = [slot for slot in slots if not slot.occupied and not slot.graphs]
    if free:
        slots[:] = [slot for slot in slots if slot not in free]
        backend.synchronize()  # work that was enqueued may still use them
        for slot in free:
            slot.release()


def _bequeath(backend: Backend, slots: dict[Role, Slot], outgrown: list[tuple[Role, Slot]], left: list[Slot]) -> None:
    """A store was forgotten: what lives in its slots stays where it is."""
    inherited = (*slots.values(), *(slot for _, slot in outgrown), *left)
    for slot in inherited:
        slot.graphs = 0  # whoever could replay one held the store
    _orphans.extend(inherited)
    _give_back(backend, _orphans)
