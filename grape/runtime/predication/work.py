"""What the body of a decision does, counted while it is recorded: from this the cost model chooses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from ..backends.protocol import CaptureFailed
from .costs import BodyWork
from .lowering import lowered
from .safety import refuse_unsafe
from .writes import written_by

__all__ = ["Work"]


@dataclass(slots=True, eq=False)
class Work:
    """Counts what a body does; see `BodyWork`. Works of bodies inside count too."""

    kernels: int = 0
    nbytes: int = 0
    writes: int = 0
    written_nbytes: int = 0
    selectable: bool = True
    _own: dict[int, StorageWeakRef] = field(default_factory=dict)

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not isinstance(func, torch._ops.OpOverload) or func.is_view:
            return
        self.kernels += 1
        self.nbytes += sum(leaf.nbytes for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
        for tensor in written_by(func, args, kwargs):
            if tensor.untyped_storage()._cdata not in self._own:
                self.writes += 1
                self.written_nbytes += tensor.nbytes
        if self.selectable:
            try:
                with lowered(None):  # a question, no refusal of the program
                    refuse_unsafe(func, args, kwargs)
            except CaptureFailed:
                self.selectable = False

    def made(self, func: Any, result: Any) -> None:
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and not getattr(func, "is_view", False):
                self.nbytes += leaf.nbytes
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
        )
