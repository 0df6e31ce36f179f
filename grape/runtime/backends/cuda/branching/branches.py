"""Branches of a graph: a capture forks to streams of its own, on which operators are issued, and joins them.

What is issued on a stream that nobody was told of would have no place among the branches: that is noticed by what comes
last on the stream of the capture, and ends the capture (`OverlapLost`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from .....model.overlap import OverlapPlan
from .....profiling.private_streams import private_stream
from .....streams.cuda_warmup import warm_products
from ...operators import memory_of
from ...protocol import OverlapLost
from ..driver import Driver

_streams: dict[torch.device, list[torch.cuda.Stream]] = {}
"""Each has a workspace of cuBLAS, which is as large as that of other streams: the same algorithms are chosen."""


def lane_streams(device: torch.device, lanes: int) -> list[torch.cuda.Stream]:
    """So many streams beside the one of the capture, warm. Not inside a capture."""
    streams = _streams.setdefault(device, [])
    while len(streams) < lanes:
        made = private_stream(device, f"branch {len(streams)}")
        warm_products(device, made)
        streams.append(made)
    return streams[:lanes]


class CudaBranches:
    """Implements `Branches`. Alive until the capture is over: it keeps events, and memory that crosses lanes."""

    def __init__(
        self, plan: OverlapPlan, driver: Driver, main: torch.cuda.Stream, others: list[torch.cuda.Stream]
    ) -> None:
        self._plan = plan
        self._driver = driver
        self._streams = [main, *others]
        self._awaited = frozenset(ordinal for waits in plan.waits.values() for ordinal in waits)
        self._events: dict[int, torch.cuda.Event] = {}
        self._forked: set[int] = set()
        self._held: dict[int, object] = {}
        self._start = _event_on(main)
        self._tip = self._behind()

    @contextmanager
    def on_lane(self, ordinal: int) -> Iterator[None]:
        lane = self._plan.lane.get(ordinal)
        if lane is None:
            yield
            return
        self._check()
        stream = self._streams[lane]
        if lane and lane not in self._forked:
            self._forked.add(lane)
            stream.wait_event(self._start)
        for other in self._plan.waits.get(ordinal, ()):
            stream.wait_event(self._events[other])
        for made in self._plan.freed.get(ordinal, ()):
            self._held.pop(made, None)
        with torch.cuda.stream(stream):
            yield
        if ordinal in self._awaited:
            self._events[ordinal] = _event_on(stream)
        if not lane:
            self._tip = self._behind()

    def keep(self, ordinal: int, result: object) -> None:
        if ordinal in self._plan.held:
            self._held[ordinal] = memory_of(result)

    @contextmanager
    def aside(self) -> Iterator[None]:
        self._check()
        yield
        self._tip = self._behind()

    def join(self) -> None:
        """Nothing of the lanes is left outside."""
        self._check()
        self._rejoin()

    def abandon(self) -> None:
        """The capture will be thrown away, and has to end where it began. What ended it matters, not what this says:
        nothing can be joined to a capture that was invalidated.
        """
        self._held.clear()
        with suppress(RuntimeError):
            self._rejoin()

    def _rejoin(self) -> None:
        for lane in sorted(self._forked):
            self._streams[0].wait_event(_event_on(self._streams[lane]))

    def _check(self) -> None:
        main = self._streams[0]
        if torch.cuda.current_stream(main.device) != main or self._behind() != self._tip:
            raise OverlapLost

    def _behind(self) -> list[int]:
        """The nodes that the next one on the stream of the capture would wait for."""
        _, _, _, nodes, _, count = self._driver.call("cuStreamGetCaptureInfo", self._streams[0].cuda_stream)
        return sorted(int(node) for node in list(nodes or ())[:count])


def _event_on(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record(stream)
    return event
