"""What is kept of an object goes with it."""

from __future__ import annotations

import gc

from grape.model import Event, Timeline, Trace
from grape.model.kept import Kept


def _trace() -> Trace:
    return Trace(ops=(), host_reads=(), argument_storages=(), external_storages=(), wall_ns=0)


def test_found_once_for_each_object_that_lives() -> None:
    asked: list[int] = []

    def find(trace: Trace) -> int:
        asked.append(id(trace))
        return len(asked)

    kept = Kept(find)
    one, equal = _trace(), _trace()
    assert (kept(one), kept(equal), kept(one)) == (1, 2, 1), "equal objects are not the same"
    del one
    gc.collect()
    assert len(kept._known) == 1
    assert kept(equal) == 2


def test_a_timeline_is_looked_through_once() -> None:
    work = Event(name="k", lane="device", category="kernel", start_ns=0, end_ns=5, stream=7)
    issued = Event(name="aten::add", lane="host", category="operator", start_ns=0, end_ns=5, thread=1)
    timeline = Timeline(events=(work, issued), wall_ns=10)
    assert timeline.device_events() is timeline.device_events()
    assert timeline.device_events() == (work,) and timeline.gpu_busy_ns == 5
