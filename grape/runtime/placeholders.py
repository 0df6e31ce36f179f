"""Fixed addresses for the tensors that enter a region.

Arguments that share a storage share a placeholder, so that aliasing inside the region is what it was outside. An
argument that has always lain at one address is bound where it lies and never copied.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from .backends.protocol import Backend

__all__ = ["Arena", "Placeholders", "distinct", "extent", "whole"]

_ALIGNMENT = 512
"""What the CUDA caching allocator aligns to; kernels are chosen by alignment."""


class Arena:
    """Memory for placeholders, shared by all graphs: a placeholder is filled before each replay and read by it alone.

    So the largest set of placeholders counts, not the sum. A buffer that became too small lives on as long as graphs
    that were captured with it.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._buffer: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        return self._buffer.nbytes if self._buffer is not None else 0

    def clear(self) -> None:
        self._buffer = None

    def cut(self, sizes: Sequence[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Disjoint stretches of so many bytes each, as uint8 tensors; and the buffer that must live as long as they.

        Each stretch has a storage of its own, so that placeholders alias each other only where arguments do.
        """
        starts = [0]
        for size in sizes:
            starts.append(-(-(starts[-1] + size) // _ALIGNMENT) * _ALIGNMENT)
        if self._buffer is None or self._buffer.numel() < starts[-1]:
            room = max(starts[-1], 2 * self.nbytes, 1 << 20)
            self._buffer = self._backend.empty_strided((room,), (1,), torch.uint8)
        address, device = self._buffer.data_ptr(), self._buffer.device
        pieces = []
        for start, size in zip(starts, sizes, strict=False):
            storage = torch._C._construct_storage_from_data_pointer(address + start, device, size)
            pieces.append(torch.empty(0, dtype=torch.uint8, device=device).set_(storage, 0, (size,), (1,)))
        return self._buffer, pieces


class Placeholders:
    """The tensors that stand for `leaves` in a capture, in order: `tensors`, with their `addresses`.

    `copied` are the indices of leaves that have memory of their own here; the others are bound where they lie
    (`bound`) or lie on the host (`host`).
    """

    def __init__(
        self, arena: Arena, device: torch.device, leaves: Sequence[torch.Tensor], bound: Collection[int]
    ) -> None:
        self.tensors: list[torch.Tensor] = []
        self.bound: list[int] = []
        self.copied: list[int] = []
        self.host: list[int] = []
        groups = _groups(leaves)
        in_place = {key for key, members in groups.items() if all(i in bound for i in members)}
        moved = {
            key: [leaves[i] for i in members]
            for key, members in groups.items()
            if key not in in_place and leaves[members[0]].device.type == device.type
        }
        spans = {key: _span(members) for key, members in moved.items()}
        self._buffer, pieces = arena.cut([(end - base) * moved[key][0].itemsize for key, (base, end) in spans.items()])
        flats = {
            key: (piece.view(moved[key][0].dtype), spans[key][0]) for key, piece in zip(spans, pieces, strict=True)
        }
        for index, leaf in enumerate(leaves):
            key = leaf.untyped_storage()._cdata
            if key in flats:
                flat, base = flats[key]
                tensor = flat.as_strided(leaf.shape, leaf.stride(), int(leaf.storage_offset()) - base)
                self.copied.append(index)
            elif key in in_place and leaf.device.type == device.type:
                tensor = leaf.detach()
                self.bound.append(index)
            else:
                tensor = leaf.detach().clone()
                self.host.append(index)
            if leaf.requires_grad and not tensor.requires_grad:
                tensor = tensor.detach().requires_grad_()
            self.tensors.append(tensor)
        self.targets = [distinct(tensor) for tensor in self.tensors]
        self.flat = [_flattened(tensor) if i in self.copied else None for i, tensor in enumerate(self.tensors)]
        self.addresses = [tensor.data_ptr() for tensor in self.tensors]


def _groups(leaves: Sequence[torch.Tensor]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for index, leaf in enumerate(leaves):
        groups.setdefault(leaf.untyped_storage()._cdata, []).append(index)
    return groups


def _span(members: Sequence[torch.Tensor]) -> tuple[int, int]:
    """The first element that the members touch, and the one past the last."""
    base = min(int(member.storage_offset()) for member in members)
    return base, max(base, *(int(member.storage_offset()) + extent(member) for member in members))


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
    """A strided placeholder as one stretch, gaps and all; None for a dense one.

    Copying the stretch instead of the elements lets many placeholders be filled in one launch.
    """
    if tensor.is_contiguous() or tensor.numel() == 0:
        return None
    return tensor.as_strided((extent(tensor),), (1,), int(tensor.storage_offset()))


def extent(tensor: torch.Tensor) -> int:
    """Elements from the first to past the last one that a tensor touches; 0 for an empty tensor."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
