"""Keeps what a region writes of memory that existed before the call, so that a replay can start where the call did."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from ...model import Later, Reason, Refused, RetryLater
from ...tracing import RecordedCall
from ..buffers.placeholders import Placeholders, whole
from ..guarding.structure import Layout
from ..training import GradientCapture
from .stop import Stop


class Snapshot:
    """Of one call, made before it. `sources` are name and tensor of what the code can reach, by storage.

    Copied is what `wanted` names: arguments by path, tensors from outside by name. Raises torch.OutOfMemoryError.
    """

    def __init__(
        self, wanted: Collection[str], layout: Layout, sources: Mapping[int, tuple[str, torch.Tensor]]
    ) -> None:
        self._wanted = wanted
        self._layout = layout
        self._sources = sources
        paths = layout.paths
        self.inputs = {i: leaf.detach().clone() for i, leaf in enumerate(layout.leaves) if paths[i] in wanted}
        self._bound = {i: whole(layout.leaves[i]).clone() for i in self.inputs}
        self._contents = {key: whole(tensor).clone() for key, (where, tensor) in sources.items() if where in wanted}
        self.externals: dict[int, torch.Tensor] = {}
        """The tensors behind the storages that the trace reads from outside, by storage number."""
        self._written: set[int] = set()
        self.written_leaves: tuple[int, ...] = ()
        """The arguments that the call writes."""
        self.in_place: list[torch.Tensor] = []
        """Memory of the person's that replays write where it lies."""
        self.after: list[torch.Tensor] = []
        """Contents that the eager call left there."""
        self._before: list[torch.Tensor] = []
        self._replaced: Mapping[int, torch.Tensor] = {}
        self._disturbed = False

    def find_externals(self, call: RecordedCall) -> None:
        """Name every storage that the trace reads from outside. Raises `Stop` where one cannot be found."""
        for number in call.trace.external_storages:
            source = self._sources.get(call.storages[number].cdata)
            if source is None or source[1].untyped_storage()._cdata != call.storages[number].cdata:
                op = next(op for op in call.trace.ops if any(v.storage == number for v in op.tensors()))
                raise Stop(Refused.because(Reason.FOREIGN_READ, op.user or op.inner, operator=op.name))
            self.externals[number] = source[1]

    def find_writes(self, call: RecordedCall, gradients: GradientCapture) -> None:
        """A write to memory from before the call needs a copy; without one the next call makes it (raises `Stop`)."""
        trace = call.trace
        outside = set(trace.argument_storages) | set(trace.external_storages)
        self._written = {number for op in trace.ops for number in op.written if number in outside}
        numbers: dict[int, int] = {}
        self.written_leaves = tuple(
            index
            for index, leaf in enumerate(self._layout.leaves)
            if numbers.setdefault(leaf.untyped_storage()._cdata, len(numbers)) in self._written
        )
        used = {call.storages[number].cdata for number in trace.external_storages}
        written = {call.storages[number].cdata for number in self._written}
        found = {self._layout.paths[i] for i in self.written_leaves} | gradients.find_read(used, written)
        for number in self._written & set(self.externals):
            found.add(self._sources[call.storages[number].cdata][0])
        names = tuple(sorted(found))
        if not found <= set(self._wanted):
            raise Stop(RetryLater(later=Later.WRITES, refused=Refused.because(Reason.WRITES), names=names))

    @property
    def writes(self) -> bool:
        """True where the call writes memory from before it."""
        return bool(self._written)

    @property
    def changed(self) -> list[torch.Tensor]:
        """The tensors from outside that the call writes."""
        return [self.externals[number] for number in self._written & set(self.externals)]

    def keep(self, call: RecordedCall, placeholders: Placeholders, replaced: Mapping[int, torch.Tensor]) -> None:
        """Where the replay will write into the person's own memory, keep what the eager call left there.

        `replaced` are homes of gradients that the call reads, and replaces or drops, by their storage.
        """
        self._replaced = replaced
        for number in self._written & set(self.externals):
            if call.storages[number].cdata in replaced:
                continue
            self.in_place.append(_typed(self.externals[number]))
            self._before.append(self._contents[call.storages[number].cdata])
        for index in set(self.written_leaves).intersection(placeholders.in_place):
            self.in_place.append(_typed(self._layout.leaves[index]))
            self._before.append(self._bound[index])
        self.after = [tensor.clone() for tensor in self.in_place]

    def disturb(self) -> None:
        """The code is about to run again: what lies on the host is written by a capture, too."""
        self._disturbed = True

    def rewind(self) -> None:
        """Set the person's memory to what the call found."""
        self.disturb()
        for tensor, before in zip(self.in_place, self._before, strict=True):
            tensor.copy_(before.view(tensor.dtype))
        for cdata, tensor in self._replaced.items():
            whole(tensor).copy_(self._contents[cdata])

    def settle(self) -> None:
        """Set it to what the eager call left, if anything of Grape's ran since."""
        if self._disturbed:
            for tensor, after in zip(self.in_place, self.after, strict=True):
                tensor.copy_(after)
            self._disturbed = False


def _typed(tensor: torch.Tensor) -> torch.Tensor:
    """All the memory behind a tensor, as elements of its dtype where the size allows."""
    everything = whole(tensor)
    return everything if everything.numel() % tensor.itemsize else everything.view(tensor.dtype)
