"""The baselines of `decode.py`: CUDA graphs as an expert writes them by hand, one per shape, all in one pool.

Two kinds. *Placeholders*: each input has one static buffer of the largest size, shared by all shapes, and is copied
there before each replay, one copy per tensor. *In place*: every input already lies where its graph reads it, so
nothing is copied; no system can do better with the same graphs.

Outputs are let go when their capture is over, so that the pool holds the largest shape and not the sum; what a caller
reads is an address until the next replay. Needs a CUDA device.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from _measure import StepClock

__all__ = [
    "cache_tensors",
    "chained_steps",
    "encoder_steps",
    "placeholder_steps",
    "prefill",
    "replay_chained",
    "replay_copying",
    "replay_encoder",
    "replay_selecting",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One graph; `inputs` and `outputs` are the tensors at its addresses, keys and values in turn for a decoder."""

    graph: torch.cuda.CUDAGraph
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    result: torch.Tensor


class Pool:
    """One private pool and one capture stream for all graphs of a baseline."""

    def __init__(self) -> None:
        self._handle = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def warm(self, body: Callable[[], Any]) -> None:
        """Run on the capture stream, for libraries that set themselves up at the first call there."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            body()
        torch.cuda.synchronize()

    def capture(self, body: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream), _eager_paths(), _no_collection():
            graph.capture_begin(pool=self._handle, capture_error_mode="thread_local")
            try:
                result = body()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)
        return graph, result


@contextmanager
def _eager_paths() -> Iterator[None]:
    """transformers runs other kernels where it sees a capture; the baseline is to run those of the eager call. A number
    that GPT-J's mask brings to the device, which no capture allows, is made there, as an expert would write it."""
    from_host = torch.tensor

    def made_there(value: Any, *args: Any, device: Any = None, dtype: Any = None, **kwargs: Any) -> torch.Tensor:
        if isinstance(value, float) and device is not None and torch.device(device).type == "cuda":
            return torch.full((), value, device=device, dtype=dtype)
        return from_host(value, *args, device=device, dtype=dtype, **kwargs)

    not_seen = patch.object(torch.cuda.graphs, "_cuda_isCurrentStreamCapturing", lambda: False)
    with not_seen, patch.object(torch, "tensor", made_there):
        yield


@contextmanager
def _no_collection() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _address(tensor: torch.Tensor) -> torch.Tensor:
    """The same view by address, without keeping the memory from the pool."""
    own: Any = tensor.untyped_storage()
    storage = torch._C._construct_storage_from_data_pointer(own.data_ptr(), tensor.device, own.nbytes())
    view: Any = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    view.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
    found: torch.Tensor = view
    return found


def cache_of(model: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """A `DynamicCache` that holds these keys and values themselves, not copies."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    for layer, keys, values in zip(cache.layers, tensors[::2], tensors[1::2], strict=True):
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
    return cache


def cache_tensors(cache: Any) -> list[torch.Tensor]:
    """Keys and values in turn, `[batch, heads, length, dim]` each."""
    return [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]


def _step(pool: Pool, model: Any, ids: torch.Tensor, inputs: list[torch.Tensor]) -> tuple[Step, list[torch.Tensor]]:
    """One decode step captured on these inputs, and the keys and values that keep its outputs' memory."""
    cache = cache_of(model, inputs)
    graph, out = pool.capture(lambda: model(ids, past_key_values=cache, use_cache=True))
    made = cache_tensors(out.past_key_values)
    addresses = [_address(tensor) for tensor in made]
    return Step(graph=graph, inputs=inputs, outputs=addresses, result=_address(out.logits)), made


def _warm_decoder(pool: Pool, model: Any, ids: torch.Tensor, like: Sequence[torch.Tensor]) -> None:
    for _ in range(2):
        pool.warm(lambda: model(ids, past_key_values=cache_of(model, list(like)), use_cache=True))


@torch.inference_mode()
def placeholder_steps(
    model: Any, first: Sequence[torch.Tensor], lengths: Sequence[int]
) -> tuple[torch.Tensor, list[Step]]:
    """The token's placeholder `[batch, 1]`, and a step per cache length on placeholders that all steps share.

    `first` is a cache of the first length.
    """
    pool, longest = Pool(), max(lengths)
    batch, heads, _, dim = first[0].shape
    ids = torch.zeros(batch, 1, dtype=torch.long, device=first[0].device)
    buffers = [torch.zeros(batch * heads * longest * dim, dtype=t.dtype, device=t.device) for t in first]
    _warm_decoder(pool, model, ids, first)
    steps = []
    for length in sorted(lengths, reverse=True):  # the largest first: the pool grows once
        shape = (batch, heads, length, dim)
        inputs = [buffer[: batch * heads * length * dim].view(shape) for buffer in buffers]
        steps.append(_step(pool, model, ids, inputs)[0])
    return ids, steps[::-1]


@torch.inference_mode()
def chained_steps(model: Any, first: Sequence[torch.Tensor], lengths: Sequence[int]) -> tuple[torch.Tensor, list[Step]]:
    """As `placeholder_steps`, but each step reads the keys and values where the step before it wrote them."""
    pool = Pool()
    ids = torch.zeros(first[0].shape[0], 1, dtype=torch.long, device=first[0].device)
    _warm_decoder(pool, model, ids, first)
    steps, inputs = [], [tensor.clone() for tensor in first]
    for position, _ in enumerate(lengths):
        step, made = _step(pool, model, ids, inputs)
        if position:
            step = Step(
                graph=step.graph, inputs=[_address(t) for t in inputs], outputs=step.outputs, result=step.result
            )
        steps.append(step)
        inputs = made  # alive during the next capture, which therefore writes elsewhere; let go after it
    return ids, steps


@torch.inference_mode()
def encoder_steps(encoder: Any, shapes: Sequence[torch.Size], dtype: torch.dtype, device: torch.device) -> list[Step]:
    """A step per shape of one argument; the argument's placeholder is shared by all shapes."""
    pool = Pool()
    buffer = torch.zeros(max(shape.numel() for shape in shapes), dtype=dtype, device=device)
    inputs = [buffer[: shape.numel()].view(shape) for shape in shapes]
    for x in (inputs[0], inputs[-1]):
        pool.warm(lambda x=x: encoder(x))  # type: ignore[misc]
    steps: dict[int, Step] = {}
    for index in sorted(range(len(shapes)), key=lambda i: -shapes[i].numel()):
        graph, out = pool.capture(lambda x=inputs[index]: encoder(x).last_hidden_state)  # type: ignore[misc]
        steps[index] = Step(graph=graph, inputs=[inputs[index]], outputs=[], result=_address(out))
    return [steps[index] for index in range(len(shapes))]


def prefill(model: Any, prompt: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    out = model(prompt, use_cache=True)
    return out.logits[:, -1:].argmax(-1), cache_tensors(out.past_key_values)


@torch.inference_mode()
def replay_copying(
    model: Any, prompt: torch.Tensor, ids: torch.Tensor, steps: Sequence[Step], beams: Any, clock: StepClock
) -> list[torch.Tensor]:
    """One copy per input tensor before each replay."""
    token, state = prefill(model, prompt)
    clock.start()
    for number, step in enumerate(steps):
        ids.copy_(token)
        for placeholder, tensor in zip(step.inputs, state, strict=True):
            placeholder.copy_(tensor)
        step.graph.replay()
        token = step.result[:, -1:].argmax(-1)
        state = step.outputs if beams is None else [t.index_select(0, beams[number]) for t in step.outputs]
        clock.mark()
    return [token, *(t.clone() for t in (step.result, *state))]


@torch.inference_mode()
def replay_chained(
    model: Any, prompt: torch.Tensor, ids: torch.Tensor, steps: Sequence[Step], clock: StepClock
) -> list[torch.Tensor]:
    """Each graph reads what the one before it wrote; the next token is written where it is read."""
    token, state = prefill(model, prompt)
    ids.copy_(token)
    for placeholder, tensor in zip(steps[0].inputs, state, strict=True):
        placeholder.copy_(tensor)
    clock.start()
    for step in steps:
        step.graph.replay()
        torch.argmax(step.result[:, -1:], -1, out=ids)
        clock.mark()
    return [t.clone() for t in (ids, step.result, *step.outputs)]


@torch.inference_mode()
def replay_selecting(
    model: Any, prompt: torch.Tensor, ids: torch.Tensor, steps: Sequence[Step], beams: torch.Tensor, clock: StepClock
) -> list[torch.Tensor]:
    """Beams are reordered straight into the next graph's placeholders."""
    token, state = prefill(model, prompt)
    ids.copy_(token)
    for placeholder, tensor in zip(steps[0].inputs, state, strict=True):
        placeholder.copy_(tensor)
    last = [t.clone() for t in steps[-1].outputs]
    clock.start()
    for number, step in enumerate(steps):
        step.graph.replay()
        torch.argmax(step.result[:, -1:], -1, out=ids)
        targets = steps[number + 1].inputs if number + 1 < len(steps) else last
        for source, target in zip(step.outputs, targets, strict=True):
            torch.index_select(source, 0, beams[number], out=target)
        clock.mark()
    return [ids.clone(), step.result.clone(), *last]


@torch.inference_mode()
def replay_encoder(
    steps: Sequence[Step], clips: Sequence[torch.Tensor], scale: torch.Tensor, clock: StepClock, *, copying: bool
) -> list[torch.Tensor]:
    means = []
    clock.start()
    for step, clip in zip(steps, clips, strict=True):
        if copying:
            step.inputs[0].copy_(clip * scale)
        else:
            torch.mul(clip, scale, out=step.inputs[0])
        step.graph.replay()
        means.append(step.result.mean(1))
        clock.mark()
    return means
