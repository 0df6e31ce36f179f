"""Segments as CUDA graphs: captured on a stream of their own, each with memory of its own.

The engine says when, in whatever thread launched the segment; it issues the recorded operators itself. Nothing is
computed by that. `torch.cuda.graph` is not used, because entering it empties the allocator's cache.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from ..profiling.private_streams import private_stream
from ..quiet import without_collections, without_warnings
from .cuda_warmup import make_handle, warm_products

CHUNK = 1 << 26
"""Bytes of a graph's memory that are asked for at once. A result that outlives its graph keeps as many."""
LARGEST = CHUNK // 4
"""Of the results that are cut from them. What is left of a chunk, and lies idle, is smaller; a larger result is asked
for by itself."""

_GIVE_BACK = "_cuda_clearCublasWorkspaces"


def _is_usual() -> bool:
    """Whether cuBLASLt multiplies only what operators say they multiply."""
    return torch.backends.cuda.preferred_blas_library() != torch._C._BlasBackend.Cublaslt


@functools.cache
def _are_split(device: torch.device) -> bool:
    """Whether torch's allocator cuts results from chunks: with `max_split_size_mb` it keeps large blocks whole."""
    most: int = torch.cuda.memory_stats(device).get("max_split_size", -1)
    return not 0 <= most <= CHUNK


class Captures:
    """Makes the graphs of one session, and keeps them until the engine drops them."""

    def __init__(self, session: Any, device: torch.device) -> None:
        self._session = session
        self._device = device
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._dropped: list[tuple[torch.cuda.Event, list[torch.cuda.CUDAGraph]]] = []
        self._made = 0
        self._warm: set[int] = set()
        self._captures = threading.Lock()
        """Held by who captures: threads share the stream for it. Nobody waits, for who has it may run anything."""
        self._begin = torch.cuda.CUDAGraph.capture_begin
        self._end = torch.cuda.CUDAGraph.capture_end
        self._stream = private_stream(device, "captures of segments")
        self._deferred_on = torch.cuda.current_stream(device)
        self._give_back = getattr(torch._C, _GIVE_BACK, None)
        if self._give_back is not None:
            setattr(torch._C, _GIVE_BACK, self._given_back)

    def _given_back(self) -> None:
        """torch gives cuBLAS's workspaces back, as its compiler asks. Made again inside of a capture, they would be
        memory of that graph, where others write after its end."""
        self._warm.clear()
        if self._give_back is not None:
            self._give_back()

    def capture(self) -> None:
        """Capture the segment that the engine wants, unless that cannot be; then the engine knows why."""
        with (
            torch._C.DisableTorchFunction(),
            torch.cuda.stream(self._stream),
            without_collections(),
            without_warnings(),
        ):
            try:
                with self._alone():
                    self._prepare()
                    self._capture()
            except Exception as error:
                self._session.refused(str(error))
        self._drop(self._session.dropped())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Raises RuntimeError where somebody captures already."""
        if not self._captures.acquire(blocking=False):
            raise RuntimeError("another capture has not ended")
        try:
            yield
        finally:
            self._captures.release()

    def call(self, function: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
        """A graph of what `function` launches, and what it gave, with memory of its own, which lies in the graph's.
        Raises RuntimeError where it cannot be captured.
        """
        with self._alone(), torch.cuda.stream(self._stream), without_collections(), without_warnings():
            graph, pool = torch.cuda.CUDAGraph(keep_graph=True), torch.cuda.graph_pool_handle()
            if threading.get_ident() not in self._warm:
                warm_products(self._device, self._stream, kinds=(torch.float32,))
                self._warm.add(threading.get_ident())
            self._stream.wait_stream(self._deferred_on)
            try:
                self._begin(graph, pool=pool, capture_error_mode="thread_local")
                try:
                    found = function()
                finally:
                    self._end(graph)
            except Exception as error:
                self._recover(pool)
                if error.__context__ is not None and not isinstance(error.__context__, Exception):
                    raise error.__context__ from None  # a person's Ctrl-C, behind which the capture could not end
                raise RuntimeError(str(error)) from error
            finally:
                self._deferred_on.wait_stream(self._stream)
            graph.instantiate()
        return graph, found

    def close(self) -> None:
        """Destroy all graphs."""
        if self._give_back is not None and getattr(torch._C, _GIVE_BACK) == self._given_back:
            setattr(torch._C, _GIVE_BACK, self._give_back)
        graphs = [*self._graphs.values(), *(graph for _, some in self._dropped for graph in some)]
        if graphs:
            torch.cuda.synchronize(self._device)  # they may run
        for graph in graphs:
            graph.reset()
        self._graphs.clear()
        self._dropped.clear()

    def _capture(self) -> None:
        graph, pool = torch.cuda.CUDAGraph(keep_graph=True), torch.cuda.graph_pool_handle()
        known = issued = False
        self._stream.wait_stream(self._deferred_on)
        try:
            self._begin(graph, pool=pool, capture_error_mode="thread_local")
            try:
                self._reserve()
                issued = self._session.issue_captured()
                known = not issued  # which operator broke the capture
            finally:
                self._end(graph)
        except RuntimeError:
            self._recover(pool)
            if not known:
                raise
        finally:  # to begin writes the generator's seed and offset, which graphs read that run, and those to come
            self._deferred_on.wait_stream(self._stream)
        if issued:
            graph.instantiate()
            self._made += 1
            self._graphs[self._made] = graph
            self._session.captured(graph.raw_cuda_graph_exec(), self._made)

    def _reserve(self) -> None:
        """Large results are cut from chunks, for to ask the driver for each takes as long as to issue five operators.
        What is freed inside of a capture stays with its graph. No tensors: torch may fill those, in the graph, too.
        """
        left, held = self._session.bytes_wanted(LARGEST) if _are_split(self._device) else 0, []
        with suppress(torch.OutOfMemoryError):  # each by itself may have room
            while left > 0:
                held.append(torch.UntypedStorage(min(left, CHUNK), device=self._device))
                left -= CHUNK

    def _prepare(self) -> None:
        """cuBLAS has a handle for each thread, a workspace for each handle and stream, and another one for what
        multiplies matrices. For a kind of numbers that it has not met it loads kernels for a tenth of a second; what is
        captured has run before.
        """
        thread = threading.get_ident()
        if thread in self._warm:
            return
        kind = self._session.kind_wanted()
        if kind is None and _is_usual():
            make_handle(self._device, self._stream)
            return
        warm_products(self._device, self._stream, kinds=(kind or torch.float32,))
        self._warm.add(thread)

    def _recover(self, pool: Any) -> None:
        """torch 2.11 leaves the allocator diverted and the generator in capture mode; a capture that succeeds puts the
        generator right."""
        for undo in (torch._C._cuda_endAllocateToPool, torch._C._cuda_releasePool):
            with suppress(RuntimeError):
                undo(self._device.index, pool)
        graph, cell = torch.cuda.CUDAGraph(keep_graph=True), torch.zeros(1, device=self._device)
        self._begin(graph, capture_error_mode="thread_local")
        cell.add_(1)
        self._end(graph)

    def _drop(self, numbers: list[int]) -> None:
        """Graphs that may still run: they are destroyed once the device has passed this point. Nobody waits for it."""
        if graphs := [graph for number in numbers if (graph := self._graphs.pop(number, None)) is not None]:
            passed = torch.cuda.Event()
            passed.record(self._deferred_on)
            self._dropped.append((passed, graphs))
        while self._dropped and self._dropped[0][0].query():
            for graph in self._dropped.pop(0)[1]:
                graph.reset()


def watch(session: Any) -> Callable[[], None]:
    """Have the person's captures pass operators through, and graphs wait for what is pending; the result undoes it."""
    kind: object = torch.cuda.CUDAGraph
    plain = {name: getattr(kind, name) for name in ("capture_begin", "capture_end", "replay")}

    def capture_begin(self: object, *args: object, **kwargs: object) -> None:
        session.pass_through(True)
        try:
            plain["capture_begin"](self, *args, **kwargs)
        except BaseException:
            session.pass_through(False)
            raise

    def capture_end(self: object) -> None:
        try:
            plain["capture_end"](self)
        finally:
            session.pass_through(False)

    def replay(self: object) -> None:
        session.flush()
        plain["replay"](self)

    for made in (capture_begin, capture_end, replay):
        setattr(kind, made.__name__, made)

    def undo() -> None:
        for name, function in plain.items():
            setattr(kind, name, function)

    return undo
