"""Counts what the body of a decision does while it is recorded: from this the cost model chooses."""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from ....model.call import Args, Kwargs
from ....tracing import Operator
from ...backends.operators import ALLOCATIONS, base_name
from ...backends.protocol import CaptureFailed
from ..lowering.lowering import lowered
from ..lowering.safety import refuse_unsafe
from ..lowering.writes import Place, place, written_by
from .costs import BodyWork


class Work:
    """Counts what a body does into `body`. Works of bodies inside count too."""

    def __init__(self, *, marked: bool) -> None:
        self.body = BodyWork(marked=marked)
        self._own: dict[int, StorageWeakRef] = {}
        self._written: dict[Place, StorageWeakRef] = {}

    def saw(self, func: Operator, args: Args, kwargs: Kwargs) -> None:
        body = self.body
        if func.is_view or base_name(func) in ALLOCATIONS:
            return
        body.kernels += 1
        body.nbytes += sum(leaf.nbytes for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
        for tensor in written_by(func, args, kwargs):
            storage = tensor.untyped_storage()
            if storage._cdata not in self._own and place(tensor) not in self._written:
                self._written[place(tensor)] = StorageWeakRef(storage)
                body.writes += 1
                body.written_nbytes += tensor.nbytes
        if body.selectable:
            try:
                with lowered(None):  # a question, no refusal of the program
                    refuse_unsafe(func, args, kwargs)
            except CaptureFailed:
                body.selectable = False

    def made(self, func: Operator, result: object) -> None:
        if func.is_view:
            return
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.body.nbytes += 0 if base_name(func) in ALLOCATIONS else leaf.nbytes
                storage = leaf.untyped_storage()
                if not func._schema.is_mutable:
                    self._own.setdefault(storage._cdata, StorageWeakRef(storage))
