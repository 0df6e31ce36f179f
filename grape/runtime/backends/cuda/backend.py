"""CUDA graphs through `torch.cuda.CUDAGraph(keep_graph=True)`.

All graphs of a backend share one private pool: memory of intermediates is reused by later captures, memory of outputs
is not while somebody refers to it. `torch.cuda.graph` is not used, because entering it empties the allocator's cache.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Literal, TypeVar

import torch
from torch.cuda._utils import _get_device_index

from ....model.overlap import OverlapPlan
from ....profiling import CudaCallTimer, spare_children
from ....profiling.private_streams import private_stream
from ....quiet import without_collections, without_warnings
from ....streams.cuda_warmup import warm_products
from ..autocast_cache import autocast_cache_off
from ..operators import copy_each
from ..protocol import CaptureFailed, MemoryAccount, Pool
from .branching.branches import CudaBranches, lane_streams
from .conditional import Bodies
from .denied import captures_here, not_capturing
from .driver import load
from .executables.executable import Executables
from .executables.updatable import UpdatableCudaGraph
from .graph import CudaGraph, CudaPool
from .memory import CudaReservation, pool_bytes, reserve
from .meter import ExecutableMeter
from .poll import EventPoll
from .watch import CaptureWatch

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE

T = TypeVar("T")


class CudaBackend:
    """Captures on a stream of its own; replays on the current stream.

    `updatable` and `conditional_bodies` switch sharing of executables and bodies off. Both need `cuda.bindings`, the
    second also a driver for CUDA 12.4.
    """

    kind: Literal["cuda"] = "cuda"

    def __init__(self, device: torch.device, *, updatable: bool = True, conditional_bodies: bool = True) -> None:
        spare_children()
        self.device = torch.device("cuda", _get_device_index(device, optional=True))
        driver = load() if updatable or conditional_bodies else None
        self._meter = ExecutableMeter(self.device)
        self._executables = Executables(driver, self.device, self._meter) if updatable and driver is not None else None
        decide = conditional_bodies and driver is not None and Bodies.supported(driver)
        self._bodies = Bodies(driver, self.device) if decide and driver is not None else None
        self._watch: CaptureWatch | None = None
        self._pool: _POOL_HANDLE | None = None
        self._anchor: torch.cuda.CUDAGraph | None = None
        self._pools: list[tuple[_POOL_HANDLE, weakref.ref[torch.cuda.CUDAGraph]]] = []
        """Every private pool so far, and the graph that holds it open as long as any graph of the pool lives."""
        self._graphs: weakref.WeakSet[CudaGraph | UpdatableCudaGraph] = weakref.WeakSet()
        self._alone: weakref.WeakSet[CudaGraph] = weakref.WeakSet()
        self._apart: weakref.WeakSet[CudaPool] = weakref.WeakSet()
        """Graphs in pools of their own, and those pools: who asked for them releases them."""
        self._warm = False
        self._branches: CudaBranches | None = None
        """Those of the capture that runs: they live until it is over."""

    @functools.cached_property
    def _stream(self) -> torch.cuda.Stream:
        """Made late: it gives the device a context."""
        return private_stream(self.device, "captures")

    def empty_strided(self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype, device=self.device)

    def reserve(self, nbytes: int) -> CudaReservation | None:
        return reserve(self.device, nbytes)

    def prepare(self) -> None:
        if self._anchor is None:
            if not self._warm:
                warm_products(self.device, self._stream, autograd=True)
                self._warm = True
            _count_nodes(self._open_pool())

    def open_pool(self) -> CudaPool:
        pool = CudaPool()
        self._apart.add(pool)
        return pool

    def capture(self, body: Callable[[], T], pool: Pool | None = None) -> tuple[CudaGraph | UpdatableCudaGraph, T]:
        if torch.cuda.is_current_stream_capturing() or captures_here():
            raise CaptureFailed("GR405", "this stream is already being captured by other code")
        self.prepare()
        assert pool is None or isinstance(pool, CudaPool)
        handle = self._pool if pool is None else pool.handle
        assert handle is not None
        current, self._branches = torch.cuda.current_stream(self.device), None
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream), without_collections(), not_capturing(), self._watching() as watch:
            try:
                graph.capture_begin(pool=handle, capture_error_mode="thread_local")
            except RuntimeError as error:  # by then the allocator may be diverted to the pool
                self._recover(handle)
                raise CaptureFailed("GR405", f"a capture could not begin: {_first_line(error)}") from error
            try:
                with autocast_cache_off(), watch or nullcontext():
                    result = body()
                if watch is not None:
                    watch.settle()
            except BaseException as error:
                self._abandon(graph, handle, lost_body=watch is not None and watch.lost_body)
                if watch is not None:
                    watch.settle(error)
                raise
            try:
                with without_warnings():  # a region of views alone makes an empty graph, and that is fine
                    graph.capture_end()
            except RuntimeError as error:
                self._recover(handle)
                raise CaptureFailed("GR405", f"the capture was invalidated: {_first_line(error)}") from error
        self._branches = None
        current.wait_stream(self._stream)
        nodes = _count_nodes(graph) + (watch.body_nodes if watch is not None else 0)
        kept = (self._anchor, self._bodies.kept if self._bodies is not None else None) if pool is None else pool
        if pool is not None or self._executables is None or watch is None:
            self._meter.made(nodes, graph.instantiate)
            captured = CudaGraph(graph, nodes, self._meter, kept)
            if pool is None:
                self._graphs.add(captured)
            else:
                self._alone.add(captured)
            return captured, result
        updatable = UpdatableCudaGraph(self._executables, graph, nodes=nodes, draws=watch.drew, pool=kept)
        self._graphs.add(updatable)
        return updatable, result

    @property
    def overlaps(self) -> bool:
        return self._executables is not None

    def prepare_branches(self, plan: OverlapPlan) -> None:
        lane_streams(self.device, plan.lanes - 1)

    @contextmanager
    def branches(self, plan: OverlapPlan) -> Iterator[CudaBranches]:
        assert self._executables is not None
        others = lane_streams(self.device, plan.lanes - 1)
        branches = self._branches = CudaBranches(plan, self._executables.driver, self._stream, others)
        try:
            yield branches
            branches.join()
        except BaseException:
            branches.abandon()
            raise

    @contextmanager
    def _watching(self) -> Iterator[CaptureWatch | None]:
        """The mode that looks at the operators of a capture; None where nothing has to be known of them."""
        before = self._watch
        needed = self._executables is not None or self._bodies is not None
        self._watch = CaptureWatch(self.device) if needed else None
        try:
            yield self._watch
        finally:
            self._watch = before

    def _abandon(self, graph: torch.cuda.CUDAGraph, handle: _POOL_HANDLE, *, lost_body: bool) -> None:
        """End a capture whose body raised; the body's error matters, not what ending it says.

        With `lost_body` the recorded graph must not be destroyed: the process would crash. So it ends where torch does
        not see it, some kilobytes that nobody frees, and torch finds an invalidated capture.
        """
        if lost_body and self._bodies is not None:
            self._bodies.end_unseen(self._stream)
        try:
            with without_warnings():  # nothing may have been recorded yet
                graph.capture_end()
        except RuntimeError:
            self._recover(handle)

    def _recover(self, handle: _POOL_HANDLE) -> None:
        """Bring allocator and generator back after an invalidated capture.

        torch 2.11 leaves the allocator diverted to the graph's pool and the generator in capture mode; a capture that
        succeeds puts the generator right, and a new pool keeps the broken one out of use.
        """
        for undo in (torch._C._cuda_endAllocateToPool, torch._C._cuda_releasePool):
            with suppress(RuntimeError):
                undo(self.device.index, handle)
        self._open_pool()

    def _open_pool(self) -> torch.cuda.CUDAGraph:
        """A new private pool, held open by a graph of one node: the allocator refuses a pool that lost its last graph.

        After a failed capture this graph is also what brings the generator out of capture mode.
        """
        self._pool = torch.cuda.graph_pool_handle()
        anchor = torch.cuda.CUDAGraph(keep_graph=True)
        cell = torch.zeros(1, device=self.device)
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream), without_collections():
            anchor.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            cell.add_(1)
            anchor.capture_end()
        self._anchor = anchor
        self._pools = [(pool, held) for pool, held in self._pools if held() is not None]
        self._pools.append((self._pool, weakref.ref(anchor)))
        return anchor

    @property
    def updatable(self) -> bool:
        return self._executables is not None

    @property
    def conditional_bodies(self) -> bool:
        return self._bodies is not None

    def prepare_bodies(self) -> None:
        """Where the kernel of conditional nodes cannot be had, `conditional_bodies` is False from then on."""
        if self._bodies is not None:
            try:
                self._bodies.prepare()
            except (ImportError, RuntimeError):
                self._bodies = None

    def if_body(self, pred: torch.Tensor) -> AbstractContextManager[None]:
        return self._body("if", pred)

    def while_body(self, pred: torch.Tensor) -> AbstractContextManager[None]:
        return self._body("while", pred)

    def _body(self, kind: Literal["if", "while"], pred: torch.Tensor) -> AbstractContextManager[None]:
        if self._bodies is None:
            raise CaptureFailed("GR102", "this backend records no conditional bodies")
        if self._watch is None:
            raise CaptureFailed("GR405", "a conditional body outside of a capture")
        return self._bodies.body(kind, pred, self._watch)

    @contextmanager
    def bounded(self, iterations: int) -> Iterator[Callable[[], bool]]:
        bound = self._bodies.bound if self._bodies is not None else None
        with bound.of(iterations) if bound is not None else nullcontext(lambda: False) as reached:
            yield reached

    def copy(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        with torch.no_grad():  # what is copied may be the person's, or stand for it, and require a gradient
            if len(targets) == 1:
                targets[0].copy_(sources[0])  # costs the host less than a launch for many
            elif len({target.dtype for target in targets}) == 1:
                torch._foreach_copy_(list(targets), list(sources))
            else:
                copy_each(targets, sources)

    def clone(self, source: torch.Tensor) -> torch.Tensor:
        return source.clone()

    def synchronize(self) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize(self.device)

    def timer(self) -> CudaCallTimer:
        return CudaCallTimer()

    def flag_poll(self) -> EventPoll:
        return EventPoll()

    def rng_state(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.get_rng_state(), torch.cuda.get_rng_state(self.device)

    def set_rng_state(self, state: object) -> None:
        assert isinstance(state, tuple)
        torch.set_rng_state(state[0])
        # Setting the state of a CUDA generator, to whatever, also has cuDNN draw the state of its dropout anew.
        if not torch.equal(torch.cuda.get_rng_state(self.device), state[1]):
            torch.cuda.set_rng_state(state[1], self.device)

    def memory(self) -> MemoryAccount:
        pools: list[tuple[int, int]] = [pool for pool, held in self._pools if held() is not None]
        if self._bodies is not None and self._bodies.pool is not None:
            pools.append(self._bodies.pool.id)
        pools += [pool.handle for pool in self._apart]
        alone = sum(graph.nbytes for graph in (*self._graphs, *self._alone) if isinstance(graph, CudaGraph))
        return MemoryAccount(
            pool_bytes=sum(map(pool_bytes, pools)),
            executable_bytes=alone + (self._executables.live_bytes if self._executables is not None else 0),
        )

    def close(self) -> None:
        for graph in list(self._graphs):
            graph.release()
        self._graphs.clear()
        if self._executables is not None:
            self._executables.close()
        if self._anchor is not None:
            self._anchor.reset()
            self._anchor = None
        self._pools = []
        if self._bodies is not None:
            self._bodies.close()


def _count_nodes(graph: torch.cuda.CUDAGraph) -> int:
    try:
        from cuda.bindings import runtime
    except ImportError:
        return 0
    error, _, count = runtime.cudaGraphGetNodes(runtime.cudaGraph_t(graph.raw_cuda_graph()), 0)
    return int(count) if int(error) == 0 else 0


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
