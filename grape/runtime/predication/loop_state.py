"""The state of a loop that becomes a WHILE body."""

from __future__ import annotations

from collections import Counter

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from ...model.call import Args, Kwargs
from ...tracing import Operator
from ..backends.protocol import CaptureFailed
from .holders import storage_of
from .lowering.active import noted, refuse
from .lowering.flag import Flag, as_predicate
from .lowering.lowering import State
from .lowering.merge import UNBOUND, Unbound, copy_all_bits, copy_bits, require_alike, same_plain
from .lowering.writes import WriteMode, written_by

Key = tuple[int, ...]
"""A decision: its number in the program, or in the body that holds it, after that body's own (key, arm)."""


class Unsuited(CaptureFailed):
    """The decision with this key cannot be a node, but perhaps a select."""

    def __init__(self, key: Key, why: str) -> None:
        super().__init__("GR102", why)
        self.key = key


class LoopState:
    """The carried values of a WHILE body at fixed addresses, and what the body does to the originals.

    The body sees copies. A plain program sees the originals in its first iteration, which shows only where it writes
    a carried tensor in place. That is right again if it hands on the very tensor that it wrote: then the copy's
    contents are written back to the original after the loop. Everything else is refused.
    """

    def __init__(self, mode: WriteMode, device: torch.device, key: Key, carried: State) -> None:
        self._mode = mode
        self._key = key
        self._carried = carried
        self._touched: set[int] = set()
        self._overwritten: set[int] = set()
        self._own: dict[int, StorageWeakRef] = {}
        self._after: State = ()
        with torch.no_grad(), self._mode.aside():
            self.values = tuple([self._fixed(value, device) for value in carried])

    def _fixed(self, value: object, device: torch.device) -> object:
        if isinstance(value, bool):
            return Flag(torch.full((), value, dtype=torch.bool, device=device))
        if isinstance(value, Flag):
            return Flag(value.tensor.clone())
        if not isinstance(value, torch.Tensor):
            return value
        require_alike(value, value)
        if value.device.type != device.type:
            raise refuse(f"a loop on {device} carries a tensor on {value.device}")
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        if any(size > 1 and step == 0 for size, step in zip(value.shape, value.stride(), strict=True)):
            raise refuse("a loop carries a tensor that overlaps itself")
        copy_bits(made, value)
        return made

    def saw(self, func: Operator, args: Args, kwargs: Kwargs) -> None:
        self._touched.update(storage_of(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
        self._overwritten.update(map(storage_of, written_by(func, args, kwargs)))

    def made(self, func: Operator, result: object) -> None:
        if func.is_view or func._schema.is_mutable:
            return
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                # The weak reference keeps the address of the storage object from being used again.
                self._own.setdefault(storage_of(leaf), StorageWeakRef(leaf.untyped_storage()))

    def advance(self, after: State) -> None:
        """Record that the next iteration sees `after`."""
        self._after = after
        with torch.no_grad(), self._mode.aside():
            copies = []
            mine = {storage_of(tensor) for tensor in map(_tensor, self.values) if tensor is not None}
            for value, new in zip(self.values, after, strict=True):
                if value is new:
                    continue
                target, source = self._pair(value, new)
                if target is not None and source is not None:
                    # A body may hand on another carried value: all are read before any is written.
                    copies.append((target, source.clone() if storage_of(source) in mine else source))
            copy_all_bits(copies)

    def _pair(self, value: object, new: object) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        if isinstance(value, Flag):
            if isinstance(new, (bool, Flag)):
                made = new.tensor if isinstance(new, Flag) else torch.full_like(value.tensor, new)
                return value.tensor, made
            if isinstance(new, torch.Tensor) and new.numel() == 1:
                return value.tensor, as_predicate(new)
        elif isinstance(value, torch.Tensor) and isinstance(new, torch.Tensor):
            require_alike(value, new)
            return value, new
        elif isinstance(value, Unbound) or same_plain(value, new):
            # Bound in the loop only: unbound afterwards and at the start of each iteration, so that a use fails.
            return None, None
        raise noted(
            Unsuited(
                self._key, f"a Python value changes in a loop that the device ends ({_text(value)} -> {_text(new)})"
            )
        )

    def finish(self) -> State:
        """The values after the loop."""
        originals = Counter(storage_of(value) for value in map(_tensor, self._carried) if value is not None)
        results: list[object] = []
        for value, fixed, new in zip(self._carried, self.values, self._after, strict=True):
            if isinstance(value, torch.Tensor):
                assert isinstance(fixed, torch.Tensor) and isinstance(new, torch.Tensor)
                results.append(self._result(value, fixed, new, originals[storage_of(value)]))
            elif isinstance(fixed, Flag):
                results.append(value if fixed is new else fixed)
            else:
                results.append(value if value is new or same_plain(value, new) else UNBOUND)
        return tuple(results)

    def _result(self, value: torch.Tensor, fixed: torch.Tensor, new: torch.Tensor, sharing: int) -> torch.Tensor:
        if storage_of(value) in self._overwritten:
            raise refuse("a loop writes to a carried tensor by another name", "GR102")
        if storage_of(fixed) not in self._overwritten:
            if fixed is new:
                return value
            shared = self._mode.ties.partners(new) | ({storage_of(new)} - self._own.keys())
            if shared & self._overwritten:
                # The next iteration of a plain program would see later writes; a copy does not.
                raise refuse("a loop hands on memory that it writes", "GR102")
            self._mode.ties.tie(fixed, value)
            self._mode.ties.tie(fixed, new)
            return fixed
        if fixed is not new or sharing > 1 or storage_of(value) in self._touched:
            raise refuse("a loop writes to a carried tensor in place, and hands on another one", "GR102")
        with torch.no_grad():
            copy_bits(value, fixed)
        return value


def _text(value: object) -> str:
    return repr(value) if value is None or isinstance(value, (int, float, str)) else type(value).__name__


def _tensor(value: object) -> torch.Tensor | None:
    return value.tensor if isinstance(value, Flag) else value if isinstance(value, torch.Tensor) else None
