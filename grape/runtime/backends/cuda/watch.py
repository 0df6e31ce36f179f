"""Watches the operators that a capture on CUDA records: random draws, and memory that bodies read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._pytree import tree_leaves

from ....model.call import Args, Kwargs
from ....tracing import OwnMode, issue
from ..operators import Function, draws
from ..protocol import CaptureFailed


class CaptureWatch(OwnMode):
    """Active while a body is captured. `drew`: the graph moves the generator of `device`.

    `body_nodes` counts the nodes of bodies, `loops` the bodies that run again and again. `lost_body`: a body's capture
    was invalidated, and the driver has freed a graph that the one around it refers to. Refusals count also where the
    person's code swallows them: `settle`.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self.drew = False
        self.depth = 0
        self.body_nodes = 0
        self.loops = 0
        self.lost_body = False
        self._failure: CaptureFailed | None = None
        self._broken = False
        self._loops: list[_Loop] = []

    def __torch_dispatch__(
        self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        kwargs = kwargs or {}
        if isinstance(func, torch._ops.OpOverload) and draws(func, args, kwargs):
            self.drew = self.drew or self._here(args, kwargs)
            if self.depth:
                raise self.refuse(CaptureFailed("GR405", f"{func} draws random numbers in a conditional body"))
        if not self._loops:
            return issue(func, args, kwargs)
        given = _storages((args, kwargs))
        for loop in self._loops:
            loop.reads(given)
        result = issue(func, args, kwargs)
        made = _storages(result)
        for loop in self._loops:
            loop.makes(made)
        return result

    def _here(self, args: Args, kwargs: Kwargs) -> bool:
        """True where an operator that draws does so on the device; what it draws on the CPU is no part of the graph."""
        devices = {leaf.device.type for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        return self._device.type in (devices or {torch.device(kwargs.get("device") or "cpu").type})

    def uses(self, tensor: torch.Tensor) -> None:
        """Something that is no operator reads it here, in each iteration of the loops around."""
        for loop in self._loops:
            loop.reads(_storages(tensor))

    def refuse(self, failure: CaptureFailed) -> CaptureFailed:
        """Note a refusal; the first one counts."""
        self._failure = self._failure or failure
        return failure

    def settle(self, error: BaseException | None = None) -> None:
        """Raise the first refusal, unless `error` is it. Call it when the capture is over, with what ended it."""
        refusable = error is None or isinstance(error, Exception)
        if self._failure is not None and self._failure is not error and refusable:
            raise self._failure from error
        if error is None and self._broken:
            raise CaptureFailed("GR405", "an exception left a conditional body and was caught outside of it")

    @contextmanager
    def inside(self, *, loop: bool) -> Iterator[None]:
        """Take what is recorded in the block as a body, which runs again and again where `loop` is set."""
        self.depth += 1
        if loop:
            self._loops.append(_Loop())
        try:
            yield
        except BaseException:
            self._broken = True
            raise
        finally:
            self.depth -= 1
            if loop:
                self._loops.pop()


class _Loop:
    """Memory from before a loop that its body reads: a later iteration reads it again, so that nothing made in the
    body may get it. What an iteration makes itself is made anew by the next."""

    def __init__(self) -> None:
        self._made: set[int] = set()
        self._held: dict[int, object] = {}

    def reads(self, storages: list[torch.UntypedStorage]) -> None:
        for storage in storages:
            if storage._cdata not in self._made:
                self._held.setdefault(storage._cdata, storage)

    def makes(self, storages: list[torch.UntypedStorage]) -> None:
        self._made.update(storage._cdata for storage in storages if storage._cdata not in self._held)


def _storages(tree: object) -> list[torch.UntypedStorage]:
    tensors = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))
    return [tensor.untyped_storage() for tensor in tensors if tensor.layout == torch.strided]
