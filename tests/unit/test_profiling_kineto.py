"""Conversion of kineto's events: what counts as device work, links, graphs, clipping. No GPU needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from grape.model import Event, Position, Timeline
from grape.profiling.kineto import Window, convert

BASE_NS = 1_790_000_000_000_000_000


@dataclass
class DeviceType:
    name: str


class FakeEvent:
    """Methods named as kineto's. With `old=True` those that not every torch has are absent."""

    def __init__(self, name: str, activity: str, start: int, end: int, *, old: bool = False, **fields: Any) -> None:
        on_device = activity in ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_sync")
        self.values = {
            "name": name,
            "start_ns": BASE_NS + start,
            "end_ns": BASE_NS + end,
            "duration_ns": end - start,
            "device_type": DeviceType("CUDA" if on_device else "CPU"),
            "device_index": fields.get("device", 0 if on_device else 4242),
            "device_resource_id": fields.get("stream", 7) if on_device else fields.get("thread", 4242),
            "correlation_id": fields.get("id", 0),
            "linked_correlation_id": fields.get("link", 0),
            "is_user_annotation": activity in ("user_annotation", "gpu_user_annotation"),
            "is_python_function": activity == "python_function",
        }
        if not old:
            self.values |= {
                "activity_type": activity,
                "nbytes": 0,
                "metadata_json": fields.get("metadata", ""),
                "is_hidden_event": fields.get("hidden", False),
            }

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__["values"]
        if name not in values:
            raise AttributeError(name)
        return lambda: values[name]


WINDOW = Window(start_ns=BASE_NS, stop_ns=BASE_NS + 9_000, end_ns=BASE_NS + 10_000, device=0)


HTOD = "Memcpy HtoD (Pinned -> Device)"


def step(old: bool = False) -> list[object]:
    """aten::addmm launches a kernel, then a copy from the host and a memset; annotations on both sides."""
    return [
        FakeEvent("step", "user_annotation", 0, 5_000, id=1, old=old),
        FakeEvent("aten::linear", "cpu_op", 90, 600, id=9, old=old),
        FakeEvent("aten::addmm", "cpu_op", 100, 500, id=10, old=old),
        FakeEvent("cudaLaunchKernel", "cuda_runtime", 200, 300, id=77, link=10, old=old),
        FakeEvent("ampere_sgemm", "kernel", 1_000, 3_000, id=77, link=10, old=old),
        FakeEvent("cudaMemcpyAsync", "cuda_runtime", 600, 700, id=78, old=old),
        FakeEvent(
            "Memcpy HtoD (Pinned -> Device)",
            "gpu_memcpy",
            3_500,
            4_000,
            id=78,
            metadata='"bytes": 4096, "x": 1',
            old=old,
        ),
        FakeEvent("cudaMemsetAsync", "cuda_runtime", 800, 900, id=79, old=old),
        FakeEvent("Memset (Device)", "gpu_memset", 4_500, 5_000, id=79, stream=8, old=old),
        FakeEvent("step", "gpu_user_annotation", 1_000, 5_000, id=1, old=old),
        FakeEvent("Context Sync", "cuda_sync", 5_000, 9_500, id=80, old=old),
        FakeEvent("cudaDeviceSynchronize", "cuda_runtime", 9_010, 9_990, id=80, old=old),
    ]


def events(raw: Sequence[object], window: Window = WINDOW, **options: object) -> tuple[Event, ...]:
    converted = convert(raw, window, **options)  # type: ignore[arg-type]
    assert converted is not None
    return converted


def named(found: Sequence[Event], name: str) -> Event:
    (event,) = [e for e in found if e.name == name]
    return event


@pytest.mark.parametrize("old", [False, True], ids=["with activity types", "by device and name"])
def test_lanes_and_categories(old: bool) -> None:
    found = events(step(old))
    assert sorted((e.lane, e.category, e.name) for e in found) == [
        ("device", "annotation", "step"),
        ("device", "kernel", "ampere_sgemm"),
        ("device", "memcpy", HTOD),
        ("device", "memset", "Memset (Device)"),
        ("host", "annotation", "step"),
        ("host", "operator", "aten::addmm"),
        ("host", "operator", "aten::linear"),
        ("launch", "runtime", "cudaLaunchKernel"),
        ("launch", "runtime", "cudaMemcpyAsync"),
        ("launch", "runtime", "cudaMemsetAsync"),
    ]


def test_annotations_are_not_device_work() -> None:
    timeline = Timeline(events=events(step()), wall_ns=WINDOW.wall_ns)
    assert timeline.gpu_busy_ns == 2_000 + 500 + 500
    assert timeline.kernels_per_call == 3


def test_times_count_from_the_start_of_the_window_and_are_ordered() -> None:
    found = events(step())
    starts = [e.start_ns for e in found]
    assert starts == sorted(starts)
    kernel = named(found, "ampere_sgemm")
    assert (kernel.start_ns, kernel.end_ns) == (1_000, 3_000)


def test_streams_threads_bytes_and_correlations() -> None:
    found = events(step())
    launch, kernel = named(found, "cudaLaunchKernel"), named(found, "ampere_sgemm")
    assert launch.correlation == kernel.correlation == 77
    assert (kernel.stream, kernel.thread) == (7, 0)
    assert (launch.stream, launch.thread) == (-1, 4242)
    assert named(found, "Memset (Device)").stream == 8
    assert named(found, HTOD).bytes == 4096
    # Numbers of operators and numbers of launches are two series; only launches and device work carry theirs.
    assert named(found, "aten::addmm").correlation == 0


def test_the_recorders_own_wait_is_left_out_and_the_persons_is_kept() -> None:
    own = FakeEvent("cudaDeviceSynchronize", "cuda_runtime", 8_990, 9_990, id=80)
    theirs = FakeEvent("cudaStreamSynchronize", "cuda_runtime", 6_000, 8_000, id=81)
    late = FakeEvent("aten::add", "cpu_op", 9_100, 9_200, id=90)
    assert [e.name for e in events([own, theirs, late])] == ["cudaStreamSynchronize"]


def test_events_are_clipped_to_the_window() -> None:
    raw = [
        FakeEvent("cudaLaunchKernel", "cuda_runtime", 1, 2, id=1),
        FakeEvent("early", "kernel", -500, -100, id=1),
        FakeEvent("across", "kernel", -500, 100, id=2),
        FakeEvent("late", "kernel", 9_500, 12_000, id=3),
    ]
    found = [e for e in events(raw) if e.lane == "device"]
    assert [(e.name, e.start_ns, e.end_ns) for e in found] == [("across", 0, 100), ("late", 9_500, 10_000)]


def test_work_of_another_device_does_not_count() -> None:
    raw = [*step(), FakeEvent("elsewhere", "kernel", 0, 9_000, id=99, device=1)]
    assert "elsewhere" not in {e.name for e in events(raw)}


def test_a_graph_replay_is_one_more_event_over_its_kernels() -> None:
    raw = [
        FakeEvent("cudaGraphLaunch", "cuda_runtime", 100, 200, id=5),
        *(FakeEvent(f"k{i}", "kernel", 1_000 + 100 * i, 1_080 + 100 * i, id=5) for i in range(10)),
        FakeEvent("Memcpy DtoD (Device -> Device)", "gpu_memcpy", 2_100, 2_200, id=5),
        FakeEvent("cudaLaunchKernel", "cuda_runtime", 300, 400, id=6),
        FakeEvent("alone", "kernel", 3_000, 3_100, id=6),
        FakeEvent("cudaGraphLaunch_v10000", "cuda_runtime", 500, 600, id=7),
        FakeEvent("k", "kernel", 4_000, 4_100, id=7),
    ]
    found = events(raw)
    graphs = [(e.name, e.start_ns, e.end_ns, e.stream, e.correlation) for e in found if e.category == "graph"]
    assert graphs == [("CUDA graph, 11 nodes", 1_000, 2_200, 7, 5), ("CUDA graph, 1 node", 4_000, 4_100, 7, 7)]
    timeline = Timeline(events=found, wall_ns=10_000)
    assert timeline.kernels_per_call == 13
    assert timeline.gpu_busy_ns == 10 * 80 + 100 + 100 + 100


def test_a_graph_that_the_driver_launched_is_known_by_its_kernels() -> None:
    """`cuGraphLaunch` is none of kineto's events."""
    raw = [
        *(FakeEvent(f"k{i}", "kernel", 1_000 + 100 * i, 1_080 + 100 * i, id=5) for i in range(3)),
        FakeEvent("cudaLaunchKernel", "cuda_runtime", 300, 400, id=6),
        FakeEvent("alone", "kernel", 3_000, 3_100, id=6),
        FakeEvent("of an earlier launch", "kernel", 4_000, 4_100, id=7),
    ]
    assert [e.name for e in events(raw) if e.category == "graph"] == ["CUDA graph, 3 nodes"]


def test_no_call_into_cuda_at_all_means_that_cupti_did_not_work() -> None:
    host_only = [FakeEvent("aten::add", "cpu_op", 10, 20, id=1)]
    assert convert(host_only, WINDOW) is None
    on_cpu = Window(start_ns=BASE_NS, stop_ns=BASE_NS + 100, end_ns=BASE_NS + 100)
    assert len(events(host_only, on_cpu)) == 1
    # The wait at the end is a call into CUDA: nothing ran on the device, and that is known.
    assert events([*host_only, FakeEvent("cudaDeviceSynchronize", "cuda_runtime", 9_001, 9_002)]) == events(
        host_only, on_cpu
    )


def test_hidden_and_unknown_events_are_left_out() -> None:
    raw = [
        *step(),
        FakeEvent("hidden", "kernel", 0, 9_000, id=99, hidden=True),
        FakeEvent("Activity Buffer Request", "overhead", 0, 9_000),
        FakeEvent("[memory]", "cpu_instant_event", 5, 5),
    ]
    assert events(raw) == events(step())


def test_what_an_operator_issued_has_its_line() -> None:
    line = Position(file="In[3]", line=7, function="step")

    def position_of(operators: Sequence[Event]) -> Sequence[Position | None]:
        assert [e.name for e in operators] == ["aten::linear", "aten::addmm"]
        return [None, line]

    placed = {e.name for e in events(step(), position_of=position_of) if e.position == line}
    assert placed == {"aten::addmm", "cudaLaunchKernel", "ampere_sgemm"}


def test_long_kernel_names_are_shortened_and_mangled_ones_read() -> None:
    raw = [
        *step(),
        FakeEvent("_Z1f", "kernel", 0, 1),
        FakeEvent("void n::k<" + "int, " * 30 + ">(int)", "kernel", 0, 1),
    ]
    names = {e.name for e in events(raw, demangle=lambda name: name + " read")}
    assert {"_Z1f read", "k<...>"} <= names
