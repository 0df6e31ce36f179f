"""Random numbers in executables of our own.

Kernels of a captured graph read seed and offset of the default generator from two device tensors, and add an offset of
their own. Before each launch `torch.cuda.CUDAGraph.replay` writes the generator's values there and moves the generator
on by what the graph draws in all. `RandomPrologue` has torch do just that, by replays of graphs that draw as much and
from which all nodes were taken. Moving the generator by its own methods would do as well, but for one thing: those also
have cuDNN draw the state of its dropout anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ....profiling.private_streams import private_stream
from ....quiet import without_collections
from .driver import Driver

_BLOCK, _UNROLL = 256, 4
"""Threads of a block of torch's random kernels, and numbers that one makes at a time."""
_ROWS = 1 << 15
_MOST = 1 << 31
_STEP = 4
"""Offsets are multiples of it."""


def advance(before: torch.Tensor, after: torch.Tensor) -> int | None:
    """How far the generator was moved between two states of it; None where that is not all that was done to it."""
    seeds, offsets = zip(*(state.view(torch.int64).tolist() for state in (before, after)), strict=True)
    moved: int = offsets[1] - offsets[0]
    return moved if seeds[0] == seeds[1] and moved > 0 and not moved % _STEP else None


@dataclass(frozen=True, slots=True)
class Drawn:
    """The attachment of a graph whose replay moves the generator by `moves`; `pool` is what else must live for it."""

    pool: object
    moves: int


class RandomPrologue:
    """Of one device. `begin` comes right before the launch of a graph that moves the generator by so much."""

    def __init__(self, driver: Driver, device: torch.device) -> None:
        self._driver = driver
        self._device = device
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._works: bool | None = None

    def prepare(self, moves: int) -> bool:
        """True where `begin` can move the generator by so much. Not during a capture."""
        try:
            if self._works is None:
                self._works = self._is_right()
            if self._works and moves not in self._graphs:
                self._graphs[moves] = self._drawing(moves, None)
        except (RuntimeError, AttributeError):  # torch's own way is left
            return False
        return self._works

    def begin(self, moves: int) -> None:
        """Have what is launched next draw what eager code would draw now, and move the generator by `moves`."""
        self._graphs[moves].replay()

    def _is_right(self) -> bool:
        """True where this version of torch counts as `_drawing` takes it to, as a generator of our own tells."""
        # In 2.13 seed and offset lie elsewhere for each capture, and go with its graph; 2.12 was not looked at.
        if torch.__version__ >= "2.12.0.dev0":
            return False
        generator = torch.Generator(self._device)
        for moves in (_STEP, 5 * _STEP):
            before = generator.get_offset()
            self._drawing(moves, generator).replay()
            if generator.get_offset() - before != moves:
                return False
        return True

    def _drawing(self, moves: int, generator: torch.Generator | None) -> torch.cuda.CUDAGraph:
        """A graph without nodes whose replay moves the generator by `moves`."""
        properties = torch.cuda.get_device_properties(self._device)
        blocks = properties.multi_processor_count * (properties.max_threads_per_multi_processor // _BLOCK)
        at_once = blocks * _BLOCK * _UNROLL
        left, stream = moves // _STEP, private_stream(self._device, "captures of draws")
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        if generator is not None:
            graph.register_generator_state(generator)
        memory = torch.empty(_ROWS + _MOST // _ROWS, dtype=torch.float32, device=self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream), without_collections():
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                while left:
                    steps = min(left, (_MOST - _ROWS) // at_once)
                    columns = -(-((steps - 1) * at_once + 1) // _ROWS)
                    # Elements lie on top of each other; nothing will ever write them.
                    whole = memory[:1] if steps == 1 else memory.as_strided((_ROWS, columns), (1, 1))
                    whole.uniform_(generator=generator)
                    left -= steps
            finally:
                graph.capture_end()
        # Beginning a capture writes seed and offset, on its stream: before any launch that reads them.
        torch.cuda.current_stream(self._device).wait_stream(stream)
        raw = self._driver.types.CUgraph(graph.raw_cuda_graph())
        _, count = self._driver.call("cuGraphGetNodes", raw, 0)
        for node in self._driver.call("cuGraphGetNodes", raw, count)[0][:count]:
            self._driver.call("cuGraphDestroyNode", node)
        graph.instantiate()
        return graph
