"""The state of one region: what it is called, what became of it, its shapes and their graphs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from ...model import Position, Refused
from ...originals import perf_counter
from ..accounts.replay_counts import ReplayCounts
from ..buffers.lifetimes import Lifetimes
from ..guarding.environment import environment
from ..replaying.entry import Entry
from ..training import need_gradients
from ..training.pair_entry import PairEntry
from .context import RegionContext
from .shapes import Shapes
from .specialization import Specialization

LATELY = 4
"""So many calls: a recurrence has two graphs, and what blocks one need not block the next."""


class RegionState:
    """`function` runs the person's code; `root` is where the guards start."""

    def __init__(
        self,
        context: RegionContext,
        function: Callable[..., object],
        root: object,
        name: str,
        at: Position,
        end_line: int | None = None,
    ) -> None:
        self.context = context
        self.function = function
        # A module is the person's, and its graphs die with it; a function that was taken over is held here.
        self._root = weakref.ref(root) if isinstance(root, torch.nn.Module) else None
        self._function_root = None if self._root else root
        self.name = name
        self.at = at
        self.end_line = end_line
        self.called_in = context.run
        """The run in which `at` is: of a module, where it is called first."""
        self.loop_line: int | None = None
        """Where it is a part of a loop's body: the line of the loop."""
        self.root_is_module = isinstance(root, torch.nn.Module)
        self.parent: str | None = None
        self.refused: Refused | None = None
        self.of_gradients: Refused | None = None
        """Why calls that record gradients stay eager, where others are tried."""
        self.gave_way_in_run = False
        """True where a call of this cell stayed eager for that."""
        self.checked = False
        """A graph of it gave the same bits and serves nobody: where nothing gets faster, that is all there is."""
        self.over_budget_at: int | None = None
        """The memory budget that was too small for this region; 0: the device had no room."""
        self.over_budget_beside = 0
        """Bytes of placeholders and workspace, of all graphs, beside which no executable of it had room."""
        self.calls = 0
        self.replays = 0
        self.blocked_at = -LATELY
        """The number of the last call that no graph served, because results that somebody holds were in its way."""
        self._looks = (0, 0)
        """How many captures there were when a cell that had spent its share last looked on, and its looks since."""
        self.call_began_ns = 0
        self.called_once = False
        """True where the last cell that called it did so once."""
        self.unserved = 0
        """Calls of shapes that had no graph."""
        self.wasted = 0
        """Replays of an iteration, in this cell, that were issued after their loop had been left."""
        self.shapes = Shapes()
        self.host_ms: list[float] = []
        self._last: Specialization | None = None
        self._start_of_run = (0, 0)
        self._settled_calls = 0
        self.owner = object()
        """Stands for this region among the owners of slots."""
        self.replay_counts = ReplayCounts()
        self.lifetimes = Lifetimes()
        self.origins: dict[str, Position] = {}
        """Where arguments that had to be copied were made, by path."""
        self.busy_ms: float | None = None
        self._pace = (perf_counter(), 0)
        self.learned_paths: set[str] = set()
        self.small_paths: set[str] = set()
        """Copied arguments whose makers were looked for, and those too small for a prediction."""

    @property
    def root(self) -> object:
        """Where the guards start; None for a module that was deleted."""
        return self._root() if self._root is not None else self._function_root

    @property
    def may_pair(self) -> bool:
        """True where a pair of graphs may serve calls whose results carry an autograd graph: those of a module."""
        context = self.context
        return context.pairs and self.root_is_module and context.apply

    @property
    def paired(self) -> bool:
        """True where forward and backward replay as two graphs."""
        return any(isinstance(entry, PairEntry) for entry in self.entries)

    @property
    def unused_gradients(self) -> Refused | None:
        """Its results carried autograd graphs that nobody has gone through: what no call is captured for."""
        current = [shape for shape in self.shapes.values() if shape.run == self.context.run]
        served = any(shape.entries or shape.backwards.known for shape in current)
        if served or not any(shape.backwards.unused for shape in current):
            return None
        return need_gradients(at=self.at)

    def called_from(self, at: Position) -> None:
        """The first call of the run that goes on comes from here: what is told of the region names this place."""
        if self.refused is not None and self.refused.at == self.at:
            self.refused = replace(self.refused, at=at)
        self.called_in, self.at = self.context.run, at

    @property
    def is_idle(self) -> bool:
        """True where nothing has called it since the last cell ended."""
        return self.calls == self._settled_calls

    @property
    def calls_in_run(self) -> int:
        return self.calls - self._start_of_run[0]

    @property
    def replays_in_run(self) -> int:
        return self.replays - self._start_of_run[1]

    def yields_to_inner(self) -> bool:
        """True where the call that comes now is to run as written, and callables inside may become active.

        Who was told that the results need gradients, and puts `torch.no_grad()` around the call, has another call.
        """
        refused = self.refused
        if refused is None and self.of_gradients is None:
            return False
        with_gradients = torch.is_grad_enabled()
        tried = self.context.observing and not with_gradients
        if tried and refused is not None and refused.recording:
            self.refused, self.of_gradients = None, refused
        return self.refused is not None or with_gradients

    def modes(self) -> tuple[object, ...]:
        return environment(self.context.backend.device, int(self.context.tracer.on_stack))

    @property
    def expected(self) -> Sequence[Entry]:
        """The graphs that are likely to serve the next call."""
        last = self._last
        shape = (last.successor or last) if last is not None else None
        return [entry for entry in shape.entries if entry.predictable] if shape is not None else ()

    @property
    def copy_ns(self) -> float:
        """Nanoseconds that it costs the host to copy one argument into its placeholder."""
        return self.replay_counts.copy_ns

    @property
    def device_bound(self) -> bool:
        """True where the device works most of the time between two calls."""
        since, calls = self._pace
        if self.busy_ms is None or self.calls <= calls:
            return False
        interval_ms = (perf_counter() - since) * 1e3 / (self.calls - calls)
        self._pace = (perf_counter(), self.calls)
        return self.busy_ms > 0.7 * interval_ms

    @property
    def is_traced(self) -> bool:
        """True where the tracer is among the modes of this thread, awake or not."""
        return self.context.tracer.on_stack

    @property
    def beside_streams(self) -> bool:
        """True where other streams use results of graphs."""
        return bool(self.context.store.side_streams)

    def on_its_stream(self) -> bool:
        """True where work that is enqueued now is ordered with the region's replays."""
        context = self.context
        if context.stream is None:
            return True
        index = context.backend.device.index or 0
        return torch._C._cuda_getCurrentRawStream(index) == context.stream

    def refuse(self, refused: Refused) -> None:
        """Leave the region eager from now on, and let callables inside it become regions."""
        self.refused = refused
        self.release()
        if refused.recording and self.root_is_module:
            return  # nor would modules inside it, whose results lead to the same backward
        if refused.reason.opens:
            self.context.let_inner_in()

    def release(self) -> None:
        """Give back every graph; the next calls run eagerly."""
        for shape in self.shapes.values():
            for entry in shape.entries:
                entry.release()
            shape.entries.clear()
            shape.input_guard = None
            shape.captures, shape.closed = 0, False
        self.context.store.drop(self.owner)
        self.context.predictor.settle()

    def forget_shape(self, shape: Specialization) -> None:
        """It is none of `shapes` any more: no other one leads to it."""
        for other in (*self.shapes.values(), self._last):
            if other is not None and other.successor is shape:
                other.successor = None
        if self._last is shape:
            self._last = None
        self.shapes.forget(shape)
        shape.let_go()

    @property
    def entries(self) -> list[Entry]:
        return [entry for shape in self.shapes.values() for entry in shape.entries]
