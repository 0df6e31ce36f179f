"""Fixed addresses for the tensors that enter a region.

Arguments that share a storage share a placeholder, so that aliasing inside the region is what it was outside. An
argument that has always lain at one address is bound where it lies and never copied.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from .backends.protocol import Backend

__all__ = ["Placeholders"]


class Placeholders:
    """The tensors that stand for `leaves` in a capture, in order: `tensors`, with their `addresses`.

    `copied` are the indices of leaves that have memory of their own here; the others are bound where they lie
    (`bound`) or lie on the host (`host`).
    """

    def __init__(self, backend: Backend, leaves: Sequence[torch.Tensor], bound: Collection[int]) -> None:
        self.tensors: list[torch.Tensor] = []
        self.bound: list[int] = []
        self.copied: list[int] = []
        self.host: list[int] = []
        groups = _groups(leaves)
        in_place = {key for key, members in groups.items() if all(i in bound for i in members)}
        flats = {
            key: _flat(backend, [leaves[i] for i in members])
            for key, members in groups.items()
            if key not in in_place and leaves[members[0]].device.type == backend.device.type
        }
        for index, leaf in enumerate(leaves):
            key = leaf.untyped_storage()._cdata
            if key in flats:
                flat, base = flats[key]
                tensor = flat.as_strided(leaf.shape, leaf.stride(), leaf.storage_offset() - base)
                self.copied.append(index)
            elif key in in_place and leaf.device.type == backend.device.type:
                tensor = leaf.detach()
                self.bound.append(index)
            else:
                tensor = leaf.detach().clone()
                self.host.append(index)
            if leaf.requires_grad and not tensor.requires_grad:
                tensor = tensor.detach().requires_grad_()
            self.tensors.append(tensor)
        self.addresses = [tensor.data_ptr() for tensor in self.tensors]
        self.nbytes = sum(flat.nbytes for flat, _ in flats.values())


def _groups(leaves: Sequence[torch.Tensor]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for index, leaf in enumerate(leaves):
        groups.setdefault(leaf.untyped_storage()._cdata, []).append(index)
    return groups


def _flat(backend: Backend, members: Sequence[torch.Tensor]) -> tuple[torch.Tensor, int]:
    """Memory for everything between the first and the last element that the members touch, and where it starts."""
    base = min(member.storage_offset() for member in members)
    end = max(member.storage_offset() + extent(member) for member in members)
    return backend.empty_strided((max(0, end - base),), (1,), members[0].dtype), base


def extent(tensor: torch.Tensor) -> int:
    """Elements from the first to past the last one that a tensor touches; 0 for an empty tensor."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
