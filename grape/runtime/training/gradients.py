"""Gradients as state: what a region finds in `.grad` of the leaf tensors that it reaches, and what it leaves there.

A gradient that an eager call would have made anew is copied to the leaf's home (`homes.py`) at the end of the graph;
one that is accumulated, scaled or zeroed in place is read and written at home, where it is taken before the capture
or, if the person has put another one there, before a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, is_
from typing import Literal

import torch

from ...model import Reason, Refused
from ..backends.operators import copy_each
from ..backends.protocol import Backend
from ..guarding.tensor_guards import checked_gradients
from ..replaying.versions import set_versions, versions_of
from .homes import SUPPORTED, Home, alone, home_of, overlaps, vacant_home

_gradient = attrgetter("grad")
After = Literal["none", "same", "new"]


@dataclass(frozen=True, slots=True)
class GradientPlan:
    """The plan of one graph's replays for gradients.

    `leaves` are all leaf tensors that the region reaches, `present` whether each had a gradient. Gradients that are
    `read`, some of them `written`, lie at home; those that are `made` are put there; `dropped` ones become None. With
    those that are written goes how far their version counters move, with those that are made where they stand.
    """

    leaves: Sequence[torch.Tensor]
    present: tuple[bool, ...]
    read: Sequence[tuple[torch.Tensor, Home]]
    written: Sequence[tuple[Home, int]]
    made: Sequence[tuple[torch.Tensor, Home, int]]
    dropped: Sequence[torch.Tensor]
    _are_present: Callable[[], bool] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_are_present", checked_gradients(self.leaves, self.present))

    @property
    def active(self) -> bool:
        """True where a replay changes any gradient."""
        return bool(self.read or self.made or self.dropped)

    def does_as(self, other: GradientPlan) -> bool:
        """True where neither changes a gradient, and both ask the same leaves whether they have one."""
        if self.active or other.active or self.present != other.present:
            return False
        return len(self.leaves) == len(other.leaves) and all(map(is_, self.leaves, other.leaves))

    def holds(self) -> bool:
        """True where the same leaves have gradients as at capture."""
        if self._are_present():
            return True
        gradients = [*map(_gradient, self.leaves)]
        if not any(self.present):  # every replay asks, and most regions know no gradients
            return gradients.count(None) == len(gradients)
        return tuple([gradient is not None for gradient in gradients]) == self.present

    def fits(self) -> bool:
        """True where the gradients that a replay reads have the layout of the capture."""
        return all(home.fits(leaf.grad) for leaf, home in self.read if leaf.grad is not None)

    def blocked(self) -> bool:
        """True where a replay would overwrite a gradient that the person still holds."""
        for leaf, home in self.read:
            if not _at_home(leaf, home) and (not alone(_of(leaf)) or home.occupied(by_its_leaf=False)):
                return True
        return any(home.occupied(by_its_leaf=leaf.grad is home.tensor) for leaf, home, _ in self.made)

    def bring_home(self, backend: Backend) -> None:
        """Copy the gradients that a replay reads to where it reads them, in one launch."""
        to_copy = [(_of(leaf), home) for leaf, home in self.read if not _at_home(leaf, home)]
        if to_copy:
            backend.copy([home.base for _, home in to_copy], [gradient.detach() for gradient, _ in to_copy])
            for gradient, home in to_copy:
                home.take_in(gradient)

    def leave(self) -> None:
        """Set every `.grad` to what the call would have left there. The replay is enqueued."""
        for leaf in self.dropped:
            leaf.grad = None
        written = [home.tensor for home, _ in self.written]
        if written:
            now = zip(versions_of(written), self.written, strict=True)
            set_versions(written, [before + by for before, (_, by) in now])
        made: list[torch.Tensor] = []
        for leaf, home, _ in self.made:
            tensor = home.renew()
            if leaf.grad is not tensor:
                leaf.grad = tensor
            made.append(tensor)
        if made:  # nobody knows the tensor that it was before
            set_versions(made, [version for _, _, version in self.made])


def _of(leaf: torch.Tensor) -> torch.Tensor:
    assert leaf.grad is not None
    return leaf.grad


def _at_home(leaf: torch.Tensor, home: Home) -> bool:
    return leaf.grad is home.tensor and home.tensor.data_ptr() == home.address


class GradientCapture:
    """The gradients of one captured call: before it, after its eager run, and in its captured run.

    `leaves` are (name, tensor) of the leaf tensors that the region reaches.
    """

    def __init__(self, leaves: Sequence[tuple[str, torch.Tensor]], backend: Backend) -> None:
        self._backend = backend
        self._leaves = [tensor for _, tensor in leaves]
        self._names = [f"{where}.grad" for where, _ in leaves]
        self._before: list[torch.Tensor | None] = [*map(_gradient, self._leaves)]
        self.present = tuple(gradient is not None for gradient in self._before)
        """Of each leaf, whether it had a gradient before the call."""
        self._versions_before = _versions(self._before)
        self._versions_after: list[int] = []
        self._homes: dict[int, Home] = {}
        self._after: list[torch.Tensor | None] = []
        self._kinds: list[After] = []
        self._made: dict[int, torch.Tensor] = {}
        self.read: set[int] = set()
        self._written: set[int] = set()

    def adopt(self, wanted: Collection[str]) -> Refused | None:
        """Move gradients with these names to their homes: earlier calls read them. Why that is not possible, or None.

        Raises torch.OutOfMemoryError.
        """
        for index, (leaf, name) in enumerate(zip(self._leaves, self._names, strict=True)):
            gradient = self._before[index]
            if gradient is None or name not in wanted:
                continue
            home = home_of(leaf)
            if home is None or not _at_home(leaf, home):
                movable = gradient.layout is torch.strided and not gradient.is_inference()
                if not movable or overlaps(gradient) or not alone(gradient):
                    return Refused.because(Reason.ACCUMULATES)
                home = vacant_home(leaf, gradient)
                self._backend.copy([home.base], [gradient.detach()])
                home.take_in(gradient)
            self._homes[index] = home
        return None

    def sources(self) -> Mapping[int, tuple[str, torch.Tensor]]:
        """Name and tensor of each gradient that exists before the call, by the identity of its storage."""
        return {
            gradient.untyped_storage()._cdata: (name, self._homes[index].base if index in self._homes else gradient)
            for index, (name, gradient) in enumerate(zip(self._names, self._before, strict=True))
            if gradient is not None and gradient.layout is torch.strided
        }

    def note(self) -> None:
        """The eager run is over."""
        self._after = [*map(_gradient, self._leaves)]
        self._versions_after = _versions(self._after)
        for before, after in zip(self._before, self._after, strict=True):
            self._kinds.append("none" if after is None else "same" if after is before else "new")

    @property
    def changed(self) -> bool:
        """True where the call read a gradient, or left another one than it found."""
        same = all(before is after for before, after in zip(self._before, self._after, strict=True))
        return bool(self.read) or not same

    def _states(self) -> list[tuple[torch.Tensor | None, After]]:
        return list(zip(self._after, self._kinds, strict=True))

    def find_read(self, used: Collection[int], written: Collection[int]) -> set[str]:
        """Take note of which gradients the call used and wrote, by the identities of the storages; their names."""
        storages = {
            index: gradient.untyped_storage()._cdata
            for index, gradient in enumerate(self._before)
            if gradient is not None and gradient.layout is torch.strided
        }
        self.read = {index for index, storage in storages.items() if storage in used}
        self._written = {index for index in self.read if storages[index] in written}
        return {self._names[index] for index in self.read}

    def prepare(self) -> Refused | None:
        """Choose the homes of what the graph will make, after the eager run. Raises torch.OutOfMemoryError."""
        if not SUPPORTED and (self.read or "new" in self._kinds):
            return Refused.because(Reason.GRADIENT_HOLDERS)
        for index, (gradient, kind) in enumerate(self._states()):
            if kind != "same":
                self._before[index] = None  # only the person may still hold it
            if kind != "new" or gradient is None:
                continue
            if gradient.layout is not torch.strided:
                return Refused.because(Reason.GRADIENT_DENSITY)
            if gradient.requires_grad:
                return Refused.because(Reason.GRADIENT_RECORDED)
            home = self._homes.get(index)
            if home is None:
                home = self._homes[index] = vacant_home(self._leaves[index], gradient)
            elif home.occupied(by_its_leaf=False) or not home.fits(gradient):
                return Refused.because(Reason.GRADIENT_REPLACED)
        return None

    def enter(self) -> None:
        """Set every `.grad` as it was before the call, for the captured run.

        They are other objects than those of the person, which code may hold and set again: that must be seen.
        """
        self._entered: list[torch.Tensor | None] = []
        for index, leaf in enumerate(self._leaves):
            before = self._before[index]
            if not self.present[index]:
                before = None
            elif index in self.read:
                before = self._homes[index].alias()
            elif before is None or before.layout is torch.strided:  # nobody reads it: something of its shape will do
                before = torch.empty((), dtype=leaf.dtype, device=leaf.device).expand(leaf.shape)
            self._entered.append(before)
            leaf.grad = before

    def finish(self) -> None:
        """The last part of the captured run: copy what it made to the homes. Called while the capture goes on."""
        self._left = [*map(_gradient, self._leaves)]
        for index, (left, entered) in enumerate(zip(self._left, self._entered, strict=True)):
            if left is not None and left is not entered and self._kinds[index] == "new":
                self._made[index] = left
        made = [
            (self._homes[index].base, gradient.detach())
            for index, gradient in self._made.items()
            if gradient.shape == self._leaves[index].shape and gradient.layout is torch.strided
        ]
        with torch.no_grad():
            copy_each([home for home, _ in made], [gradient for _, gradient in made])

    def restore(self) -> None:
        """Set every `.grad` as the eager run left it."""
        for leaf, after in zip(self._leaves, self._after, strict=True):
            leaf.grad = after

    def compare(self, born: Collection[int], results: Sequence[torch.Tensor]) -> Refused | None:
        """Did the captured run leave `.grad` as the eager one? `born` are storages that it made, `results` what it
        returned. The gradients of the captured run are let go."""
        differs = Refused.because(Reason.GRADIENTS_DIFFER)
        returned = {tensor.untyped_storage()._cdata for tensor in results}
        shared: set[int] = set()
        for index, (after, kind) in enumerate(self._states()):
            left, entered = self._left[index], self._entered[index]
            if (left is None) != (kind == "none") or (left is entered) != (kind == "same" or entered is left is None):
                return differs
            if kind != "new" or left is None or after is None:
                continue
            if left.requires_grad or not self._homes[index].fits(left) or not self._homes[index].fits(after):
                return differs
            storage = left.untyped_storage()._cdata
            if storage not in born:
                return Refused.because(Reason.GRADIENT_FOREIGN)
            if storage in returned:
                return Refused.because(Reason.GRADIENT_RETURNED)
            if storage in shared:
                return Refused.because(Reason.GRADIENTS_SHARE)
            shared.add(storage)
        self._left, self._made, self._entered = [], {}, []
        return None

    def pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Of each gradient that the graph makes, what the eager run made and what a replay has."""
        return [
            (gradient.detach(), self._homes[index].base)
            for index, (gradient, kind) in enumerate(self._states())
            if kind == "new" and gradient is not None
        ]

    def replaced(self) -> dict[int, torch.Tensor]:
        """Homes of gradients that the call reads, and replaces or drops, by the identity of their storage."""
        homes = [self._homes[index] for index in self.read if self._kinds[index] != "same"]
        return {home.cdata: home.base for home in homes}

    def plan(self) -> GradientPlan:
        kinds = list(enumerate(self._kinds))
        before, after = self._versions_before, self._versions_after
        same = [i for i in sorted(self._written) if self._kinds[i] == "same"]
        return GradientPlan(
            leaves=tuple(self._leaves),
            present=self.present,
            read=[(self._leaves[i], self._homes[i]) for i in sorted(self.read)],
            written=[(self._homes[i], after[i] - before[i]) for i in same],
            made=[(self._leaves[i], self._homes[i], after[i]) for i, kind in kinds if kind == "new"],
            dropped=[self._leaves[i] for i, kind in kinds if kind == "none" and self.present[i]],
        )

    def forget(self) -> None:
        """Let go of every gradient: they are the person's."""
        self._before = self._after = self._left = self._entered = []
        self._made = {}

    def restore_versions(self) -> None:
        """Set the counters of all gradients as the eager run left them."""
        pairs = zip(self._after, self._versions_after, strict=True)
        found = [(gradient, version) for gradient, version in pairs if gradient is not None]
        set_versions([gradient for gradient, _ in found], [version for _, version in found])

    @property
    def homes(self) -> Collection[int]:
        """The identities of the storages of all homes. Nobody but they may hold them, or they seem occupied."""
        return {home.cdata for home in self._homes.values()}


def _versions(gradients: Sequence[torch.Tensor | None]) -> list[int]:
    """0 where there is no gradient."""
    return [0 if gradient is None else versions_of([gradient])[0] for gradient in gradients]
