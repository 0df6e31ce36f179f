"""Batches whose tensors are on the device already: what `grape.prefetch` returns.

A batch is copied from pinned memory, so the CPU does not wait for the device. With `SIDE_STREAM` the copy has a stream
of its own, on which it overlaps with the work on the batch before; the loop's stream waits for it on the device. After
NVIDIA's data prefetcher (apex), but nothing is taken from the loader before the loop asks for it, so that `break`,
exceptions and random numbers stay where they are. Only where worker processes prepare the batches ahead anyway, in an
order that is drawn in advance, the next copy starts one batch earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from ..errors import UsageError
from ..profiling import spare_children
from ..profiling.private_streams import private_stream

SIDE_STREAM = True
"""True where copies have a stream of their own; else they are issued on the loop's, in time."""

T = TypeVar("T")


def prefetch(loader: Iterable[T], device: torch.device | str | int) -> Prefetch[T]:
    """`loader` with the tensors of each batch on `device`: ``for x, y in grape.prefetch(loader, "cuda")``.

    Batches may be tensors, or tuples, lists and dicts of them, nested; anything else in them stays as it is. The
    values are those of ``tensor.to(device)``, each tensor in memory of its own. They belong to the stream that was
    current when the loop asked for the batch. What is on `device` already is handed on as it is.

    Copies go through pinned memory and block nothing. Pinned tensors of anything but a `DataLoader` are copied once
    more on the CPU, because their owner might write to them. Raises `UsageError` for what is no device or cannot be
    iterated over.
    """
    try:
        there = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise UsageError(f"grape.prefetch: '{device}' is no device: {str(error).splitlines()[0]}") from None
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise UsageError(f"grape.prefetch needs something to iterate over, not a {type(loader).__name__}")
    return Prefetch(loader, there)


class Prefetch(Generic[T]):
    """A loader whose batches come on a device. Each `iter` begins anew; it has the loader's length, if that has one."""

    def __init__(self, loader: Iterable[T], device: torch.device) -> None:
        self._loader = loader
        self._device = device

    def __iter__(self) -> Iterator[T]:
        batches = iter(self._loader)
        if self._device.type != "cuda" or not torch.cuda.is_available():  # then `to` says in its own words why not
            return map(lambda batch: _mapped(batch, lambda tensor: tensor.to(self._device)), batches)
        spare_children()
        device = torch.device("cuda", torch.cuda.current_device()) if str(self._device) == "cuda" else self._device
        copies = _Copies(device, fresh=_makes_fresh_batches(self._loader))
        if SIDE_STREAM and _is_prepared_ahead(self._loader):
            return _Ahead(batches, copies)
        return _in_time(batches, copies)

    def __len__(self) -> int:
        if not isinstance(self._loader, Sized):
            raise TypeError(f"object of type '{type(self._loader).__name__}' has no len()")
        return len(self._loader)


def _in_time(batches: Iterator[T], copies: _Copies) -> Iterator[T]:
    """The copy of a batch begins when the loop asks for it: the device is still busy with the last one."""
    return map(lambda batch: copies.start(batch).hand_over(), batches)


class _Ahead(Generic[T]):
    """The copy of a batch begins before the loop gets the one before it. What the loader raises waits for its turn."""

    def __init__(self, batches: Iterator[T], copies: _Copies) -> None:
        self._batches = batches
        self._copies = copies
        self._next: list[_Begun[T]] = []
        self._error: Exception | None = None

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if not self._next and self._error is None:
            self._draw()
        if not self._next and self._error is not None:
            error, self._error = self._error, None
            raise error
        begun = self._next.pop()
        self._draw()
        return begun.hand_over()

    def _draw(self) -> None:
        try:
            self._next.append(self._copies.start(next(self._batches)))
        except Exception as error:
            self._error = error


class _Begun(Generic[T]):
    """A batch whose copies are under way: the stream that its memory belongs to, and the event until which they are."""

    def __init__(self, batch: T, copies: tuple[torch.cuda.Stream, torch.cuda.Event] | None = None) -> None:
        self._batch = batch
        self._copies = copies

    def hand_over(self) -> T:
        """The batch, for the current stream, which waits for the copies."""
        if self._copies is not None:
            stream, event = self._copies
            current = torch.cuda.current_stream(stream.device)
            if current != stream:
                current.wait_event(event)
            self._settle()
        return self._batch

    def _settle(self) -> None:
        """The stream of the memory waits: whoever gets it next must not meet a copy."""
        copies, self._copies = self._copies, None
        if copies is not None:
            stream, event = copies
            stream.wait_event(event)

    def __del__(self) -> None:
        # Dropped before its turn: the loop ended. A worker process that was forked meanwhile has no device.
        if self._copies is not None and not torch.cuda._is_in_bad_fork():
            self._settle()


class _Copies:
    """Copies to one device on its side stream. `fresh`: nobody else has the CPU tensors of a batch."""

    def __init__(self, device: torch.device, *, fresh: bool) -> None:
        self._device = device
        self._fresh = fresh

    def start(self, batch: T) -> _Begun[T]:
        """The batch with its copies under way; nothing waits on the CPU.

        The memory belongs to the loop's stream, on which what used it before may still run, so the copies wait for
        that. Memory of the side stream would need `record_stream`; a worker process that is forked later and collects
        a tensor with that mark is killed.
        """
        if torch.cuda.is_current_stream_capturing():
            return _Begun(_mapped(batch, lambda tensor: tensor.to(self._device)))
        current = torch.cuda.current_stream(self._device)
        beside = private_stream(self._device, "prefetch") if SIDE_STREAM else None
        if beside is not None:
            beside.wait_stream(current)

        def move(tensor: torch.Tensor) -> torch.Tensor:
            if not _is_plain(tensor):
                return tensor.to(self._device)
            pinned = tensor if self._fresh and tensor.is_pinned() else _pinned(tensor)
            there = torch.empty_like(pinned, device=self._device, pin_memory=False)
            with torch.cuda.stream(beside):
                there.copy_(pinned, non_blocking=True)
            return there

        try:
            moved = _mapped(batch, move)
            return _Begun(moved, (current, beside.record_event()) if beside is not None else None)
        except BaseException:
            if beside is not None:
                current.wait_stream(beside)
            raise


def _mapped(batch: Any, move: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`batch` with `move` of each tensor, in containers of the same kinds; where nothing moved, `batch` itself."""
    if isinstance(batch, torch.Tensor):
        return move(batch)
    values: list[object]
    if type(batch) is dict:
        values = list(batch.values())
    elif type(batch) in (list, tuple) or (isinstance(batch, tuple) and hasattr(batch, "_fields")):
        values = list(batch)
    else:
        return batch
    made = [_mapped(value, move) for value in values]
    if all(new is old for new, old in zip(made, values, strict=True)):
        return batch
    if type(batch) is dict:
        return dict(zip(batch, made, strict=True))
    return type(batch)(made) if type(batch) in (list, tuple) else type(batch)(*made)


def _is_plain(tensor: torch.Tensor) -> bool:
    """A dense CPU tensor without a history: what a copy through pinned memory does not change."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.requires_grad
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.is_quantized
        and tensor.numel() > 0
        and (tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last))
    )


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in pinned memory, with the strides of `tensor`."""
    return torch.empty_like(tensor, pin_memory=True).copy_(tensor)


def _makes_fresh_batches(loader: object) -> bool:
    """True where each batch is stacked and pinned anew, so that nobody writes to its memory later."""
    return (
        type(loader) is DataLoader
        and loader.pin_memory
        and loader.batch_sampler is not None
        and loader.collate_fn is default_collate
    )


def _is_prepared_ahead(loader: object) -> bool:
    """True where one batch more changes nothing that the loop can see.

    The items are made in worker processes, which are ahead by several batches anyway, and the order of the items is
    drawn when the iteration begins.
    """
    if type(loader) is not DataLoader or not loader.num_workers or isinstance(loader.dataset, IterableDataset):
        return False
    sampler = loader.sampler
    plain = type(sampler) is SequentialSampler or (
        type(sampler) is RandomSampler and not sampler.replacement and sampler.generator is None
    )
    return plain and type(loader.batch_sampler) is BatchSampler
