"""One stage of a pipeline: its function, the stream that it works on, its graphs, and what it is known to touch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..backends.protocol import Backend
from ..backends.reference.backend import ReferenceBackend
from ..graphed import GraphedFunction
from .backend import StageBackend
from .own_streams import OwnStreams
from .sharing import Touched
from .state import State
from .values import Taker, copied, detached, devices_in, moved

DRAWS = "draws random numbers on the GPU"


class Stage:
    """`chosen`: the person named the device, so tensors of the CPU are moved there as well.

    Graphs of different stages overlap, so they share nothing that a replay writes: each stage has a backend, a pool and
    a capture stream with a workspace of cuBLAS of its own.
    """

    def __init__(
        self, function: Callable[[object], object], device: torch.device, streams: OwnStreams, *, chosen: bool
    ) -> None:
        self.function = function
        self.device = device
        self.touched = Touched()
        self.plain: str | None = None
        """Why it has no graphs by decision of the pipeline."""
        self.served = False
        """True where a graph served the last call."""
        self._state = State(function)
        self._chosen = chosen
        self._link: tuple[torch.cuda.Stream, torch.cuda.Stream] | None = None
        self._streams = streams
        backend: Backend
        if device.type == "cuda":
            self.stream: torch.cuda.Stream | None = streams.take(device)
            backend = StageBackend(device, streams.take(device))
        else:
            self.stream = None
            backend = ReferenceBackend()
        self._graphed = GraphedFunction(function, backend=backend, tolerance=0.0, results=detached)

    @property
    def name(self) -> str:
        return self._graphed.__name__

    @property
    def state(self) -> str:
        """What became of its calls so far."""
        return f"runs as written: it {self.plain}" if self.plain is not None else self._graphed.state

    @property
    def replays(self) -> int:
        return self._graphed.replays

    def run(
        self, value: object, after: Sequence[torch.cuda.Event], take: Taker, held: list[object], *, looking: bool
    ) -> tuple[object, list[torch.cuda.Event]]:
        """What it makes of `value`, which is there `after` some events: in memory from `take`, and when that is there.

        What is `held` afterwards has to live until the events returned, or those of later stages, were waited for.
        """
        if self.stream is None:
            return self._run_here(value, after, take, held, looking=looking)
        value, after = self._brought(value, after)
        held.append(value)
        with torch.cuda.stream(self.stream):
            for event in after:
                self.stream.wait_event(event)
            if not self.served:
                self._state.look()
            self._state.mark(self.stream)
            result = copied(self._call(value, looking=looking), take)
            held.append(result)
            return result, [self.stream.record_event()]

    def _run_here(
        self, value: object, after: Sequence[torch.cuda.Event], take: Taker, held: list[object], *, looking: bool
    ) -> tuple[object, list[torch.cuda.Event]]:
        """On the CPU; what it does with a GPU is work of the streams that are current."""
        current = dict.fromkeys(torch.cuda.current_stream(event.device) for event in after)
        for stream in current:
            for event in after:
                stream.wait_event(event)
        result = copied(self._call(moved(value, self.device, chosen=self._chosen), looking=looking), take)
        held.append(result)
        return result, [stream.record_event() for stream in current]

    def _brought(self, value: object, after: Sequence[torch.cuda.Event]) -> tuple[object, Sequence[torch.cuda.Event]]:
        """`value` on the device of this stage. Copies between devices have streams of their own on both.

        On that of the stage they would wait for the sample before, and the stage before would wait for them.
        """
        assert self.stream is not None
        others = devices_in(value) - {self.device}
        source = next((one for one in others if one.type == "cuda"), None)
        if source is None and not (others and self._chosen):
            return value, after
        if self._link is None or (source is not None and self._link[0].device != source):
            self._link = (self._streams.take(source or self.device), self._streams.take(self.device))
        with torch.cuda.stream(self._link[0]), torch.cuda.stream(self._link[1]):
            for stream in self._link:
                for event in after:
                    stream.wait_event(event)
            there = moved(value, self.device, chosen=self._chosen)
            return there, [stream.record_event() for stream in self._link]

    def _call(self, value: object, *, looking: bool) -> object:
        self.served = False
        if self.plain is not None and not looking:
            return self.function(value)
        before, offset = self._graphed.replays, self._offset()
        result = self.touched.look(lambda: self.function(value), value) if looking else self._graphed(value)
        self.served = self._graphed.replays > before
        if not self.served:
            self._note_draws(offset)
        return result

    def _offset(self) -> int:
        """How far the random numbers of the device have come."""
        if self.stream is None:
            return 0
        return int(torch.cuda.default_generators[self.device.index].get_offset())

    def _note_draws(self, before: int) -> None:
        """Kernels of graphs read seed and offset from memory that all graphs of the device share, those of the person
        as well, and each launch writes it: graphs that draw must not overlap. Eager kernels are given the numbers.
        """
        if self.plain is None and self._offset() != before:
            self.release()
            self.plain = DRAWS

    def wait(self) -> None:
        """Until its work is done."""
        if self.stream is not None:
            for stream in (self.stream, *(self._link or ())):
                stream.synchronize()

    def hold_up(self, stream: torch.cuda.Stream) -> None:
        """Have `stream` wait for all that was issued."""
        if self.stream is not None:
            for own in (self.stream, *(self._link or ())):
                stream.wait_stream(own)

    def release(self) -> None:
        """Give back its graphs, once no launch of them is under way."""
        self.wait()
        self._graphed.release()
