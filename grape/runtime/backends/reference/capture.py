"""Recording: a dispatch mode that turns the operators of a body into steps of a tape, executing none of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from ....model.call import Args, Kwargs
from ....model.overlap import OverlapPlan
from ....tracing import Operator, OwnMode
from ..operators import ALLOCATIONS, base_name, decompose, draws, is_composite
from ..protocol import CaptureFailed
from .branches import ReferenceBranches
from .graph import Attachment, Constant, External, Operation, Program, Step
from .memory import Arena, Lenders, alias, bare, poison
from .metadata import Probe, probe

_aten = torch.ops.aten
_MASKED_WRITE = {_aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default}


class CaptureMode(OwnMode):
    """Active while a body is captured. `failure` is the first refusal, also where the body swallowed it."""

    def __init__(self, arena: Arena, lenders: Lenders) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._arena = arena
        self._lenders = lenders
        self._steps: list[Step] = []
        self._made: list[tuple[StorageWeakRef, torch.Tensor]] = []
        self._externals: dict[int, torch.UntypedStorage] = {}
        self._depth = 0
        self._used_in_bodies: list[object] = []
        self.failure: CaptureFailed | None = None

    def __torch_dispatch__(self, func: object, types: object, args: Args = (), kwargs: Kwargs | None = None) -> object:
        try:
            return self._dispatch(func, args, kwargs or {})
        except CaptureFailed as failure:
            self.refuse(failure)
            raise

    def refuse(self, failure: CaptureFailed) -> None:
        """Note a refusal; the first one counts."""
        self.failure = self.failure or failure

    @contextmanager
    def body(self, pred: torch.Tensor, make: Callable[[torch.Tensor, tuple[Step, ...]], Step]) -> Iterator[None]:
        """Make what is recorded inside one step, `make(pred, steps)`."""
        try:
            if pred.dtype != torch.bool or pred.dim() != 0:
                raise CaptureFailed("GR405", "the condition of a body must be a bool tensor without dimensions")
            _require_plain("a conditional body", pred)
        except CaptureFailed as failure:
            self.refuse(failure)
            raise
        outer, self._steps = self._steps, []
        self._depth += 1
        try:
            with bare():
                condition = self._by_address(pred)
            yield
        finally:
            steps, self._steps = tuple(self._steps), outer
            self._depth -= 1
            if not self._depth:
                self._used_in_bodies.clear()
        self._steps.append(make(condition, steps))

    def branches(self, plan: OverlapPlan) -> ReferenceBranches:
        """What is recorded from here on, until they are joined, runs in the lanes of the plan."""
        return ReferenceBranches(plan, self._steps, self._arena)

    def finish(self, *, debug_poison: bool) -> Program:
        """What was recorded. Call it when the body's locals are gone and its result is still held.

        With `debug_poison` a replay fills the outputs before it and the scratch after it, so that stale reads are seen.
        """
        kept, externals = [], []
        for address, storage in self._externals.items():
            lender = self._lenders.of(storage)
            if lender is not None:
                externals.append(External(lender, address))
                continue
            # Made by the body outside the dispatcher and held by nothing but this capture: it lives with the graph.
            if torch._C._storage_Use_Count(storage._cdata) == 1:
                kept.append(storage)
            else:
                externals.append(External(StorageWeakRef(storage), address))
        self._externals.clear()
        made = self._made if debug_poison else ()
        outputs = tuple(twin for ref, twin in made if not ref.expired())
        taken = {twin.data_ptr() for twin in outputs}
        scratch = tuple(twin for _, twin in made if twin.data_ptr() not in taken)
        return Program(tuple(self._steps), Attachment(tuple(externals), tuple(kept), outputs, scratch))

    def _dispatch(self, func: object, args: Args, kwargs: Kwargs) -> object:
        if not isinstance(func, torch._ops.OpOverload):
            raise CaptureFailed("GR405", f"{func} cannot be captured on the CPU")
        if func.namespace == "profiler":  # marks in a profile (`record_function`)
            return func(*args, **kwargs)
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        for tensor in tensors:
            _require_plain(func, tensor)
        if any(type(leaf) is torch.Generator and not _is_default(leaf) for leaf in leaves):
            raise CaptureFailed("GR405", f"{func} draws from a generator of its own, which a replay would not reset")
        if is_composite(func, args, kwargs):
            return decompose(self, func, args, kwargs)
        _refuse_host_reads(func, args)
        if func is _aten.lift_fresh.default:
            return self._constant(args[0])
        if func.is_view or _is_metadata_only(func):
            with bare():
                return func(*args, **kwargs)
        if self._depth and draws(func, args, kwargs):
            raise CaptureFailed("GR405", f"{func} draws random numbers in a conditional body")
        return self._record(func, args, kwargs)

    def _constant(self, value: torch.Tensor) -> torch.Tensor:
        with bare():
            target = self._allocate(value)
            self._steps.append(Constant(value.clone(memory_format=torch.preserve_format), alias(target)))
            return target

    def _record(self, func: Operator, args: Args, kwargs: Kwargs) -> object:
        trial = probe(func, args, kwargs)
        with bare():
            for real, tried in trial.arguments:
                self._follow_resize(func, real, tried)
            results, spec = tree_flatten(trial.results)
            outputs, fresh = [], []
            for result in results:
                existing = _argument_behind(trial, result)
                is_fresh = existing is None and isinstance(result, torch.Tensor)
                outputs.append(self._allocate(result) if is_fresh else result if existing is None else existing)
                fresh.append(is_fresh)
            works = any(fresh) or func._schema.is_mutable or not results
            if works and base_name(func) not in ALLOCATIONS:
                aliases: dict[int, torch.Tensor] = {}  # attention asks whether two arguments are one tensor

                def one(tensor: torch.Tensor) -> torch.Tensor:
                    if id(tensor) not in aliases:
                        aliases[id(tensor)] = self._by_address(tensor)
                    return aliases[id(tensor)]

                step_args, step_kwargs = tree_map_only(torch.Tensor, one, (args, kwargs))
                targets = tuple(alias(out) if new else None for out, new in zip(outputs, fresh, strict=True))
                self._steps.append(Operation(func, step_args, step_kwargs, targets))
        return tree_unflatten(outputs, spec)

    def _allocate(self, like: torch.Tensor) -> torch.Tensor:
        """A poisoned tensor in the arena, laid out like a trial's result."""
        if like.layout != torch.strided or like.device.type != "cpu":
            raise CaptureFailed("GR405", f"a {like.layout} tensor on {like.device} cannot be captured on the CPU")
        if any(size > 1 and step == 0 for size, step in zip(like.shape, like.stride(), strict=True)):
            raise CaptureFailed("GR405", "an operator whose result overlaps itself cannot be captured on the CPU")
        made = self._arena.empty_strided(like.shape, like.stride(), like.dtype)
        if made.numel():
            poison(made)
            self._made.append((StorageWeakRef(made.untyped_storage()), alias(made)))
        return made

    def _by_address(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.nbytes() and not self._arena.owns(storage.data_ptr()):
            self._externals.setdefault(storage.data_ptr(), storage)
        if self._depth:
            # A later iteration reads it again: until then nothing else may get this memory.
            self._used_in_bodies.append(storage)
        return alias(tensor)

    def _follow_resize(self, func: object, real: torch.Tensor, tried: torch.Tensor) -> None:
        """Give `real` the shape that the operator gave its trial: an `out=` that was empty gets memory."""
        if real.shape == tried.shape and real.stride() == tried.stride():
            return
        if real.numel():
            raise CaptureFailed("GR405", f"{func} resizes a tensor that holds data")
        made = self._allocate(tried)
        real.set_(made.untyped_storage(), 0, made.shape, made.stride())


def _argument_behind(trial: Probe, result: object) -> torch.Tensor | None:
    """The real tensor behind a result that is, or is a view of, an argument; None for a new one or no tensor."""
    if not isinstance(result, torch.Tensor) or result.is_sparse:
        return None
    for real, tried in trial.arguments:
        if result is tried:
            return real
    if result.numel() == 0:
        return None
    storage = StorageWeakRef(result.untyped_storage())
    for real, tried in trial.arguments:
        if StorageWeakRef(tried.untyped_storage()) == storage:
            return real.as_strided(result.shape, result.stride(), result.storage_offset())
    return None


def _is_default(generator: Any) -> bool:
    default: Any = torch.default_generator
    return bool(generator._cdata == default._cdata)


def _require_plain(func: object, tensor: torch.Tensor) -> None:
    if tensor.device.type != "cpu":
        raise CaptureFailed("GR405", f"{func} uses a tensor on {tensor.device}; the tape captures the CPU only")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise CaptureFailed("GR405", f"{func} uses a tensor that is not dense ({tensor.layout}, {tensor.dtype})")
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise CaptureFailed("GR405", f"{func} uses a {type(tensor).__name__}, which dispatches operators itself")


def _refuse_host_reads(func: Operator, args: Args) -> None:
    if torch.Tag.data_dependent_output in func.tags:
        raise CaptureFailed("GR101", f"{func} reads a tensor's value on the host")
    if func in _MASKED_WRITE:
        accumulate = len(args) > 3 and args[3]
        # One value under one mask is a masked fill, which needs no count of the mask.
        if _has_mask(args[1]) and (accumulate or args[2].numel() != 1):
            raise CaptureFailed("GR103", f"{func} writes through a boolean mask: how many elements depends on data")
    elif torch.Tag.dynamic_output_shape in func.tags and (func is not _aten.index.Tensor or _has_mask(args[1])):
        raise CaptureFailed("GR103", f"the shape of what {func} returns depends on data")


def _has_mask(indices: Iterable[object]) -> bool:
    return any(isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices)


@functools.cache
def _is_metadata_only(func: Operator) -> bool:
    """Changes or answers only what the host knows: a tensor's view of its storage, a size, a flag."""
    if torch.Tag.inplace_view in func.tags:
        return "resize" not in func._schema.name
    returns = func._schema.returns
    return bool(returns) and not func._schema.is_mutable and not any("Tensor" in str(item.type) for item in returns)
