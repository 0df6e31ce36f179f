"""Counts what the body of a decision does while it is recorded: from this the cost model chooses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from ....model.call import Args, Kwargs
from ...backends.protocol import CaptureFailed
from ..lowering.lowering import lowered
from ..lowering.safety import refuse_unsafe
from ..lowering.writes import Place, place, written_by
from .costs import BodyWork

__all__ = ["Work"]

_LAUNCH_NOTHING = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)


@dataclass(slots=True, eq=False)
class Work:
    """Counts what a body does; see `BodyWork`. Works of bodies inside count too. `marked`: see there."""

    kernels: int = 0
    nbytes: int = 0
    writes: int = 0
    written_nbytes: int = 0
    selectable: bool = True
    marked: bool = True
    _own: dict[int, StorageWeakRef] = field(default_factory=dict)
    _written: dict[Place, StorageWeakRef] = field(default_factory=dict)

    def saw(self, func: object, args: Args, kwargs: Kwargs) -> None:
        if not isinstance(func, torch._ops.OpOverload) or func.is_view or _launches_nothing(func):
            return
        self.kernels += 1
        self.nbytes += sum(leaf.nbytes for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
        for tensor in written_by(func, args, kwargs):
            storage = tensor.untyped_storage()
            if storage._cdata not in self._own and place(tensor) not in self._written:
                self._written[place(tensor)] = StorageWeakRef(storage)
                self.writes += 1
                self.written_nbytes += tensor.nbytes
        if self.selectable:
            try:
                with lowered(None):  # a question, no refusal of the program
                    refuse_unsafe(func, args, kwargs)
            except CaptureFailed:
                self.selectable = False

    def made(self, func: Any, result: object) -> None:
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and not getattr(func, "is_view", False):
                self.nbytes += 0 if _launches_nothing(func) else leaf.nbytes
                storage = leaf.untyped_storage()
                if not func._schema.is_mutable:
                    self._own.setdefault(storage._cdata, StorageWeakRef(storage))

    def total(self) -> BodyWork:
        return BodyWork(
            kernels=self.kernels,
            nbytes=self.nbytes,
            writes=self.writes,
            written_nbytes=self.written_nbytes,
            selectable=self.selectable,
            marked=self.marked,
        )


def _launches_nothing(func: Any) -> bool:
    return func._schema.name.removeprefix("aten::") in _LAUNCH_NOTHING
