"""Nullified writes: a dispatch mode that takes back what a block wrote where its predicate is false.

Before an operator writes to memory that existed before the block, its contents are kept, unless the block has kept the
same memory before. At the end of the block every kept piece is given back where the predicate is false, newest first,
as bits and on the device. Memory made inside the block is left alone: nobody outside knows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from ....errors import UsageError
from ....model.call import Args, Kwargs
from ....tracing import Operator, OwnMode, issue
from ....tracing.operators import facts_of, tensors_in
from ...backends.operators import Function, decompose, is_composite
from .active import refuse
from .merge import restore_bits
from .safety import harmless, refuse_unsafe

_aten = torch.ops.aten


class _Block:
    """One predicated block. `mask` is its predicate together with those of the blocks around it."""

    def __init__(self, pred: torch.Tensor, outer: _Block | None) -> None:
        self.pred = pred
        self._outer = outer
        self._mask: torch.Tensor | None = None
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._places: set[Place] = set()
        self._made: dict[int, StorageWeakRef] = {}

    def mask(self) -> torch.Tensor:
        if self._mask is None:
            self._mask = self.pred if self._outer is None else torch.logical_and(self._outer.mask(), self.pred)
        return self._mask

    def made_here(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._made

    def keeps(self, tensor: torch.Tensor) -> bool:
        """True where this memory was kept before. What it held then is given back last, over all that came later."""
        return place(tensor) in self._places

    def keep(self, tensor: torch.Tensor, before: torch.Tensor) -> None:
        self.kept.append((tensor.detach(), before))
        self._places.add(place(tensor))

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        # The weak reference keeps the address of the storage object from being used again.
        self._made.setdefault(storage._cdata, StorageWeakRef(storage))


class Ties:
    """Pairs of storages that share memory in one of the ways the data can go, and not in what was recorded.

    A merged value stands for one of two tensors; a plain program would have gone on with that very tensor. That
    shows only if one of the two is written while the other is alive. Such a write is refused.
    """

    def __init__(self) -> None:
        # By the address of the storage object, which the weak references keep from being used again.
        self._partners: dict[int, dict[int, StorageWeakRef]] = {}
        self._known: dict[int, StorageWeakRef] = {}

    def tie(self, merged: torch.Tensor, source: torch.Tensor) -> None:
        """`merged` stands for `source`, and for all that `source` may share memory with."""
        one, other = (StorageWeakRef(tensor.untyped_storage()) for tensor in (merged, source))
        for partner in (other, *self._alive(source)):
            if partner.cdata != one.cdata:
                self._add(one, partner)
                self._add(partner, one)

    def _add(self, one: StorageWeakRef, partner: StorageWeakRef) -> None:
        self._known.setdefault(one.cdata, one)
        self._partners.setdefault(one.cdata, {}).setdefault(partner.cdata, partner)

    def part(self, merged: torch.Tensor, source: torch.Tensor) -> None:
        """Nobody can tell any more whether these two share memory."""
        one, other = (tensor.untyped_storage()._cdata for tensor in (merged, source))
        self._partners.get(one, {}).pop(other, None)
        self._partners.get(other, {}).pop(one, None)

    def __bool__(self) -> bool:
        return bool(self._partners)

    def tied(self, tensor: torch.Tensor) -> bool:
        """True where a live storage may, in a plain program, be that of `tensor`."""
        return bool(self._alive(tensor))

    def pairs(self) -> list[tuple[StorageWeakRef, StorageWeakRef]]:
        """Live pairs, each in both orders. A region that lets both out of its hands must not be captured."""
        return [
            (self._known[cdata], partner)
            for cdata, partners in self._partners.items()
            if not self._known[cdata].expired()
            for partner in partners.values()
            if not partner.expired()
        ]

    def partners(self, tensor: torch.Tensor) -> set[int]:
        """The addresses of the live storages that may, in a plain program, be that of `tensor`."""
        return {partner.cdata for partner in self._alive(tensor)}

    def _alive(self, tensor: torch.Tensor) -> list[StorageWeakRef]:
        partners = self._partners.get(tensor.untyped_storage()._cdata, {})
        return [partner for partner in partners.values() if not partner.expired()]


class Observer(Protocol):
    """Told of every operator of a body, before it runs (`saw`) and after (`made`)."""

    def saw(self, func: Operator, args: Args, kwargs: Kwargs) -> None: ...

    def made(self, func: Operator, result: object) -> None: ...


class WriteMode(OwnMode):
    """Watches writes. `strict`: nothing may fail or depend on the host in a block, because a capture is under way."""

    def __init__(self, *, strict: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._strict = strict
        self._blocks: list[_Block] = []
        self.ties = Ties()
        self._observers: list[Observer] = []

    @contextmanager
    def block(self, pred: torch.Tensor) -> Iterator[None]:
        """Device work inside takes effect only where `pred` (0-dim bool) is true. The mode must be active."""
        block = _Block(pred, self._blocks[-1] if self._blocks else None)
        self._blocks.append(block)
        try:
            yield
        finally:
            self._blocks.pop()
            with _below(self):
                for written, before in reversed(block.kept):
                    restore_bits(_on(pred, written), written, before)

    @contextmanager
    def observed(self, observer: Observer) -> Iterator[None]:
        """Tell `observer` of the operators inside."""
        self._observers.append(observer)
        try:
            yield
        finally:
            self._observers.remove(observer)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Take what runs inside as no part of a body: it is neither nullified nor observed nor refused."""
        observers, self._observers = self._observers, []
        try:
            with _below(self):
                yield
        finally:
            self._observers = observers

    def mask(self) -> torch.Tensor | None:
        """Where the current block takes effect, the blocks around it included; None outside of any."""
        return self._blocks[-1].mask() if self._blocks else None

    def __torch_dispatch__(
        self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        kwargs = kwargs or {}
        if not self._observers:
            return self._carry_out(func, args, kwargs)
        if not isinstance(func, torch._ops.OpOverload):
            raise refuse(f"{func} in a body that may not run")
        if is_composite(func, args, kwargs):
            return decompose(self, func, args, kwargs)
        for observer in self._observers:
            observer.saw(func, args, kwargs)
        result = self._carry_out(func, args, kwargs)
        for observer in self._observers:
            observer.made(func, result)
        return result

    def _carry_out(self, func: Function, args: Args, kwargs: Kwargs) -> object:
        if not self._blocks:
            if self.ties:
                self._refuse_tied(func, args, kwargs)
            return issue(func, args, kwargs)
        if not isinstance(func, torch._ops.OpOverload):
            if self._strict:
                raise refuse(f"{func} in a body that may not run")
            return issue(func, args, kwargs)
        if is_composite(func, args, kwargs):
            return decompose(self, func, args, kwargs)
        if self._strict:
            refuse_unsafe(func, args, kwargs)
        args, kwargs = harmless(func, args, kwargs, self._blocks[-1].mask)
        self._refuse_tied(func, args, kwargs)
        self._keep(func, args, kwargs)
        result = issue(func, args, kwargs)
        self._note_made(func, args, kwargs, result)
        return result

    def _refuse_tied(self, func: object, args: Args, kwargs: Kwargs) -> None:
        for tensor in written_by(func, args, kwargs):
            if _has_storage(tensor) and self.ties.tied(tensor):
                raise refuse(
                    f"{func} writes to a tensor that shares memory with another one, or not, depending on data", "GR102"
                )

    def _keep(self, func: Operator, args: Args, kwargs: Kwargs) -> None:
        written = written_by(func, args, kwargs)
        for tensor in written:
            if not _has_storage(tensor):
                if self._strict:
                    raise refuse(f"{func} writes to a tensor that is not dense in a body that may not run")
                continue
            blocks = [block for block in self._blocks if not block.made_here(tensor)]
            if not blocks:
                continue
            self._require_keepable(func, tensor)
            blocks = [block for block in blocks if not block.keeps(tensor)]
            if tensor.numel() and blocks:
                with torch.no_grad():
                    before = tensor.detach().clone()
                for block in blocks:
                    block.keep(tensor, before)

    def _require_keepable(self, func: Operator, tensor: torch.Tensor) -> None:
        if torch.is_grad_enabled() and tensor.requires_grad:
            why = f"{func} writes to a tensor that needs gradients, in a block that may not run"
            raise refuse(why) if self._strict else UsageError(f"{why}; use grape.cond, or torch.no_grad()")
        resizes = torch.Tag.inplace_view in func.tags or "resize" in func._schema.name
        if self._strict and (resizes or tensor.numel() == 0):
            raise refuse(f"{func} changes the shape of a tensor in a body that may not run")

    def _note_made(self, func: Operator, args: Args, kwargs: Kwargs, result: object) -> None:
        """Note what is new: storages among the results that were not among the arguments, and constants."""
        given = set()
        if func is not _aten.lift_fresh.default:
            given = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if _has_storage(leaf)}
        for leaf in tree_leaves(result):
            if _has_storage(leaf) and leaf.untyped_storage()._cdata not in given:
                for block in self._blocks:
                    block.add(leaf)


@contextmanager
def _below(mode: WriteMode) -> Iterator[None]:
    """Give back as a plain program would write: seen by modes further out, not by this one."""
    blocks, mode._blocks = mode._blocks, []
    ties, mode.ties = mode.ties, Ties()
    try:
        yield
    finally:
        mode._blocks, mode.ties = blocks, ties


Place = tuple[int, int, tuple[int, ...], tuple[int, ...], int]


def place(tensor: torch.Tensor) -> Place:
    """Which memory a tensor covers, whatever its dtype: equal for equal memory while its storage lives."""
    storage, offset = tensor.untyped_storage()._cdata, int(tensor.storage_offset())
    return storage, offset, tuple(tensor.shape), tensor.stride(), tensor.element_size()


def written_by(func: object, args: Args, kwargs: Kwargs) -> list[torch.Tensor]:
    """The tensors that an operator writes in place or through `out=`."""
    if not isinstance(func, torch._ops.OpOverload):
        return []
    facts = facts_of(func)
    given: list[object] = [
        args[position] if not keyword_only and position < len(args) else kwargs.get(name)
        for position, name, keyword_only in facts.writes
    ]
    if facts.statistics is not None:
        given += args[facts.statistics[0] : facts.statistics[1] + 1]
    return [tensor for value in given for tensor in tensors_in(value)]


def _has_storage(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided and torch._C._has_storage(value)


def _on(pred: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The predicate where `tensor` lives. Eager blocks may write to the CPU under a predicate of the GPU."""
    return pred if pred.device == tensor.device else pred.to(tensor.device)
